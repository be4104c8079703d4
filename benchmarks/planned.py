"""Whether `managed plan` tells what a run does: the peak, spills and time of each of its lines.

    python benchmarks/planned.py [--models gpt2,llama3-8b] [--check] [--out FILE]

Plans a script that trains a model (this file with --train, which makes the model on the host). Then
the same script runs once for each line of the plan, under its budget, on devices with values, and
says itself what its last step took. With --check the exit status is 1 when a peak is off by 2 %.
Llama-3 8B has no room here with values: its lines run on devices without.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fits import build, steps
from report import machine, print_table, verdicts, write
from tree import ROOT

Report = dict[str, Any]
GIB = 2**30

#: Sequences of so many tokens, the devices, and whether a run has values.
MODELS: dict[str, tuple[int, int, str, bool]] = {
    "gpt2": (2, 64, "1x8GiB,2x8GiB,a100-40g", True),
    "llama3-8b": (1, 1024, "rtx4090,h100-sxm,4xh100-sxm", False),
}


def train(name: str, told: str | None) -> None:
    """The script. `told`: the line of a plan; then it makes these devices and prints its figures.

    (In a plan `managed.simulate` does nothing.)
    """
    import torch

    import managed

    batch, length, _, values = MODELS[name]
    line: Report = json.loads(told) if told else {}
    if line:
        devices, memory, preset = line["count"], line["memory_bytes"], line["preset"]
        managed.simulate(devices, memory, preset, repeatable=True, values=values)
        for i in range(devices if line["budget_bytes"] else 0):
            managed.budget(i, line["budget_bytes"])
    model = managed.ManagedModule.from_module(build(name, "cpu" if values or not line else "meta"))
    (virtual, _) = steps(model.cuda(disperse=True), batch, length, line.get("steps", 8))[-1]
    counted = managed.stats()
    print(
        json.dumps(
            {
                "peak": [torch.sim.max_memory_allocated(i) for i in range(line.get("count", 1))],
                "left": sum(counted[f"{kind}_bytes"] for kind in ("spill", "spare", "drop")),
                "step": virtual,
            }
        )
    )


def python(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT).stdout


def planned(name: str, file: Path) -> Report:
    """The plan, and how long it took."""
    start = time.perf_counter()
    *_, devices, _ = MODELS[name]
    print(
        python("-m", "managed", "plan", __file__, "--devices", devices, "--json", str(file),
               "--", "--train", name)
    )  # fmt: skip
    found: Report = json.loads(file.read_text())
    return found | {"took_s": time.perf_counter() - start}


def reproduced(name: str, line: Report) -> Report:
    """A line of the plan beside the run."""
    asked = {k: line[k] for k in ("count", "memory_bytes", "preset", "budget_bytes", "steps")}
    ran = json.loads(
        python(__file__, "--train", name, "--line", json.dumps(asked)).splitlines()[-1]
    )
    left = sum(line["step"][kind] for kind in ("spill", "spare", "drop"))
    found = {
        "line": f"{line['devices']}, budget {line['budget_bytes']}",
        "peak": (max(line["peak_bytes"]), max(ran["peak"])),
        "left": (left, ran["left"]),
        "step": (line["step"]["elapsed_s"], ran["step"]),
    }
    print(found, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "planned.json")
    parser.add_argument("--train", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--line", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train, options.line)
        return 0
    results: Report = {"machine": machine()}
    worst = 0.0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name in options.models.split(","):
        plan = planned(name, options.out.with_suffix(f".{name}.json"))
        lines = [
            reproduced(name, c) for c in plan["configurations"]
            if c["steps"] and c["devices"] != "room for all"
        ]  # fmt: skip
        results[name] = {"took_s": plan["took_s"], "lines": lines}
        ratios = [[a / b if b else float(a == b) for a, b in
                   (r["peak"], r["left"], r["step"])] for r in lines]  # fmt: skip
        worst = max([worst, *(abs(peak - 1) for peak, *_ in ratios)])
        print_table(
            f"{name}: planned in {plan['took_s']:.0f} s; plan over run",
            ["peak", "left in a step", "step"],
            [[r["line"], *(f"{x:.4f}" for x in row)] for r, row in zip(lines, ratios, strict=True)],
        )
    results["targets"] = verdicts([("peak of a plan off that of a run", worst, 0.02)])
    write(results, options.out)
    return int(options.check and not all(t["pass"] for t in results["targets"]))


if __name__ == "__main__":
    sys.exit(main())
