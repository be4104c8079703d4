"""What it costs to train, and to run, a model that does not fit.

    python benchmarks/memory.py [--quick] [--check] [--only budgets,inference,feasible,throughput]
                                [--model mlp,cnn,transformer,lstm,gpt2] [--fractions 0.6,0.4]
                                [--optimizer adamw] [--out FILE]

On one simulated device, in one process:
budgets     each model is trained with budgets that are fractions of the most it holds without
            one, by each policy of choosing victims. Bytes that left with a copy, left without one
            and came back in a step, the time of a step over that without a budget, and beside
            them the bytes that furthest.py and least.py say had to be copied out: "kept" where what
            the program holds has to be kept, "oracle" where it may be known that it is never used
            again. The run fails when a loss or a weight differs in a bit or the device held more
            than its budget.
inference   passes through a model four times the budget.
feasible    the least budget in which each model trains, over what its largest operator needs.
throughput  spilling and restoring 1 GiB, over memcpy of as much; once as the C library gives
            memory, where freed blocks return to the system, and once where they are kept, as
            devices' allocators do and as it is in the other parts (malloc.py).
Everything but time repeats exactly. Writes build/bench/memory.json. With --check the exit status
is 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import rooms
import torch
import transfers
from budgeted import LEARNED, Pressed, bounds, free, policies, pressed
from malloc import keep_freed_memory
from report import Report, machine, print_table, verdicts, write
from training import MODELS, OPTIMIZERS, Model, choose
from tree import ROOT

import managed

MEMORY = "4GiB"
FRACTIONS = "1.0,0.8,0.6,0.5,0.4,0.3"
PARTS = "budgets,inference,feasible,throughput"
MiB = 2**20
COLUMNS = (
    "peak/budget", "spilled", "spared", "dropped", "restored", "time",
    "kept: furthest", "bound", "ratio", "oracle: furthest", "bound", "ratio",
)  # fmt: skip


def over(value: float, base: float) -> float:
    return 1.0 if value == base else math.inf if base == 0 else value / base


def row(found: Pressed, budget: int, known: dict[str, dict[str, float]]) -> Report:
    if found.times is None:
        raise ValueError("it was not timed")
    out, back = found.moved["spill"] + found.moved["spare"], found.moved["restore"]
    return {
        "peak": found.peak / budget,
        "moved": found.moved,
        "time": found.times.as_dict(),
        "spilled_over_furthest": {k: over(out, b["furthest_out"]) for k, b in known.items()},
        "copied_over_furthest": {k: over(out + back, b["furthest_both"]) for k, b in known.items()},
        "copied_over_bound": {k: over(out + back, b["least_both"]) for k, b in known.items()},
    }


def fail_unless_right(found: Pressed, expected: Pressed, budget: int, what: str) -> None:
    if found.peak > budget:
        raise SystemExit(f"{what}: {found.peak} bytes on the device, the budget is {budget}")
    pairs = zip(expected.results, found.results, strict=True)
    if not all(torch.equal(a, b) for a, b in pairs):
        raise SystemExit(f"{what}: other numbers than without a budget")


def measure_model(model: Model, optimizer: str, fractions: list[float], rounds: int) -> Report:
    expected = free(model, optimizer)
    report: Report = {"peak": expected.peak, "fractions": {}}
    for fraction in fractions:
        budget = int(expected.peak * fraction)
        found: Report = {"budget": budget, "policies": {}}
        for policy in policies():
            outcome = pressed(model, optimizer, budget, policy, rounds)
            if outcome.why:
                found = {"budget": budget, "why": outcome.why}
                break
            fail_unless_right(outcome, expected, budget, f"{model.name}, {fraction}, {policy}")
            if "bounds" not in found:
                found["bounds"] = bounds(model, optimizer, budget)
            found["policies"][policy] = row(outcome, budget, found["bounds"])
        report["fractions"][str(fraction)] = found
    return report


def mib(value: float) -> str:
    return f"{value / MiB:.1f}"


def print_model(name: str, report: Report) -> None:
    rows = []
    for fraction, found in report["fractions"].items():
        if "why" in found:
            rows.append([f"{fraction} does not fit", *[""] * len(COLUMNS)])
            continue
        for policy, r in found["policies"].items():
            cells = [f"{r['peak']:.3f}", *(mib(v) for v in r["moved"].values())]
            cells.append(f"{r['time']['median']:.2f}")
            for kind, known in found["bounds"].items():
                cells += [mib(known["furthest_out"]), mib(known["least_out"])]
                cells.append(f"{r['spilled_over_furthest'][kind]:.2f}")
            rows.append([f"{fraction} {policy}", *cells])
    title = f"{name}: peak {mib(report['peak'])} MiB; MiB of one step"
    print_table(title, COLUMNS, rows)
    for fraction, found in report["fractions"].items():
        if "why" in found:
            print(f"{fraction}: {found['why']}")


def print_inference(report: Report) -> None:
    rows = [
        [name, *(f"{found[k] / MiB:.2f}" for k in ("spill", "drop", "restore"))]
        for name, found in report["policies"].items()
    ]
    title = f"inference, {report['used'] / MiB:.2f} MiB in {mib(report['budget'])}: MiB of one pass"
    print_table(title, ["spilled", "dropped", "restored"], rows)


def print_feasible(report: Report) -> None:
    rows = [
        [name, mib(r["budget"]), mib(r["operator"]), f"{r['budget'] / r['operator']:.3f}"]
        for name, r in report.items()
    ]
    print_table("least budget, MiB", ["budget", "largest operator", "ratio"], rows)


def print_throughput(title: str, report: Report) -> None:
    rows = []
    for name, r in report.items():
        part = r["part"]
        interval = f"{part['low']:.2f} .. {part['high']:.2f}"
        cells = [f"{r['memcpy_gib_s']:.1f}", f"{part['median']:.2f}", interval]
        rows.append([name, *cells, f"{r['new_pages']:.0%}"])
    print_table(
        f"speed over memcpy, {title}", ["GiB/s", "part", "95 % interval", "new pages"], rows
    )


def targets_of(results: Report) -> list[tuple[str, float, float]]:
    """(what was promised, measured, limit)"""
    found: list[tuple[str, float, float]] = []
    for name, report in results.get("budgets", {}).items():
        rows = [r["policies"].values() for r in report["fractions"].values() if "policies" in r]
        for kind in ("kept", "oracle"):
            for key, words in (
                ("spilled_over_furthest", "spilled over furthest"),
                ("copied_over_bound", "copied over the bound"),
            ):
                worst = max((min(r[key][kind] for r in each) for each in rows), default=0.0)
                found.append((f"{name}, best policy: {words}, {kind}", worst, 2.0))
        for fraction, r in report["fractions"].items():
            if "policies" in r:
                both = r["policies"][LEARNED]["copied_over_furthest"]["kept"]
                words = f"{name} at {fraction}, learned: copied out and back over furthest, kept"
                found.append((words, both, 1.2))
    if "inference" in results:
        report = results["inference"]
        for name, r in report["policies"].items():
            found.append((f"inference, {name}: bytes spilled", r["spill"], 0))
            once = r["restore"] / report["used"]
            found.append((f"inference, {name}: returns of each byte", once, 1))
    for name, r in results.get("feasible", {}).items():
        ratio = r["budget"] / r["operator"]
        found.append((f"{name}: least budget over the largest operator", ratio, 1.3))
    for name, r in results.get("throughput", {}).items():
        found.append((f"{name}: memcpy over it", 1 / r["part"]["median"], 1 / 0.9))
    return found


def run(options: argparse.Namespace) -> Report:
    results: Report = {"machine": machine(), "optimizer": options.optimizer}
    parts, models, quick = options.only.split(","), choose(options.model), options.quick
    fractions = [float(f) for f in (options.fractions or FRACTIONS).split(",")]
    if quick and not options.fractions:
        fractions = [0.5]
    size, rounds = (256, 5) if quick else (1024, 10)
    if "throughput" in parts:
        results["throughput, new memory"] = transfers.measure(size, (256, 16, 1), rounds)
        print_throughput("new memory", results["throughput, new memory"])
    keep_freed_memory()
    if "throughput" in parts:
        results["throughput"] = transfers.measure(size, (256, 16, 1), rounds)
        print_throughput("kept memory", results["throughput"])
    if "budgets" in parts:
        results["budgets"] = {}
        for model in models:
            report = measure_model(model, options.optimizer, fractions, 1 if quick else 4)
            results["budgets"][model.name] = report
            print_model(model.name, report)
    if "inference" in parts:
        results["inference"] = rooms.inference()
        print_inference(results["inference"])
    if "feasible" in parts:
        accuracy = 0.1 if quick else 0.02
        results["feasible"] = {
            m.name: rooms.feasible(m, options.optimizer, accuracy) for m in models
        }
        print_feasible(results["feasible"])
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer budgets and rounds")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    parser.add_argument("--only", default=PARTS, help="parts, with commas")
    parser.add_argument("--model", default=",".join(MODELS), help="models, with commas")
    parser.add_argument("--fractions", help=f"of the peak, with commas; {FRACTIONS}")
    parser.add_argument("--optimizer", default="adamw", choices=OPTIMIZERS)
    parser.add_argument("--feasible", action="store_const", const="feasible", dest="only")
    parser.add_argument("--throughput", action="store_const", const="throughput", dest="only")
    default = ROOT / "build" / "bench" / "memory.json"
    parser.add_argument("--out", "--json", type=Path, default=default, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    managed.simulate(devices=1, memory=MEMORY)
    results = run(options)
    results["targets"] = verdicts(targets_of(results))
    write(results, options.out)
    return int(options.check and not all(t["pass"] for t in results["targets"]))


if __name__ == "__main__":
    sys.exit(main())
