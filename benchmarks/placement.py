"""What the manager adds when something has to be decided, copied or found.

    python benchmarks/placement.py [--quick] [--check]

On simulated devices a transfer is a copy in host memory, so what is measured is the
work of deciding, recording and counting. Four tables: an operator whose operands stand
on two devices against the same program that moves the operand itself by `to`; the same
operator when a copy of an earlier use serves, against operands that stand together; an
AdamW step of a model scattered over three devices that has settled, against the same
managed model on one; and calls of find_device and placements by `cuda` as they are.
Writes build/bench/placement.json. With --check the exit status is 1 when a target is
missed.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
import timeit
from pathlib import Path
from typing import Any

import torch
from cases import MODELS, make_model, make_step
from measure import Block, clock_of, differences, interleave, ratios
from report import Report, machine, print_table, verdicts, write
from tree import ROOT

import managed

DEVICES, MEMORY = 4, "256MiB"

# What the program would write without managed, and what it writes with it. The operand is
# written between any two uses, so that each needs a copy.
COPIES = {
    "add, one operand away": ("q.add_(0); p + q.to('sim:0')", "b.add_(0); a + b"),
    "mm, one operand away": ("qm.add_(0); pm @ qm.to('sim:0')", "bm.add_(0); am @ bm"),
    "linear, weight away": (
        "qm.add_(0); F.linear(pm, qm.to('sim:0'))",
        "bm.add_(0); F.linear(am, bm)",
    ),
}
# Operands that stand together, and one away whose copy has been kept.
HITS = {
    "add, one operand away": ("a + a2", "a + b"),
    "mm, one operand away": ("am @ am2", "am @ bm"),
    "linear, weight away": ("F.linear(am, am2)", "F.linear(am, bm)"),
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
    """p, q, pm, qm are plain, the others managed; q, b, qm, bm are on sim:1, the rest on sim:0."""
    names: dict[str, Any] = {}
    for suffix, shape in (("", (8,)), ("m", (8, 8))):
        p, q, other = (torch.randn(shape, device=f"sim:{i}") for i in (0, 1, 0))
        names |= {f"p{suffix}": p, f"q{suffix}": q}
        for name, plain in ((f"a{suffix}", p), (f"b{suffix}", q), (f"a{suffix}2", other)):
            names[name] = plain.as_subclass(managed.ManagedTensor).clone()
    for tensor in names.values():
        tensor.requires_grad_(grad)
    plain = torch.randn(8)
    names |= {"F": torch.nn.functional, "manager": managed.device_manager, "plain": plain}
    return names | {"x": plain.as_subclass(managed.ManagedTensor).clone()}


def block(statement: str, names: dict[str, Any]) -> Block:
    """Seconds per call."""
    timer = timeit.Timer(statement, timer=clock_of(None), globals=names)
    timer.timeit(20)
    return lambda: timer.timeit(50) / 50


def measure_pairs(
    statements: dict[str, tuple[str, str]], names: dict[str, Any], grad: bool, rounds: int
) -> Report:
    """Per statement: us of the first form, and how many us more the second takes."""
    report: Report = {}
    with torch.set_grad_enabled(grad):
        for name, (first, second) in statements.items():
            subjects = {"control": block(first, names), "managed": block(second, names)}
            pairs = interleave(block(first, names), subjects, rounds)
            us = {k: [(v * 1e6, b * 1e6) for v, b in p] for k, p in pairs.items()}
            report[name] = {"first_us": statistics.median(b for _, b in us["control"])}
            report[name] |= {kind: differences(us[kind]).as_dict() for kind in us}
    return report


def settled_step(model: str, size: str, scattered: bool) -> Block:
    """Seconds of one step on the wall: backward passes of simulated devices have threads."""
    module, data, target = make_model(model, size, "cpu")
    net = managed.ManagedModule.from_module(module)
    for i, tensor in enumerate([*net.parameters(), *net.buffers()]):  # not placed, so they settle
        managed._C.move(tensor, f"sim:{i % 3 if scattered else 0}")
    data, target = (t.as_subclass(managed.ManagedTensor).to("sim:0") for t in (data, target))
    step = make_step(net, data, target, foreach=True)
    for _ in range(4):
        step()

    def one() -> float:
        start = time.perf_counter()
        step()
        return time.perf_counter() - start

    return one


def measure_settled(rounds: int, builds: int) -> Report:
    """Per model: ms on one simulated device, and the ratio of the scattered one to it."""
    report: Report = {}
    for model, size in MODELS:
        turns = 40 if size == "tiny" else rounds  # a tiny step takes a millisecond, and varies more
        pairs: dict[str, list[tuple[float, float]]] = {"control": [], "managed": []}
        for _ in range(builds):
            subjects = {
                "control": settled_step(model, size, scattered=False),
                "managed": settled_step(model, size, scattered=True),
            }
            found = interleave(settled_step(model, size, scattered=False), subjects, turns)
            for kind, more in found.items():
                pairs[kind] += more
            gc.collect()
        row: Report = {"first_ms": statistics.median(b for _, b in pairs["control"]) * 1e3}
        report[f"{model} {size}"] = row | {k: ratios(p).as_dict() for k, p in pairs.items()}
    return report


def measure_calls(rounds: int) -> Report:
    names = operands(grad=False)
    blocks = {name: block(statement, names) for name, statement in CALLS.items()}
    runs: dict[str, list[float]] = {name: [] for name in blocks}
    for _ in range(rounds):
        for name, run in blocks.items():
            runs[name].append(run() * 1e6)
    return {name: statistics.median(values) for name, values in runs.items()}


def print_pairs(title: str, report: Report, unit: str, form: str) -> None:
    rows = []
    for name, row in report.items():
        m = row["managed"]
        interval = f"{m['low']:{form}} .. {m['high']:{form}}"
        shown = [f"{row[k]['median']:{form}}" for k in ("control", "managed")]
        rows.append([name, f"{row['first_' + unit]:.1f}", *shown, interval])
    print_table(title, [unit, "control", "managed", "95 % interval"], rows)


def targets_of(results: Report) -> list[tuple[str, float, float]]:
    """(what, measured, limit)"""
    limits = {"no grad": 1.0, "grad": 2.0}
    found = [
        (f"kept copy, {name}, {mode}, us", row["managed"]["median"], limit)
        for mode, limit in limits.items()
        for name, row in results["hits"][mode].items()
    ]
    return found + [
        (f"settled step, {name}", row["managed"]["median"], 1.15)
        for name, row in results["settled"].items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, wider intervals")
    parser.add_argument("--check", action="store_true", help="exit status 1 for a missed target")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "placement.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    gc.disable()
    managed.simulate(devices=DEVICES, memory=MEMORY)
    managed.COPY_WARNING = 0  # operands are written and copied on purpose
    rounds = 20 if options.quick else 150
    results: Report = {"machine": machine(), "quick": options.quick, "copies": {}, "hits": {}}
    for kind, statements in (("copies", COPIES), ("hits", HITS)):
        for mode in ("no grad", "grad"):
            grad = mode == "grad"
            # What is written in place must not be a leaf that needs a gradient.
            names = operands(grad and kind == "hits")
            results[kind][mode] = measure_pairs(statements, names, grad, rounds)
            print_pairs(f"{kind}, {mode}: us more", results[kind][mode], "us", "+.2f")
    results["settled"] = measure_settled(*((5, 2) if options.quick else (40, 5)))
    print_pairs("settled step, time over one device", results["settled"], "ms", ".3f")
    results["calls"] = measure_calls(rounds)
    rows = [[name, f"{us:.1f}"] for name, us in results["calls"].items()]
    print_table("calls, us", ["median"], rows)
    results["targets"] = verdicts(targets_of(results))
    write(results, options.out)
    return int(options.check and not all(t["pass"] for t in results["targets"]))


if __name__ == "__main__":
    sys.exit(main())
