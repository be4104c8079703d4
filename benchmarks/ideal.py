"""Training in too little memory, beside the most that swapping allows.

    python benchmarks/ideal.py [--quick] [--check] [--models bert-large,lstm] [--machines A100-40]
                               [--over 1.25,2,4] [--activations] [--json FILE]

Ten models on five machines (study.py), each on one simulated device without values. Under a budget
of its peak divided by x: the part of the unlimited throughput that training reaches with each
policy, which is the virtual time of a step without a budget over that with it, three steps long
after three others. Beside it
bound   what no schedule of whole storages can exceed (bound.c), from the operators, storages and
        times that the engine itself noted without a budget;
on demand, disturbed   the learned policy, but nothing comes back before it is needed; or with a
        wrong record: times by up to a factor of two and a fifth of noise, and then one operator in
        200 not seen, and as many that are none;
study   the same cell in the study: LRU / a plan from the recorded step / the bound. Its programs
        are somewhat smaller (its optimizer is one operator a parameter) and its device has no host.
A device that waits for the host to issue operators has time for copies that nobody counts, so
`idle` says how much of the unlimited step it waited.

--activations: only so much is missing as activations can give, 18 % of the peak, on three machines.
Less than 5 % of the time is to be lost on an RTX 4090 and 2 % on a GH200, and on an A100, where the
bound itself loses more, 3 % of the bound.

--check: the exit status is 1 where the learned policy is below 0.95 of the bound at the median,
below 0.80 anywhere (0.75 for the LSTM), or more than 2 % slower than LRU anywhere, or below 0.92 at
the median when disturbed; and where anybody is faster than the bound, which then is none.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from bound import Link, least_time, recorded
from budgeted import DISTURBED, ON_DEMAND, vacated, without_handle
from furthest import Infeasible
from report import Report, print_table, verdicts, write
from study import MACHINES, MODELS, Cell, Masters, cells
from virtual import apart, compared, options, percent, placed, pressed, simulate, timed

QUICK = (("bert-large", "resnet152"), ("A100-40",), (1.25, 2.0, 4.0))
LEARNED, BASE = "learned", "lru"
#: The peak over a budget that is 18 % less, and the part of the time that may be lost by machine.
ACTIVATIONS, LOST = 1 / (1 - 0.18), {"RTX4090": 0.05, "GH200": 0.02}
OF_BOUND = ("A100-40", 0.03)
ALSO = (ON_DEMAND, DISTURBED)


class Training:
    """A model and its data on the device, under whatever budget stands."""

    def __init__(self, name: str, batch: int) -> None:
        build, adam = MODELS[name]
        torch.set_default_dtype(torch.float32 if name.endswith("32") else torch.bfloat16)
        try:
            with torch.device("meta"):
                model = build()
        finally:
            torch.set_default_dtype(torch.float32)
        dtype = next(model.parameters()).dtype
        self.model = placed(model)
        data = (placed(t) for t in model.data(batch))
        self.data = [t.to(dtype) if t.is_floating_point() else t for t in data]
        self.optimizer = Masters(self.model.parameters(), adam)

    def step(self) -> None:
        self.model(*self.data).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def group(group_of: list[Cell]) -> Report:
    """Cells that differ in how much is missing only, in this process."""
    first = group_of[0]
    preset = MACHINES[first.machine]
    simulate(preset)

    def make() -> Callable[[], None]:
        return Training(first.model, first.batch).step

    with vacated():
        step = make()
        free = timed(step)
        program, took = recorded(step)
        others = without_handle()
        del step
    link = Link(preset.host_bytes_per_ns, preset.host_bytes_per_ns, preset.host_latency_ns)
    work = sum(took) * 1e-9
    report: Report = {"free": free, "operators": len(took), "work_s": work, "cells": []}
    for c in group_of:
        budget = int(free["peak"] / c.over)
        found = {p: pressed(make, budget, p) for p in compared(*ALSO)}
        for row in found.values():
            if "step_s" in row:
                row["part"] = free["step_s"] / row["step_s"]
        try:
            least = least_time(program, took, budget - others, link) * 1e-9
            most: float | None = min(1.0, free["step_s"] / least)
        except Infeasible:
            most = None
        one = {"cell": c._asdict(), "budget": budget, "bound": most, "policies": found}
        report["cells"].append(one)
    return report


def rows(report: Report, names: list[str]) -> list[list[str]]:
    table = []
    for one in report["cells"]:
        c = Cell(**one["cell"])
        reached = [one["policies"][p].get("part") for p in names]
        best = max((r for r in reached if r is not None), default=None)
        over = best / one["bound"] if best is not None and one["bound"] else None
        table.append(
            [
                f"{c.mode} {c.machine} {c.model} {c.batch}, {c.over:g}x",
                f"{one['budget'] / 1e9:.1f} GB",
                f"{100 * report['free']['idle']:.1f}",
                *map(percent, reached),
                percent(one["bound"]),
                percent(over),
                "/".join(map(percent, (c.lru, c.planned, c.bound))),
            ]
        )
    return table


def targets(reports: list[Report]) -> list[tuple[str, float, float]]:
    """All but the first are of the learned policy."""
    over = (
        row["part"] / one["bound"]
        for report in reports
        for one in report["cells"]
        for row in one["policies"].values()
        if "part" in row and one["bound"]
    )
    found, ratios = [("any policy over the bound", max(over, default=0.0), 1.001)], []
    for one in (one for report in reports for one in report["cells"]):
        c = Cell(**one["cell"])
        if LEARNED not in one["policies"]:
            continue
        part = one["policies"][LEARNED].get("part", 1e-9)  # no room is as good as for ever
        name = f"{c.mode} {c.machine} {c.model}, {c.over:g}x"
        if one["bound"]:
            ratios.append(one["bound"] / part)
            found.append((f"{name}: bound over it", ratios[-1], 1 / least_ratio(c)))
        base = one["policies"][BASE].get("part")
        if base is not None:
            found.append((f"{name}: LRU over it", base / part, 1.02))
    if ratios:
        found.append(("median of the bound over it", statistics.median(ratios), 1 / 0.95))
    disturbed = [
        one["bound"] / one["policies"][DISTURBED].get("part", 1e-9)
        for report in reports
        for one in report["cells"]
        if one["bound"] and DISTURBED in one["policies"]
    ]
    if disturbed:
        limit = 1 / 0.92
        found.append(
            ("disturbed: median of the bound over it", statistics.median(disturbed), limit)
        )
    return found


def targets_of_activations(reports: list[Report]) -> list[tuple[str, float, float]]:
    found = []
    for one in (one for report in reports for one in report["cells"]):
        c = Cell(**one["cell"])
        part = one["policies"].get(LEARNED, {}).get("part", 1e-9)
        if c.machine in LOST:
            limit = 1 + LOST[c.machine]
            found.append((f"{c.machine} {c.model}: unlimited over it", 1 / part, limit))
        elif one["bound"]:
            limit = 1 + OF_BOUND[1]
            found.append((f"{c.machine} {c.model}: bound over it", one["bound"] / part, limit))
    return found


def least_ratio(c: Cell) -> float:
    return 0.75 if c.model == "lstm" else 0.80


def summary(reports: list[Report], names: list[str]) -> None:
    all_cells = [one for report in reports for one in report["cells"]]
    table = []
    for p in names:
        both = [(one["policies"][p].get("part"), one["bound"]) for one in all_cells]
        ratios = sorted(part / most for part, most in both if part and most)
        missing = sum(part is None for part, _ in both)
        if ratios:
            figures = (ratios[0], ratios[len(ratios) // 10], statistics.median(ratios))
            table.append([p, *map(percent, figures), str(len(ratios)), str(missing)])
    columns = ["least", "10th per cent", "median", "cells", "no room"]
    print_table("per cent of the bound", columns, table)


def less_activations(studied: list[Cell]) -> list[Cell]:
    """The models whose batch fills the machine, once each; the 1.3B is nearly all weights there."""
    found = {
        (c.machine, c.model): c._replace(over=ACTIVATIONS, lru=None, planned=None, bound=None)
        for c in studied
        if c.mode == "S1" and c.machine in (*LOST, OF_BOUND[0]) and c.model != "gpt-1.3b"
    }
    return list(found.values())


def choose(asked: argparse.Namespace) -> list[list[Cell]]:
    """What was asked for, in groups with one unlimited step."""
    models, machines, overs = QUICK if asked.quick else (None, None, None)
    wanted_models = asked.models.split(",") if asked.models else models
    wanted_machines = asked.machines.split(",") if asked.machines else machines
    wanted_overs = [float(x) for x in asked.over.split(",")] if asked.over else overs
    groups: dict[Any, list[Cell]] = {}
    told = less_activations(cells()) if asked.activations else cells()
    for c in told:
        fits = (
            (not wanted_models or c.model in wanted_models)
            and (not wanted_machines or c.machine in wanted_machines)
            and (not wanted_overs or c.over in wanted_overs)
            and (not asked.quick or c.mode == "S1")
        )
        if fits:
            groups.setdefault((c.mode, c.machine, c.model, c.batch), []).append(c)
    return list(groups.values())


def main() -> int:
    parser = options(__file__, __doc__, "two models on one machine")
    parser.add_argument("--models", help=f"with commas; {','.join(MODELS)}")
    parser.add_argument("--machines", help=f"with commas; {','.join(MACHINES)}")
    parser.add_argument("--over", help="the peak over the budget, with commas")
    parser.add_argument("--activations", action="store_true", help="18 %% of the peak is missing")
    asked = parser.parse_args()
    if asked.group:
        print(json.dumps(group([Cell(*c) for c in json.loads(asked.group)])))
        return 0
    groups = choose(asked)
    if not groups:
        raise SystemExit("the study has no such cell")
    names, reports = compared(*ALSO), []
    columns = ["budget", "idle", *names, "bound", "best/bound", "study"]
    for one in groups:
        reports.append(apart(__file__, one))
        c = one[0]
        title = f"per cent of unlimited: {c.model}, {c.machine}"
        print_table(title, columns, rows(reports[-1], names))
        sys.stdout.flush()
    summary(reports, names)
    aims = targets_of_activations if asked.activations else targets
    missed = [t for t in verdicts(aims(reports)) if not t["pass"]]
    if LEARNED not in names:
        print(f"\nthis build has no policy {LEARNED!r}, of which the targets are")
    write({"policies": names, "groups": reports, "missed": missed}, asked.out)
    return int(asked.check and (bool(missed) or LEARNED not in names))


if __name__ == "__main__":
    sys.exit(main())
