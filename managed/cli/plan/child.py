"""The process of one configuration: runs the script's first steps on devices without values.

`python -m managed.cli.plan.child JOB`, where JOB is a file in JSON that plan.py writes. It writes
what it found after each step, so that a process that is ended leaves what it knew.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

import managed
from managed.cli.plan import discard_files, hollow
from managed.cli.plan.discard import Discard
from managed.cli.plan.landlock import allow_writes_below, end_with_parent
from managed.cli.plan.steps import Figures, Steps


def _simulate(job: dict[str, Any]) -> None:
    """The devices of the job; what the script would simulate is nothing then."""
    managed.simulate(job["devices"], job["memory"], job["preset"], values=False)
    for device, size in enumerate(job["budgets"] or ()):
        managed.budget(f"sim:{device}", size)
    managed.simulate = managed.sim.simulate = lambda *args, **kwargs: None


def _discard(job: dict[str, Any]) -> bool:
    """Redirects what is written, and says whether the kernel refuses the rest."""
    kept = [job["folder"], "/dev", "/proc", *job["caches"]]
    refused = allow_writes_below(kept)
    discard = Discard(job["written"], kept)
    discard.install()
    discard_files.install(discard)
    return refused


def _unknown(report: Figures) -> None:
    """Notes the places that asked for an unknown number, and shows no warnings."""
    places: list[str] = []
    report["unknown"] = places

    def show(
        message: Any, category: Any, filename: str, lineno: int, *rest: Any, **more: Any
    ) -> None:
        place = f"{os.path.basename(filename)}:{lineno}"
        if "do not know" in str(message) and place not in places:
            places.append(place)

    warnings.showwarning = show


def _why(error: BaseException, script: str) -> dict[str, str]:
    """The error, and the line of the script that met it."""
    lines = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == script]
    where = f"{os.path.basename(script)}:{lines[-1].lineno}: " if lines else ""
    first = (str(error).splitlines() or [""])[0].removeprefix("managed: ")
    if isinstance(error, torch.OutOfMemoryError):
        return {"does_not_fit": first}
    return {"error": f"{where}{type(error).__name__}: {first}"}


def main(path: str) -> None:
    job: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    result = job["result"]
    end_with_parent()
    torch.set_num_threads(1)
    _simulate(job)

    def done(report: Figures) -> None:
        with open(f"{result}.new", "w", encoding="utf-8") as file:
            json.dump(report, file)
        os.replace(f"{result}.new", result)
        if report["ended"]:  # at once, whatever the script wants to do at its end
            os._exit(0)

    steps = Steps(job["steps"], job["settled"], done)
    _unknown(steps.report)
    steps.report["refused"] = _discard(job)
    steps.install()
    hollow.install()
    script = job["script"]
    sys.argv = [script, *job["arguments"]]
    sys.path[0] = os.path.dirname(script)
    inside: Any = getattr(managed, "on", nullcontext)  # its tensors and modules are managed there
    try:
        with inside():
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            steps.report["error"] = f"the script ended with status {end.code}"
    except BaseException as error:
        traceback.print_exc()
        steps.report |= _why(error, script)
    steps.finish()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
