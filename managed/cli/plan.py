"""`managed plan`: what an unchanged script needs, before there is a card for it."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from managed.cli import _plan_report
from managed.cli._discard import written
from managed.settings import parse_bytes
from managed.sim import _plan as checked_plan
from managed.sim import _preset

__all__ = ["Devices", "describe", "plan", "read_devices", "run"]

Report = dict[str, Any]
VERSION = 1  #: of the JSON
_FORM = re.compile(r"\s*(?:(\d+)\s*[xX]\s*)?(\S.*?)\s*")
_BUDGETS = "80%,60%,40%"
_ROOM = 8 * 2**40  # bytes of a device that has room for all


class Devices(NamedTuple):
    """Like "4xh100-sxm": as many devices, a preset for their speed, and their memory."""

    name: str
    count: int
    preset: str | None
    memory: int  #: bytes of each


def read_devices(text: str, preset: str | None = None) -> Devices:
    """Reads "2x24GiB", "h100-sxm" or "4xcard.json"; the preset is the speed of those with a size.

    ValueError for what is neither a size nor a preset, and for counts that cannot be simulated.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"managed: {text!r} is not like '2x24GiB' or '4xh100-sxm'")
    count, what = int(match[1] or 1), match[2]
    sized = what[0].isdigit()
    kind, memory = (preset, what) if sized else (what, None)
    checked = checked_plan(count, memory, kind, values=False)
    return Devices(f"{count}x{what}", count, kind, checked.capacities[0])


class _Parser(argparse.ArgumentParser):
    """What comes after "--" is the script's, wherever the options are."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = list(args)
        cut = given.index("--") if "--" in given else len(given)
        found, extra = super().parse_known_args(given[:cut], namespace)
        found.arguments = given[cut + 1 :]
        return found, extra


def describe(parser: argparse.ArgumentParser) -> None:
    parser.__class__ = _Parser
    parser.usage = "managed plan [options] script.py [-- arguments of the script]"
    add = parser.add_argument
    add("script", help="a Python program, as it is; its arguments come after --")
    add(
        "--devices",
        default="rtx4090,a100-40g,h100-sxm",
        help="what to try, with commas: 1x24GiB, 4xh100-sxm, ... (default: %(default)s)",
    )
    add("--preset", help="the speed of devices that are given by their size alone")
    add(
        "--budgets",
        default=_BUDGETS,
        help="budgets to price, in parts of the peak or in bytes, or none (default: %(default)s)",
    )
    add("--steps", type=int, default=3, help="steps to run (default: 3)")
    add("--timeout", type=float, default=600, help="seconds for a configuration (default: 600)")
    add("--json", type=Path, metavar="FILE", help="writes all of it, for programs")
    add("--picture", type=Path, metavar="FILE", help="draws it; needs matplotlib")


def run(options: argparse.Namespace) -> int:
    for path in (options.json, options.picture):
        if path is not None and not path.absolute().parent.is_dir():
            return _wrong(f"there is no folder {path.absolute().parent} to write into")
    try:
        if options.picture is not None:
            _plan_report.need_matplotlib()
        found = plan(
            options.script,
            options.arguments,
            options.devices.split(","),
            preset=options.preset,
            budgets=[] if options.budgets == "none" else options.budgets.split(","),
            steps=options.steps,
            timeout=options.timeout,
        )
    except (ValueError, OSError, ModuleNotFoundError) as error:
        return _wrong(str(error).removeprefix("managed: "))
    print(_plan_report.text(found))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.picture is not None:
        _plan_report.draw(found, options.picture)
    return int(not any(c["steps"] for c in found["configurations"]))


def _wrong(why: str) -> int:
    print(f"managed plan: {why}", file=sys.stderr)
    return 2


def plan(
    script: str | os.PathLike[str],
    arguments: list[str],
    devices: list[str],
    *,
    preset: str | None = None,
    budgets: list[str],
    steps: int = 3,
    timeout: float = 600,
) -> Report:
    """Runs the script's first steps on each of these devices, and under budgets, without values.

    Returns what `--json` writes (docs/planning.md). ValueError for devices or budgets that make no
    sense, FileNotFoundError when there is no such script; nothing has run then.
    """
    path = Path(script).absolute()
    if not path.is_file():
        raise FileNotFoundError(f"managed: there is no script {script}")
    if steps < 1:
        raise ValueError(f"managed: {steps} steps are none; say 3")
    machines = [read_devices(d, preset) for d in devices]
    for budget in budgets:
        budget_bytes(budget, 0)
    job: Report = {"script": str(path), "arguments": arguments, "steps": steps}
    room = machines[0]._replace(name="room for all", count=1, memory=_ROOM)
    found = [_configured(job, room, timeout, None)]
    for machine in machines:
        whole = _configured(job, machine, timeout, None)
        found.append(whole)
        for budget in budgets if whole["steps"] else ():
            size = budget_bytes(budget, max(whole["peak_bytes"]))
            if size < machine.memory:
                found.append(_configured(job, machine, timeout, size))
    return {
        "version": VERSION,
        "script": str(path),
        "arguments": arguments,
        "configurations": found,
    }


def budget_bytes(text: str, peak: int) -> int:
    """Bytes of "60%" of the peak, or of "8GiB"."""
    if not text.strip().endswith("%"):
        return parse_bytes(text)
    try:
        part = float(text.strip()[:-1]) / 100
    except ValueError:
        part = 0
    if not 0 < part <= 1:
        raise ValueError(f"managed: {text!r} is no part of the peak; say '60%' or '8GiB'")
    return int(part * peak)


def _configured(job: Report, machine: Devices, timeout: float, budget: int | None) -> Report:
    """What the script does on these devices, each with that budget, in a process of its own."""
    told = f"{machine.name}{'' if budget is None else f' with {budget / 2**30:.2f} GiB each'}"
    if sys.stderr.isatty():
        print(f"\r\x1b[K{told} ...", end="", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="managed-plan-") as folder:
        found = _child(job, machine, timeout, budget, Path(folder))
        discarded = written(os.path.join(folder, "written"))
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return {
        "devices": machine.name,
        "count": machine.count,
        "preset": machine.preset,
        "memory_bytes": machine.memory,
        "budget_bytes": budget,
        "speed": _preset(machine.preset).name,
        **found,
        "discarded": [{"path": p, "bytes": size} for p, size in discarded],
    }


def _child(
    job: Report, machine: Devices, timeout: float, budget: int | None, folder: Path
) -> Report:
    temporary, result, log = folder / "tmp", folder / "result.json", folder / "log"
    temporary.mkdir()
    (folder / "written").mkdir()
    job = job | {
        "devices": machine.count,
        "memory": machine.memory,
        "preset": machine.preset,
        "budgets": None if budget is None else [budget] * machine.count,
        "folder": str(folder),
        "written": str(folder / "written"),
        "result": str(result),
        "caches": _caches(),
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    env = {k: v for k, v in os.environ.items() if k not in ("MANAGED_SIM", "NO_MANAGED")}
    env |= {"TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1", "WANDB_MODE": "disabled"}
    command = [sys.executable, "-m", "managed.cli._plan_child", str(folder / "job.json")]
    ended: str | None = None
    with open(log, "wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            ended = f"it was ended after {timeout:g} s; --timeout gives it more"
        finally:  # and whatever it has started, loaders' processes for example
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    found: Report = {"steps": 0, "ended": False}
    if result.exists():
        found = json.loads(result.read_text(encoding="utf-8"))
    elif ended is None:
        lines = log.read_text(errors="replace").splitlines() or ["nothing was said"]
        ended = f"its process ended with status {process.returncode}: {lines[-1]}"
    return found if ended is None else found | {"error": ended}


def _caches() -> list[str]:
    """What libraries download stays, so that it is not downloaded for each configuration."""
    names = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME")
    home = os.path.expanduser("~/.cache")
    return sorted({os.path.abspath(os.environ.get(n) or home) for n in names})
