"""What the manager adds when something has to be decided or moved.

    python benchmarks/placement.py [--quick]

On simulated devices a transfer is a copy in host memory, so what is measured is the
work of deciding, recording and counting. An operator whose operands stand on two
devices is compared with the same program that moves the operand itself by `to`; a
call of find_device and a placement by `cuda` are shown as they are. Prints a table
and writes build/bench/placement.json.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import timeit
from pathlib import Path
from typing import Any

import torch
from measure import Block, clock_of, differences, interleave
from report import Report, machine, print_table, write
from tree import ROOT

import managed

DEVICES, MEMORY = 4, "256MiB"

# What the program would write without managed, and what it writes with it.
PAIRS = {
    "add, one operand away": ("p + q.to('sim:0')", "a + b"),
    "mm, one operand away": ("pm @ qm.to('sim:0')", "am @ bm"),
    "linear, weight away": ("F.linear(pm, qm.to('sim:0'))", "F.linear(am, bm)"),
}
CALLS = {
    "find_device": "manager.find_device(4096)",
    "find_device, disperse": "manager.find_device(4096, disperse=True)",
    "x.cuda(0)": "x.cuda(0)",
    "x.cuda()": "x.cuda()",
    "x.cuda(disperse=True)": "x.cuda(disperse=True)",
    "plain x.to('sim:0')": "plain.to('sim:0')",
}


def operands(grad: bool) -> dict[str, Any]:
    """p, q, pm, qm are plain; a, b, am, bm, x are managed. The first of each pair is on sim:0."""
    vectors = [torch.randn(8, device=f"sim:{i}") for i in (0, 1)]
    matrices = [torch.randn(8, 8, device=f"sim:{i}") for i in (0, 1)]
    names: dict[str, Any] = dict(zip(("p", "q", "pm", "qm"), vectors + matrices, strict=True))
    for plain, name in (("p", "a"), ("q", "b"), ("pm", "am"), ("qm", "bm")):
        names[name] = names[plain].clone().as_subclass(managed.ManagedTensor)
    for tensor in list(names.values()):
        tensor.requires_grad_(grad)
    plain = torch.randn(8)
    names |= {"F": torch.nn.functional, "manager": managed.device_manager, "plain": plain}
    return names | {"x": plain.clone().as_subclass(managed.ManagedTensor)}


def block(statement: str, names: dict[str, Any]) -> Block:
    """Seconds per call."""
    timer = timeit.Timer(statement, timer=clock_of(None), globals=names)
    timer.timeit(20)
    return lambda: timer.timeit(50) / 50


def measure_pairs(grad: bool, rounds: int) -> Report:
    names, report = operands(grad), {}
    with torch.set_grad_enabled(grad):
        for name, (by_hand, automatic) in PAIRS.items():
            subjects = {"control": block(by_hand, names), "managed": block(automatic, names)}
            pairs = interleave(block(by_hand, names), subjects, rounds)
            us = {k: [(v * 1e6, b * 1e6) for v, b in p] for k, p in pairs.items()}
            report[name] = {"by_hand_us": statistics.median(b for _, b in us["control"])}
            report[name] |= {kind: differences(us[kind]).as_dict() for kind in us}
    return report


def measure_calls(rounds: int) -> Report:
    names = operands(grad=False)
    blocks = {name: block(statement, names) for name, statement in CALLS.items()}
    runs: dict[str, list[float]] = {name: [] for name in blocks}
    for _ in range(rounds):
        for name, run in blocks.items():
            runs[name].append(run() * 1e6)
    return {name: statistics.median(values) for name, values in runs.items()}


def print_pairs(title: str, report: Report) -> None:
    rows = []
    for name, row in report.items():
        m = row["managed"]
        interval = f"{m['low']:+.1f} .. {m['high']:+.1f}"
        shown = [f"{row[k]['median']:+.1f}" for k in ("control", "managed")]
        rows.append([name, f"{row['by_hand_us']:.1f}", *shown, interval])
    print_table(title, ["by hand, us", "control", "managed", "95 % interval"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, wider intervals")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "placement.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    gc.disable()
    managed.simulate(devices=DEVICES, memory=MEMORY)
    rounds = 20 if options.quick else 150
    results: Report = {"machine": machine(), "quick": options.quick}
    for mode in ("no grad", "grad"):
        results[mode] = measure_pairs(mode == "grad", rounds)
        print_pairs(
            f"operands on two simulated devices, {mode}: us more than by hand", results[mode]
        )
    results["calls"] = measure_calls(rounds)
    rows = [[name, f"{us:.1f}"] for name, us in results["calls"].items()]
    print_table("calls, us", ["median"], rows)
    write(results, options.out)


if __name__ == "__main__":
    main()
