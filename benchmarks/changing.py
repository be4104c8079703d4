"""Training whose steps are not alike: what it costs to learn from steps where none repeats.

    python benchmarks/changing.py [--quick] [--check] [--loops shapes,order] [--parts 0.8,0.6]
                                  [--json FILE]

One simulated A100 40 GB without values; the model is 24 layers of a transformer, and the budget a
part of the peak of the largest step. Each loop does the same 40 steps with and without learning,
and the table has their virtual times over each other.

shapes    sequences of another length in each step, 256 to 1,024 in steps of 32
some      one of four lengths, drawn anew for each step: nothing repeats one after the other
order     the layers in another order in each step
depth     each layer is left out with one chance in five, in each step anew
looks     a look without gradients after each step of training, and each third time none
alike     nothing changes: what is won where there is something to learn

--check: the exit status is 1 where learning makes a loop that changes more than 3 % slower.
"""

from __future__ import annotations

import json
import random
import sys

import torch
from budgeted import LEARNED, choose, vacated
from report import Report, print_table, verdicts, write
from torch import nn
from training import DEVICE
from virtual import apart, options, percent, placed, simulate

import managed
from managed._simulated.presets import PRESETS

PRESET, WITHOUT = "a100-40g", "greedy_dual"  # the policy of both, less what is learned
STEPS, SEED, LIMIT = 40, 7, 1.03
WIDTH, LAYERS, BATCH, LONGEST = 1024, 24, 8, 1024
PARTS, QUICK = "0.9,0.75,0.6", "0.75"
COPIES = ("spill", "spare", "restore")
CHANGING = ("shapes", "some", "order", "depth", "looks")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.device("meta"):
            layers = [
                nn.TransformerEncoderLayer(WIDTH, 16, batch_first=True, norm_first=True, dropout=0)
                for _ in range(LAYERS)
            ]
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor, order: list[int]) -> torch.Tensor:
        for i in order:
            x = self.layers[i](x)
        return x.square().mean()


class Loop:
    """The same steps each time one is made: what changes comes from a seed."""

    def __init__(self, name: str) -> None:
        self.name, self.draw, self.at = name, random.Random(SEED), 0
        self.model = placed(Model())
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def length(self) -> int:
        if self.name == "shapes":
            return 32 * self.draw.randint(8, LONGEST // 32)
        return self.draw.choice((256, 512, 768, LONGEST)) if self.name == "some" else LONGEST

    def layers(self) -> list[int]:
        order = list(range(LAYERS))
        if self.name == "order":
            self.draw.shuffle(order)
        return [i for i in order if self.name != "depth" or self.draw.random() >= 0.2]

    def step(self) -> None:
        x, order = placed(torch.empty(BATCH, self.length(), WIDTH)), self.layers()
        self.model(x, order).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.at += 1
        if self.name == "looks" and self.at % 3:
            with torch.no_grad():
                self.model(x, order)


def run(name: str, budget: int | None, policy: str) -> Report:
    """STEPS steps; in this process."""
    with vacated():
        choose(policy)
        loop = Loop(name)
        loop.step()  # the optimizer's state is made
        managed.budget(DEVICE, budget)
        torch.sim.synchronize(DEVICE)
        torch.sim.reset_peak_memory_stats(DEVICE)
        before, start = managed.stats(), torch.sim.elapsed()
        try:
            for _ in range(STEPS):
                loop.step()
        except managed.OutOfMemoryError as error:
            return {"why": str(error).splitlines()[0]}
        took, after = torch.sim.elapsed() - start, managed.stats()
        moved = sum(
            after[f"{k}_bytes"] - before[f"{k}_bytes"] for k in ("spill", "spare", "restore")
        )
        return {"seconds": took, "moved": moved, "peak": torch.sim.max_memory_allocated(DEVICE)}


def group(name: str, parts: list[float]) -> Report:
    simulate(PRESETS[PRESET])
    free = run(name, None, WITHOUT)
    report: Report = {"name": name, "free": free, "cells": []}
    for part in parts:
        budget = int(free["peak"] * part)
        found = {policy: run(name, budget, policy) for policy in (WITHOUT, LEARNED)}
        one: Report = {"part": part, "budget": budget, "policies": found}
        if all("seconds" in found[p] for p in found):
            one["over"] = found[LEARNED]["seconds"] / found[WITHOUT]["seconds"]
        report["cells"].append(one)
    return report


def rows(report: Report) -> list[list[str]]:
    table = []
    for one in report["cells"]:
        row = [f"{report['name']}, {percent(one['part'])} %", f"{one['budget'] / 1e9:.1f} GB"]
        for found in one["policies"].values():
            fits = "seconds" in found
            row += [f"{found['seconds'] / report['free']['seconds']:.2f}" if fits else "no room"]
            row += [f"{found['moved'] / STEPS / 1e9:.2f}" if fits else ""]
        table.append([*row, f"{one['over']:.3f}" if "over" in one else ""])
    return table


def targets(reports: list[Report]) -> list[tuple[str, float, float]]:
    return [
        (f"{r['name']}, {percent(one['part'])} %", one.get("over", float("inf")), LIMIT)
        for r in reports
        for one in r["cells"]
        if r["name"] in CHANGING
    ]


def main() -> int:
    parser = options(__file__, __doc__, f"a budget of {QUICK} of the peak")
    parser.add_argument("--loops", default=",".join((*CHANGING, "alike")), help="with commas")
    parser.add_argument("--parts", help=f"of the peak, with commas; {PARTS}")
    asked = parser.parse_args()
    if asked.group:
        print(json.dumps(group(*json.loads(asked.group))))
        return 0
    parts = [float(p) for p in (asked.parts or (QUICK if asked.quick else PARTS)).split(",")]
    names: list[str] = asked.loops.split(",")
    if unknown := set(names) - {*CHANGING, "alike"}:
        raise SystemExit(
            f"there is no loop {unknown.pop()!r}; there are {', '.join(CHANGING)}, alike"
        )
    reports: list[Report] = [apart(__file__, [name, parts]) for name in names]
    columns = ["budget", "without", "GB a step", LEARNED, "GB a step", "over it"]
    title = f"{STEPS} steps over the time without a budget"
    print_table(title, columns, [row for report in reports for row in rows(report)])
    missed = [t for t in verdicts(targets(reports)) if not t["pass"]]
    write({"loops": reports, "missed": missed}, asked.out)
    return int(asked.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
