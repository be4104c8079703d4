"""Steps on one simulated device without values: how long a settled one takes on its clock.

Who measures starts a process for each device that it simulates (`apart`), because that is once a
process, and runs each budget and policy beside an empty device (budgeted.py).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from budgeted import MEASURED, SETTLE, choose, policies, vacated
from report import Report
from training import DEVICE
from tree import ROOT

import managed
from managed._simulated.presets import Preset

__all__ = ["apart", "compared", "options", "percent", "placed", "pressed", "simulate", "timed"]

MOVED = ("spill", "spare", "drop", "restore")


def compared(*more: str) -> list[str]:
    """clean_first is between the others, and nobody's default."""
    return [*(p for p in policies() if p != "clean_first"), *more]


def simulate(preset: Preset, devices: int = 1, repeatable: bool = True) -> None:
    """Devices like this, but with all the memory that a program without a budget wants."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "preset.json"
        told = preset._asdict() | {"efficiency": preset.efficiency._asdict()}
        path.write_text(json.dumps(told))
        managed.simulate(
            devices,
            "8TiB",
            preset=str(path),
            values=False,
            host_memory="64TiB",
            repeatable=repeatable,
        )


def placed(thing: Any) -> Any:
    """Managed and on the device.

    A module on meta first gets memory of the host, which costs nothing while nobody touches it:
    nothing leaves for a module that comes from meta, so it could not be larger than the room.
    """
    if not isinstance(thing, torch.nn.Module):
        return thing.as_subclass(managed.ManagedTensor).to(DEVICE)
    if any(p.is_meta for p in thing.parameters()):
        thing.to_empty(device="cpu")
    return managed.ManagedModule.from_module(thing).to(DEVICE)


def timed(step: Callable[[], None]) -> Report:
    """A step when things have settled, and the part of it for which the device had no operator.

    From where the operators of one step have ended to where those of a later one have, as events on
    a card would say: nobody waits in between for the copies that are under way across a step's end.
    """
    begin, end = (torch.Event(DEVICE, enable_timing=True) for _ in range(2))
    for _ in range(SETTLE):
        step()
    torch.sim.reset_peak_memory_stats(DEVICE)
    before, busy = managed.stats(), torch.sim.busy()[DEVICE]
    begin.record(torch.sim.current_stream(DEVICE))
    for _ in range(MEASURED):
        step()
    end.record(torch.sim.current_stream(DEVICE))
    end.synchronize()
    took = begin.elapsed_time(end) * 1e-3
    after = managed.stats()
    found: Report = {k: (after[f"{k}_bytes"] - before[f"{k}_bytes"]) / MEASURED for k in MOVED}
    return found | {
        "step_s": took / MEASURED,
        "idle": 1 - (torch.sim.busy()[DEVICE] - busy) / took,
        "peak": torch.sim.max_memory_allocated(DEVICE),
    }


def pressed(make: Callable[[], Callable[[], None]], budget: int, policy: str) -> Report:
    """The same of what `make` makes under a budget; or why there is no room for it."""
    with vacated():
        choose(policy)
        managed.budget(DEVICE, budget)
        try:
            found = timed(make())
        except managed.OutOfMemoryError as error:
            return {"why": str(error).splitlines()[0].removeprefix("managed: ")}
        if found["peak"] > budget:
            raise RuntimeError(f"{found['peak']} bytes were held under a budget of {budget}")
        return found


def options(script: str, doc: str | None, quick: str) -> argparse.ArgumentParser:
    """What these scripts can all be told; `--group` is how they call themselves (apart)."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    default = ROOT / "build" / "bench" / f"{Path(script).stem}.json"
    parser.add_argument("--out", "--json", type=Path, default=default, metavar="FILE")
    parser.add_argument("--group", help=argparse.SUPPRESS)
    return parser


def apart(script: str, argument: Any) -> Report:
    """What the script says in a process of its own when it is asked for one `--group`."""
    command = [sys.executable, script, "--group", json.dumps(argument)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: Report = json.loads(done.stdout.splitlines()[-1])
    return found


def percent(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.0f}"
