"""`managed plan`: what an unchanged script needs, before there is a card for it."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

from managed._budgets import parse_bytes
from managed._simulated.spec import plan_devices
from managed.cli.plan import html, report
from managed.cli.plan.process import Machine, configured

__all__ = ["Machine", "describe", "plan", "read_machine", "run"]

Report = dict[str, Any]


class Plan(dict[str, Any]):
    """What `managed plan --json` writes; at a prompt and in a notebook its tables."""

    def __repr__(self) -> str:
        return report.text(self)

    def _repr_html_(self) -> str:
        return html.shown(self)


VERSION = 1  #: of the JSON
_FORM = re.compile(r"\s*(?:(\d+)\s*[xX]\s*)?(\S.*?)\s*")
_BUDGETS = "80%,60%,40%"
_STEPS, _SETTLED = 3, 8
_ROOM = 8 * 2**40  # bytes of a device that has room for all


def read_machine(text: str, preset: str | None = None) -> Machine:
    """Reads "2x24GiB", "h100-sxm" or "4xcard.json"; the preset is the speed of those with a size.

    ValueError for what is neither a size nor a preset, and for counts that cannot be simulated.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"managed: {text!r} is not like '2x24GiB' or '4xh100-sxm'")
    count, what = int(match[1] or 1), match[2]
    sized = what[0].isdigit()
    kind, memory = (preset, what) if sized else (what, None)
    checked = plan_devices(count, memory, kind, values=False)
    return Machine(f"{count}x{what}", count, kind, checked.capacities[0])


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
    add("--steps", type=int, help="steps to run (default: 3, and 8 where bytes leave)")
    add("--timeout", type=float, default=600, help="seconds for a configuration (default: 600)")
    add("--json", type=Path, metavar="FILE", help="writes all of it, for programs")
    add("--html", type=Path, metavar="FILE", help="writes the tables as a page")
    add("--picture", type=Path, metavar="FILE", help="draws it; needs matplotlib")


def run(options: argparse.Namespace) -> int:
    for path in (options.json, options.html, options.picture):
        if path is not None and not path.absolute().parent.is_dir():
            return _wrong(f"there is no folder {path.absolute().parent} to write into")
    # SIGTERM leaves nothing behind either.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if options.picture is not None:
            report.check_picture(options.picture)
        found = plan(
            options.script,
            options.arguments,
            options.devices.split(","),
            preset=options.preset,
            budgets=[] if options.budgets == "none" else options.budgets.split(","),
            steps=options.steps,
            timeout=options.timeout,
        )
    except (ValueError, FileNotFoundError, ModuleNotFoundError) as error:
        return _wrong(str(error).removeprefix("managed: "))
    finally:
        signal.signal(signal.SIGTERM, before)
    if said := found["configurations"][0].get("output"):
        print(said, file=sys.stderr)
    print(report.text(found))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.html is not None:
        options.html.write_text(html.document(found), encoding="utf-8")
    if options.picture is not None:
        report.draw(found, options.picture)
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
    steps: int | None = None,
    timeout: float = 600,
) -> Plan:
    """Runs the script's first steps on each of these devices, and under budgets, without values.

    Returns what `--json` writes (docs/planning.md). ValueError for devices or budgets that make no
    sense, FileNotFoundError when there is no such script; nothing has run then.
    """
    path = Path(script).absolute()
    if not path.is_file():
        raise FileNotFoundError(f"managed: there is no script {script}")
    if steps is not None and steps < 1:
        raise ValueError(f"managed: {steps} steps are none; say 3")
    machines = dict.fromkeys(read_machine(d, preset) for d in devices)
    for budget in budgets:
        budget_bytes(budget, 0)
    job: Report = {"script": str(path), "arguments": arguments}
    job |= {"steps": steps or _STEPS, "settled": steps or _SETTLED}
    room = next(iter(machines))._replace(name="room for all", devices=1, memory=_ROOM)
    found = [configured(job, room, timeout, None)]
    for machine in () if "error" in found[0] else machines:  # it would fail again
        whole = configured(job, machine, timeout, None)
        found.append(whole)
        for budget in budgets if whole["steps"] else ():
            size = budget_bytes(budget, max(whole["peak_bytes"]))
            if size < machine.memory:
                found.append(configured(job, machine, timeout, size))
    return Plan(version=VERSION, script=str(path), arguments=arguments, configurations=found)


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
