"""Starts the process of a configuration, and ends it with all that it has started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from managed._simulated.spec import find_preset
from managed.cli.plan.discard import written

__all__ = ["Machine", "configured"]

Report = dict[str, Any]
_LINES = 20  # of what a script said that failed


class Machine(NamedTuple):
    """Like "4xh100-sxm": as many devices, a preset for their speed, and their memory."""

    name: str
    devices: int
    preset: str | None
    memory: int  #: bytes of each


def configured(job: Report, machine: Machine, timeout: float, budget: int | None) -> Report:
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
        "count": machine.devices,
        "preset": machine.preset,
        "memory_bytes": machine.memory,
        "budget_bytes": budget,
        "speed": find_preset(machine.preset).name,
        **found,
        "discarded": [{"path": p, "bytes": size} for p, size in discarded],
    }


def _child(
    job: Report, machine: Machine, timeout: float, budget: int | None, folder: Path
) -> Report:
    temporary, result, log = folder / "tmp", folder / "result.json", folder / "log"
    temporary.mkdir()
    (folder / "written").mkdir()
    job = job | {
        "devices": machine.devices,
        "memory": machine.memory,
        "preset": machine.preset,
        "budgets": None if budget is None else [budget] * machine.devices,
        "folder": str(folder),
        "written": str(folder / "written"),
        "result": str(result),
        "caches": _caches(),
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    env = {k: v for k, v in os.environ.items() if k not in ("MANAGED_SIM", "NO_MANAGED")}
    env |= {"TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1", "WANDB_MODE": "disabled"}
    command = [sys.executable, "-m", "managed.cli.plan.child", str(folder / "job.json")]
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
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    found: Report = {"steps": 0, "ended": False}
    if result.exists():
        found = json.loads(result.read_text(encoding="utf-8"))
    elif ended is None:
        ended = f"its process ended with status {process.returncode}"
    if ended is not None:
        found["error"] = ended
    if "error" in found:
        found["output"] = "\n".join(log.read_text(errors="replace").splitlines()[-_LINES:])
    return found


def _caches() -> list[str]:
    """What libraries download stays, so that it is not downloaded for each configuration."""
    names = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME")
    home = os.path.expanduser("~/.cache")
    return sorted({os.path.abspath(os.environ.get(n) or home) for n in names})
