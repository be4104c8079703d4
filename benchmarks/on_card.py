"""Training and inference on a CUDA card in too little memory, by its own clock.

    python benchmarks/on_card.py [--only copies,training,inference] [--models gpt2-medium,tiny]
                                 [--fractions 0.8,0.6] [--any-kernels] [--check] [--out FILE]

What the other benchmarks say of simulated devices is asked of a card here. A budget makes it small.

copies      256 x 4 MiB and 16 x 64 MiB leave and come back, over plain asynchronous copies of as
            much between the device and pinned memory; real time until all has arrived. And how
            long it takes to pin 16 MiB of the host.
training    models of the study (study.py) under fractions of their peak: a step by the clock of
            the card, over one without a budget, least recently used and learned; bytes copied out
            and in; how often a thread waited for a copy; and what no schedule is below (bound.c),
            from the operators and times that were noted without a budget. Beside it the same
            training of plain tensors, as it is ("torch") and under torch's save_on_cpu(), which
            puts what the backward pass needs on the host; these also without a budget. Every
            weight must be that of the training without a budget to the last bit, but with
            --any-kernels: then torch may take those that do not repeat, which are faster; and
            under save_on_cpu(), which changes strides, so that products may add in another order.
inference   64 layers of which a part fits, over the larger of a pass without a budget and the time
            in which what is missing can be copied.

With --check the exit status is 1 when a bit differs, when a thread waits in a settled step, when
learned is more than 2 % slower than LRU or, in inference, more than 1.1 times the least.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # so that products repeat to the bit

import torch
from bound import Link, least_time
from budgeted import LEARNED, choose
from furthest import Infeasible, Program, parse
from report import Report, machine, print_table, verdicts, write
from study import MODELS, Language, Masters
from torch import nn
from torch.autograd.graph import save_on_cpu
from tree import ROOT

import managed
from managed import _C

CARD = "cuda:0"
MIB, GB = 2**20, 1e9
SETTLE, MEASURED = 6, 6  # steps
TRIED = 40  # steps in which it is found out how much room the pieces of the card's memory are
BATCHES = {"gpt2-medium": 8, "gpt2-large": 8, "bert-large": 32, "resnet152": 96, "tiny": 4}
POLICIES = ("lru", LEARNED)
PLAIN = {"torch": nullcontext, "save_on_cpu": partial(save_on_cpu, pin_memory=True)}

Step = Callable[[], Any]


def tiny() -> Language:
    """For virtual GPUs, which compute on the host."""
    return Language(2, 512, 8, 1000, 64, True)


class Adam(Masters):
    """As if each step were the first: before it the correction of its means divides by 0."""

    def start(self, p: torch.Tensor) -> dict[str, Any]:
        return super().start(p) | {"count": torch.ones((), device=p.device)}


class Training:
    """A model of the study, its data and its optimizer on the card."""

    def __init__(
        self,
        name: str,
        put: Callable[[Any], Any],
        saving: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.saving = saving
        torch.manual_seed(0)
        build, adam = (tiny, True) if name == "tiny" else MODELS[name]
        model = build().to(torch.bfloat16)
        data = model.data(BATCHES[name])
        images = (torch.rand_like(t).bfloat16() if t.is_floating_point() else t for t in data)
        self.data = [put(t) for t in images]
        self.model = put(model)
        self.optimizer = Adam(self.model.parameters(), adam)

    def step(self) -> None:
        with self.saving():
            loss = self.model(*self.data)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def results(self) -> list[torch.Tensor]:
        return [p.detach().cpu() for p in self.model.parameters()]


def on_card(thing: Any) -> Any:
    if isinstance(thing, nn.Module):
        return managed.ManagedModule.from_module(thing).to(CARD)
    return thing.as_subclass(managed.ManagedTensor).to(CARD)


def plain_on_card(thing: Any) -> Any:
    return thing.to(CARD)


@contextmanager
def emptied(budget: int | None = None, policy: str = LEARNED) -> Iterator[None]:
    """The card is empty but for what libraries keep, and has so many bytes for the block."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    choose(policy)
    managed.budget(CARD, budget)
    try:
        yield
    finally:
        managed.budget(CARD, None)
        choose(LEARNED)


def timed(step: Step, settle: int = SETTLE) -> Report:
    """A settled step, from the end of the operators of one to that of a later one."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(settle):
        step()
    before = managed.stats()
    torch.cuda.synchronize()
    begin.record()
    start = time.perf_counter()
    for _ in range(MEASURED):
        step()
    issued = time.perf_counter() - start
    end.record()
    end.synchronize()
    after = managed.stats()
    told = ("spill_bytes", "spare_bytes", "restore_bytes", "host_waits")
    found = {k: (after[k] - before[k]) / MEASURED for k in told}
    return found | {
        "step_s": begin.elapsed_time(end) * 1e-3 / MEASURED,
        "peak": torch.cuda.max_memory_reserved(),
        "issued_s": issued / MEASURED,  # until the program had issued it
        "plan": _C.step_state(1),
    }


def recorded(step: Step) -> tuple[Program, list[float]]:
    """A step, and ns from each of its moments to the next."""
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    _C.begin_uses()
    try:
        begin.record()
        step()
        end.record()
    finally:
        program = parse(_C.end_uses())
    end.synchronize()
    whole = begin.elapsed_time(end) * 1e6
    return program, [b - a for a, b in pairwise([*program.begins, whole])]


# ---- copies


def copies(rounds: int) -> Report:
    report: Report = {"ms to pin 16 MiB": 1e3 * pinning()}
    for count, mib in ((256, 4), (16, 64)):
        with emptied():
            tensors = [on_card(torch.zeros(mib * MIB // 4)) for _ in range(count)]
            pinned = [torch.empty(mib * MIB // 4).pin_memory() for _ in range(count)]
            blocks = [torch.empty(mib * MIB // 4, device=CARD) for _ in range(count)]
            heads = [t[:1] for t in tensors]

            def write(heads: list[torch.Tensor] = heads) -> None:
                torch._foreach_add_(heads, 1.0)

            def plain(sources: list[Any], targets: list[Any]) -> None:
                for source, target in zip(sources, targets, strict=True):
                    target.copy_(source, non_blocking=True)

            ways: dict[str, list[float]] = {"out": [], "in": []}
            for _ in range(rounds):
                write()
                out = clocked(lambda b=blocks, p=pinned: plain(b, p))
                ways["out"].append(out / clocked(_C.spill_all))
                back = clocked(lambda b=blocks, p=pinned: plain(p, b))
                ways["in"].append(back / clocked(write))
            size = f"{count} x {mib} MiB"
            for way, parts in ways.items():
                report[f"{way}, {size}"] = statistics.median(parts[1:])
            del tensors, pinned, blocks, heads
    return report


def pinning() -> float:
    """Seconds, of memory that torch has not pinned before."""
    took = [clocked(partial(torch.empty(16 * MIB, dtype=torch.uint8).pin_memory)) for _ in range(5)]
    return statistics.median(took)


def clocked(work: Step) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def links() -> dict[str, float]:
    """Bytes/ns of 256 MiB at once, in each direction."""
    host = torch.empty(256 * MIB, dtype=torch.uint8).pin_memory()
    card = torch.empty(256 * MIB, dtype=torch.uint8, device=CARD)
    ways = {"in": (card, host), "out": (host, card)}
    found = {}
    for way, (target, source) in ways.items():
        copy = partial(target.copy_, source, non_blocking=True)
        found[way] = 256 * MIB / min(clocked(copy) for _ in range(5)) * 1e-9
    return found


# ---- training


def training(name: str, fractions: list[float], link: Link) -> Report:
    with emptied():
        trained = Training(name, on_card)
        free, expected = whole(trained)
        program, took = recorded(trained.step)
        del trained
    ways = {p: partial(Training, name, on_card) for p in POLICIES}
    plain = {w: partial(Training, name, plain_on_card, saving) for w, saving in PLAIN.items()}
    report: Report = {"name": name, "free": free, "operators": len(took), "cells": []}
    report["cells"].append(cell(name, None, None, None, plain, expected))
    for fraction in fractions:
        budget = int(free["peak"] * fraction)
        try:
            bound = max(free["step_s"], least_time(program, took, budget, link) * 1e-9)
        except Infeasible:
            bound = None
        report["cells"].append(cell(name, fraction, budget, bound, ways | plain, expected))
    return report


def cell(
    name: str,
    fraction: float | None,
    budget: int | None,
    bound: float | None,
    ways: dict[str, Any],
    expected: dict[str, list[torch.Tensor]],
) -> Report:
    policies: Report = {}
    for way, make in ways.items():
        policies[way] = pressed(make, budget, way, expected)
        print(name, fraction, way, policies[way], flush=True)
    return {"fraction": fraction, "budget": budget, "bound": bound, "policies": policies}


def whole(subject: Any) -> tuple[Report, dict[str, list[torch.Tensor]]]:
    """Without a budget, and what is computed after as many steps as each policy makes."""
    free = timed(subject.step)
    expected = {"lru": subject.results()}
    for _ in range(TRIED - SETTLE):
        subject.step()
    return free, expected | {LEARNED: subject.results()}


def pressed(
    make: Step, budget: int | None, way: str, expected: dict[str, list[torch.Tensor]]
) -> Report:
    policy = LEARNED if way == LEARNED else "lru"  # which has no say in what plain tensors do
    with emptied(budget, policy):
        try:
            subject = make()
            found = timed(subject.step, TRIED if way == LEARNED else SETTLE)
        except torch.OutOfMemoryError as error:
            return {"why": str(error).splitlines()[0]}
        except torch.AcceleratorError as error:  # the host has no memory to pin
            if way in POLICIES:
                raise
            return {"why": str(error).splitlines()[0]}
        pairs = zip(subject.results(), expected[policy], strict=True)
        return found | {"same_bits": all(torch.equal(a, b) for a, b in pairs)}


# ---- inference


class Chain:
    """64 layers that are all alike."""

    def __init__(self, width: int, batch: int) -> None:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        with torch.device(CARD):
            block = nn.Linear(width, width, dtype=torch.bfloat16)
        for _ in range(64):
            layer = nn.Linear(width, width, dtype=torch.bfloat16, device="meta")
            layers += [layer.to_empty(device="cpu"), nn.ReLU()]
            with torch.no_grad():
                for p, q in zip(layer.parameters(), block.parameters(), strict=True):
                    p.copy_(q)
        self.model = on_card(nn.Sequential(*layers))
        self.x = on_card(torch.rand(batch, width).bfloat16())
        self.y = None

    def step(self) -> None:
        with torch.no_grad():
            self.y = self.model(self.x)

    def results(self) -> list[torch.Tensor]:
        return [self.y.cpu()]


def inference(width: int, batch: int, fractions: list[float], link: Link) -> Report:
    def make() -> Chain:
        return Chain(width, batch)

    with emptied():
        chain = make()
        free, expected = whole(chain)
        held = torch.cuda.memory_allocated()
        del chain
    largest = 2 * width * width + 4 * batch * width
    report: Report = {"name": f"64 x {width}, batch {batch}", "free": free, "cells": []}
    for fraction in fractions:
        budget = int(free["peak"] * fraction)
        missing = max(0, held - max(0, budget - 2 * largest))
        bound = max(free["step_s"], missing / link.bytes_in * 1e-9)
        ways = dict.fromkeys(POLICIES, make)
        report["cells"].append(cell("inference", fraction, budget, bound, ways, expected))
    return report


# ---- what is printed


def rows(report: Report) -> list[list[str]]:
    table = []
    for one in report["cells"]:
        for policy, row in one["policies"].items():
            part = f"{one['fraction']:g}" if one["budget"] else "no budget"
            name = f"{report['name']}, {part}, {policy}"
            if "why" in row:
                table.append([name, "no room", *[""] * 7])
                continue
            bound = one["bound"]
            table.append(
                [
                    name,
                    f"{row['step_s'] * 1e3:.1f} ms",
                    f"{row['step_s'] / report['free']['step_s']:.3f}",
                    f"{row['step_s'] / bound:.3f}" if bound else "-",
                    f"{row['peak'] / GB:.2f}",
                    f"{(row['spill_bytes'] + row['spare_bytes']) / GB:.2f}",
                    f"{row['restore_bytes'] / GB:.2f}",
                    f"{row['host_waits']:g}",
                    "yes" if row["same_bits"] else "NO",
                ]
            )
    return table


def targets(reports: list[Report]) -> list[tuple[str, float, float]]:
    found = []
    for report in reports:
        for one in report["cells"]:
            name = f"{report['name']}, {one['fraction'] or 'no budget'}"
            ran = {p: row for p, row in one["policies"].items() if "why" not in row}
            for policy, row in ran.items():
                if policy == "save_on_cpu":
                    continue
                differ = not row["same_bits"] and torch.are_deterministic_algorithms_enabled()
                found.append((f"{name}, {policy}: bits differ", float(differ), 0.0))
            if LEARNED in ran:
                found.append((f"{name}: waits a step", ran[LEARNED]["host_waits"], 0.0))
                if "lru" in ran:
                    over = ran[LEARNED]["step_s"] / ran["lru"]["step_s"]
                    found.append((f"{name}: learned over LRU", over, 1.02))
                if report["name"].startswith("64"):
                    least = ran[LEARNED]["step_s"] / one["bound"]
                    found.append((f"{name}: learned over the least", least, 1.1))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="copies,training,inference")
    parser.add_argument("--models", default="gpt2-medium,resnet152")
    parser.add_argument("--fractions", default="0.9,0.75,0.6")
    parser.add_argument("--width", type=int, default=8192, help="of the layers of inference")
    parser.add_argument("--batch", type=int, default=2048, help="of inference")
    parser.add_argument("--rounds", type=int, default=15, help="of copies")
    parser.add_argument("--any-kernels", action="store_true", help="also those that do not repeat")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "on_card.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no CUDA card; make bench has what needs none")
    unknown = [m for m in options.models.split(",") if m not in BATCHES]
    if unknown:
        parser.error(f"there is no model {unknown[0]}: {', '.join(BATCHES)}")
    torch.use_deterministic_algorithms(not options.any_kernels)
    torch.backends.cudnn.benchmark = False
    parts = options.only.split(",")
    fractions = [float(f) for f in options.fractions.split(",")]
    torch.empty(1, device=CARD)
    speeds = links()
    link = Link(speeds["in"], speeds["out"], 10_000)
    report: Report = {"machine": machine(), "links": speeds}
    print(report, flush=True)
    if "copies" in parts:
        report["copies"] = copies(options.rounds)
        print_table(
            "over plain copies to and from pinned memory",
            ["part"],
            [[k, f"{v:.3f}"] for k, v in report["copies"].items()],
        )
    reports: list[Report] = []
    if "training" in parts:
        reports += [training(name, fractions, link) for name in options.models.split(",")]
    if "inference" in parts:
        reports.append(inference(options.width, options.batch, fractions, link))
    columns = ["a step", "over free", "over bound", "GB", "out", "in", "waits", "same bits"]
    for one in reports:
        free = one["free"]
        title = f"{one['name']}: {free['step_s'] * 1e3:.1f} ms and {free['peak'] / GB:.2f} GB free"
        print_table(title, columns, rows(one))
    report["reports"] = reports
    report["targets"] = verdicts(targets(reports))
    write(report, options.out)
    return int(options.check and not all(t["pass"] for t in report["targets"]))


if __name__ == "__main__":
    sys.exit(main())
