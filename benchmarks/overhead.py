"""What being managed costs when nothing has to move.

    python benchmarks/overhead.py [--quick] [--check] [--only operators,steps,import]
                                  [--sets N] [--sim [--handles-from BYTES]]

Three parts, each for plain tensors, the same again (control), managed tensors and
a Python `__torch_function__` subclass: nanoseconds per operator on tiny tensors,
the ratio of whole AdamW training steps, and the cost of the import in fresh
processes. Where CUDA is available the first two are measured there as well. With --sim
they are measured on a simulated device instead, where storages have handles by which they could
leave: what it costs that bytes may be spilled, when none are. Storages of a few bytes have none;
--handles-from 1 gives one to each. Where operands lie in memory changes what an operator takes by
a tenth and more; --sets measures operators over so many sets of operands, with gaps between them.
Prints tables and writes build/bench/overhead.json. With --check the exit status
is 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import startup
import torch
from cases import (
    GETTERS,
    MODELS,
    OPERATORS,
    make_model,
    make_operands,
    make_step,
    median_of,
)
from measure import Block, clock_of, differences, interleave, ratios
from report import Report, machine, print_table, verdicts, write
from torch_function import WalkingTensor, wrap_module
from tree import ROOT

import managed
from managed import _C

# as_subclass gives a view, and views of views cost less than views of what owns its bytes; a
# clone owns its bytes, so all kinds start alike.
TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda t: t.clone(),
    "control": lambda t: t.clone(),
    "managed": lambda t: t.as_subclass(managed.ManagedTensor).clone(),
    "torch_function": lambda t: t.as_subclass(WalkingTensor).clone(),
}
MODULES: dict[str, Callable[[torch.nn.Module], torch.nn.Module]] = {
    "plain": lambda m: m,
    "control": lambda m: m,
    "managed": managed.ManagedModule.from_module,
    "torch_function": wrap_module,
}
SUBJECTS = ("control", "managed", "torch_function")
COLUMNS = ("control", "managed", "95 % interval", "__torch_function__")
BLOCK_S = 0.7e-3  # of one operator: long against the clock, short against a machine's drift


def synchronize_of(device: str) -> Callable[[], object] | None:
    return torch.cuda.synchronize if device == "cuda" else None


def operator_block(name: str, operands: dict[str, Any], device: str) -> Block:
    """Seconds per call of the statement."""
    setup = "out = fresh()" if name == "add_" else "pass"
    clock = clock_of(synchronize_of(device))
    timer = timeit.Timer(OPERATORS[name], setup, timer=clock, globals=operands)
    timer.timeit(20)
    number = max(20, int(BLOCK_S / (timer.timeit(50) / 50)))
    return lambda: timer.timeit(number) / number


def with_gaps(
    mark: Callable[[torch.Tensor], torch.Tensor], places: random.Random, held: list[bytearray]
) -> Callable[[torch.Tensor], torch.Tensor]:
    """`mark`, after a few blocks of memory have been taken, which `held` keeps."""

    def marked(t: torch.Tensor) -> torch.Tensor:
        held.extend(bytearray(places.randrange(1, 4096)) for _ in range(places.randrange(4)))
        return mark(t)

    return marked


def measure_operators(device: str, grad: bool, rounds: int, sets: int) -> Report:
    """Per operator: plain ns, and how many ns more each subject takes."""
    places = random.Random(0)
    pairs: dict[str, dict[str, list[tuple[float, float]]]] = {
        name: {kind: [] for kind in SUBJECTS} for name in OPERATORS
    }
    with torch.set_grad_enabled(grad):
        for _ in range(sets):
            held: list[bytearray] = []
            operands = {
                kind: make_operands(with_gaps(mark, places, held), device, grad)
                for kind, mark in TENSORS.items()
            }
            for name in OPERATORS:
                blocks = {kind: operator_block(name, operands[kind], device) for kind in TENSORS}
                more = interleave(blocks.pop("plain"), blocks, max(1, rounds // sets))
                for kind in SUBJECTS:
                    pairs[name][kind] += [(value * 1e9, base * 1e9) for value, base in more[kind]]
    report: Report = {}
    for name, found in pairs.items():
        report[name] = {"plain_ns": statistics.median(base for _, base in found["control"])}
        report[name] |= {kind: differences(found[kind]).as_dict() for kind in SUBJECTS}
    return report


def step_block(kind: str, model: str, size: str, device: str, foreach: bool) -> Block:
    """Seconds of one training step."""
    module, data, target = make_model(model, size, device)
    step = make_step(MODULES[kind](module), TENSORS[kind](data), target, foreach)
    clock = clock_of(synchronize_of(device))

    def block() -> float:
        start = clock()
        step()
        return clock() - start

    return block


def measure_step(
    model: str, size: str, device: str, foreach: bool, rounds: int, builds: int
) -> Report:
    """Plain ms, and each subject's ratio to plain.

    Models are built afresh several times: where they lie in memory matters too.
    """
    pairs: dict[str, list[tuple[float, float]]] = {kind: [] for kind in SUBJECTS}
    for _ in range(builds):
        blocks = {kind: step_block(kind, model, size, device, foreach) for kind in TENSORS}
        for kind, more in interleave(blocks.pop("plain"), blocks, rounds).items():
            pairs[kind] += more
        gc.collect()
    report: Report = {"plain_ms": statistics.median(b for _, b in pairs["control"]) * 1e3}
    return report | {kind: ratios(pairs[kind]).as_dict() for kind in SUBJECTS}


def measure_steps(device: str, quick: bool) -> Report:
    """foreach=True is what AdamW takes by itself on CUDA; on the CPU its default loops instead.

    A tiny step takes a millisecond, so `quick` spares it nothing: 15 pairs of it differ by 3 %.
    """
    report: Report = {}
    for model, size in MODELS:
        rounds, builds = (50, 6) if size == "tiny" else (5, 3) if quick else (20, 6)
        report[f"{model} {size}"] = measure_step(model, size, device, True, rounds, builds)
    looped = measure_step("Transformer", "tiny", device, False, 50, 6)
    return report | {"Transformer tiny, foreach=False": looped}


def print_operators(title: str, report: Report) -> None:
    rows = []
    for name, row in report.items():
        shown = {kind: f"{row[kind]['median']:+.0f}" for kind in SUBJECTS}
        interval = f"{row['managed']['low']:+.0f} .. {row['managed']['high']:+.0f}"
        cells = [shown["control"], shown["managed"], interval, shown["torch_function"]]
        rows.append([name, f"{row['plain_ns']:.0f}", *cells])
    control, ours, subclass = (f"{median_of(report, kind):+.0f}" for kind in SUBJECTS)
    rows.append(["median", "", control, ours, "", subclass])
    print_table(f"{title}: ns more than plain", ["plain ns", *COLUMNS], rows)


def print_steps(title: str, report: Report) -> None:
    rows = []
    for name, row in report.items():
        shown = {kind: f"{row[kind]['median']:.4f}" for kind in SUBJECTS}
        interval = f"{row['managed']['low']:.4f} .. {row['managed']['high']:.4f}"
        cells = [shown["control"], shown["managed"], interval, shown["torch_function"]]
        rows.append([name, f"{row['plain_ms']:.2f}", *cells])
    print_table(f"{title}: AdamW step, time over plain", ["plain ms", *COLUMNS], rows)


def adoption_targets(results: Report) -> list[tuple[str, float, float]]:
    """The same where storages have handles."""
    rows: list[tuple[str, float, float]] = [
        (f"operators, sim, {mode}: median, ns", median_of(table, "managed"), 180)
        for mode in ("no grad", "grad")
        if (table := results.get(f"operators, sim, {mode}"))
    ]
    steps = results.get("steps, sim", {})
    for name, limit in (("Transformer tiny", 1.07), ("Transformer large", 1.01)):
        if name in steps:
            measured = steps[name]["managed"]["median"]
            rows.append((f"AdamW step on sim, {name}, ratio", measured, limit))
    return rows


def targets_of(results: Report) -> list[tuple[str, float, float]]:
    """(what was promised, measured, limit). Figures of CUDA are not judged."""
    rows = adoption_targets(results)
    for mode in ("no grad", "grad"):
        if table := results.get(f"operators, cpu, {mode}"):
            cost = {name: row["managed"]["median"] for name, row in table.items()}
            worst = max(ns for name, ns in cost.items() if name not in GETTERS)
            rows.append((f"operators, {mode}: median, ns", median_of(table, "managed"), 120))
            rows.append((f"operators, {mode}: worst, ns", worst, 350))
            rows.append((f"getters, {mode}: worst, ns", max(cost[g] for g in GETTERS), 30))
    steps = results.get("steps, cpu", {})
    for name, limit in (("Transformer tiny", 1.05), ("Transformer large", 1.01)):
        if name in steps:
            rows.append((f"AdamW step, {name}, ratio", steps[name]["managed"]["median"], limit))
    return rows + (startup.targets(results["import"]) if "import" in results else [])


def devices_to_measure(sim: bool, handles_from: int | None) -> list[str]:
    if sim:
        managed.simulate(devices=1, memory="4GiB")
        if handles_from is not None:
            _C.torture(0, 0, handles_from, False)  # odds of 0: no torture
        return ["sim"]
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def run(parts: list[str], quick: bool, devices: list[str], sets: int) -> Report:
    results: Report = {"machine": machine(), "quick": quick}
    for device in devices:
        if "operators" in parts:
            for mode in ("no grad", "grad"):
                key = f"operators, {device}, {mode}"
                rounds = 15 if quick else 120
                results[key] = measure_operators(device, mode == "grad", rounds, sets)
                print_operators(key, results[key])
        if "steps" in parts:
            key = f"steps, {device}"
            results[key] = measure_steps(device, quick)
            print_steps(key, results[key])
    if "import" in parts:
        results["import"] = startup.measure(3 if quick else 15)
        startup.show(results["import"])
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, wider intervals")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    parser.add_argument("--only", default="operators,steps,import", help="parts, with commas")
    parser.add_argument("--sets", type=int, default=1, help="sets of operands with gaps between")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "overhead.json")
    parser.add_argument("--sim", action="store_true", help="on a simulated device, with handles")
    parser.add_argument("--handles-from", type=int, metavar="BYTES", help="of a storage")
    options = parser.parse_args()
    torch.set_num_threads(1)
    gc.disable()
    devices = devices_to_measure(options.sim, options.handles_from)
    results = run(options.only.split(","), options.quick, devices, options.sets)
    results["targets"] = verdicts(targets_of(results))
    write(results, options.out)
    return int(options.check and not all(record["pass"] for record in results["targets"]))


if __name__ == "__main__":
    raise SystemExit(main())
