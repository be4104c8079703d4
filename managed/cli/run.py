"""`managed run script.py ...`: an unchanged script, module or notebook, inside of managed.on()."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from managed._on import run as _run
from managed.virtual_gpu import SITE, before, start

__all__ = ["describe", "run"]

NOTEBOOK = Path(__file__).resolve().with_name("_notebook.py")


def describe(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "%(prog)s [options] (script.py | notebook.ipynb | - | -m module | -c code) [args ...]"
    )
    parser.add_argument("--devices", help="simulated: 4x8GiB, or 8GiB,4GiB with one size a device")
    parser.add_argument("--preset", help="their speed: h100-sxm, a100-40g, t4, ...")
    parser.add_argument("--budget", help="what may be used of each device: 50%%, 8GiB")
    parser.add_argument("--no-values", action="store_true", help="operators compute nothing")
    parser.add_argument("--torture", action="store_true", help="all that can leaves, all the time")
    parser.add_argument("--profile", metavar="FILE", help="a timeline for ui.perfetto.dev")
    rest = argparse.REMAINDER  # whatever it looks like
    parser.add_argument("-m", dest="module", nargs=rest, help="a module, and its arguments")
    parser.add_argument("-c", dest="code", nargs=rest, help="code, and its arguments")
    parser.add_argument("program", nargs=rest, help="a script or notebook, and its arguments")
    parser.set_defaults(error=parser.error)


def run(options: argparse.Namespace) -> int:
    """Becomes the interpreter that runs the program: exit status and tracebacks are its own."""
    program = _program(options)
    wishes = {
        "devices": options.devices,
        "preset": options.preset,
        "budget": options.budget,
        "values": not options.no_values,
        "profile": options.profile and os.path.abspath(options.profile),
        "process": os.getpid(),
    }
    try:
        _run.check(wishes)
    except (TypeError, ValueError, OSError) as error:
        options.error(str(error).removeprefix("managed: "))
    if options.profile and not Path(wishes["profile"]).parent.is_dir():
        options.error(f"there is no folder {Path(wishes['profile']).parent} to write into")
    added = {"MANAGED_RUN": json.dumps(wishes), "PYTHONPATH": before("PYTHONPATH", SITE)}
    added["MANAGED_TOP"] = os.environ.get("MANAGED_TOP") or "1"
    if options.torture:
        added["MANAGED_TORTURE"] = "all"
    start(program, added)


def _program(options: argparse.Namespace) -> list[str]:
    """What the interpreter is given."""
    for flag, words in (("-m", options.module), ("-c", options.code)):
        if words is not None:
            if not words:
                options.error(f"{flag} takes something to run")
            return [flag, *words]
    if not options.program:
        options.error("there is no program to run")
    script = Path(options.program[0])
    if str(script) != "-" and not script.exists():  # "-" is standard input, as for Python
        module = "" if script.suffix in (".py", ".ipynb") else f"; a module is run by -m {script}"
        options.error(f"there is no file {script}{module}")
    if script.suffix != ".ipynb":
        return list(options.program)
    return [str(NOTEBOOK), *options.program]
