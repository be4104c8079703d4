"""Training and inference in less memory: managed beside what PyTorch and accelerate have for it.

    python benchmarks/peers.py [--quick] [--check] [--model mlp,cnn,transformer,lstm,gpt2]
                               [--optimizer adamw] [--out FILE]

The same models on one simulated device, in one process: plain; torch.autograd.graph.save_on_cpu
around the forward pass; torch.utils.checkpoint around each block; and managed with a budget of as
many bytes as each of those two held at most. Inference: plain, accelerate.cpu_offload, and
managed with as much as that held. Peak bytes are the simulator's and repeat exactly. Time is CPU
time of the process over that of the plain model, which is timed before and after each; it is that
of a machine where a transfer is a copy in host memory. Equal means every loss, parameter and
buffer after the same steps is the plain model's, bit for bit. Lines are those that a program
needs beside the plain ones; they are shown. With --check the exit status is 1 when managed did
not fit or gave other numbers. Writes build/bench/peers.json.
"""

from __future__ import annotations

import argparse
import functools
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import torch
from budgeted import managed_on, vacated
from malloc import keep_freed_memory
from measure import interleave, ratios
from report import Report, machine, print_table, write
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint
from training import DEVICE, MODELS, OPTIMIZERS, Model, Trained, choose
from tree import ROOT

import managed

STEPS = 4
MiB = 2**20
LINES = {
    "plain": [],
    "save_on_cpu": ["with torch.autograd.graph.save_on_cpu():"],
    "checkpoint": [
        "for block in blocks:",
        "    block.forward = partial(checkpoint, block.forward, use_reentrant=False)",
    ],
    "cpu_offload": ["accelerate.cpu_offload(model, execution_device=device)"],
    "managed": [
        "model = ManagedModule.from_module(model)",
        "batch = batch.as_subclass(ManagedTensor)",
    ],
}
Make = Callable[[Model, str], Trained]


def placed(thing: Any) -> Any:
    """A plain module that goes to a device of an extension of torch loses what its submodules
    share: it is shared again."""
    there = thing.to(DEVICE)
    for module in there.modules() if isinstance(there, torch.nn.Module) else ():
        if hasattr(module, "tie_weights"):
            module.tie_weights()
    return there


def plain(model: Model, optimizer: str) -> Trained:
    return Trained(model, optimizer, placed)


def on_managed(model: Model, optimizer: str) -> Trained:
    return Trained(model, optimizer, managed_on)


def saving_on_cpu(model: Model, optimizer: str) -> Trained:
    trained = plain(model, optimizer)

    def forward(data: torch.Tensor) -> torch.Tensor:
        with save_on_cpu():
            return trained.module(data)

    trained.forward = forward
    return trained


def with_checkpoints(model: Model, optimizer: str) -> Trained:
    trained = plain(model, optimizer)
    for block in model.blocks(trained.module):
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return trained


PEERS: dict[str, Make] = {"save_on_cpu": saving_on_cpu, "checkpoint": with_checkpoints}


def offloaded(model: Model, optimizer: str) -> Trained:
    del optimizer  # it does not train
    trained = Trained(model, "", lambda thing: thing)
    accelerate.cpu_offload(trained.module, execution_device=torch.device(DEVICE))
    trained.data = placed(trained.data)
    return trained


def infer(trained: Trained) -> torch.Tensor:
    with torch.no_grad():
        return trained.module.eval()(trained.data)


def step_of(trained: Trained, training: bool) -> Callable[[], object]:
    return trained.step if training else lambda: infer(trained)


def held_at_most(
    make: Make, model: Model, optimizer: str, training: bool, budget: int | None
) -> tuple[int, list[torch.Tensor]]:
    """The most on the device, and what came out."""
    with vacated():
        managed.budget(DEVICE, budget)
        trained = make(model, optimizer)
        if not training:
            results = [infer(trained).cpu() for _ in range(2)]
        else:
            for _ in range(STEPS):
                trained.step()
            results = trained.results()
        return torch.sim.max_memory_allocated(DEVICE), results


def time_over_plain(
    make: Make, model: Model, optimizer: str, training: bool, budget: int | None, rounds: int
) -> float:
    """Both models are on the device; the plain one's bytes are added to the budget."""
    with vacated():
        reference = plain(model, optimizer)
        first = step_of(reference, training)
        for _ in range(2):
            first()
        gc.collect()
        beside = torch.sim.memory_allocated(DEVICE)
        room = None if budget is None else budget + beside
        managed.budget(DEVICE, room)
        second = step_of(make(model, optimizer), training)

        def block(step: Callable[[], object], size: int | None) -> float:
            managed.budget(DEVICE, size)
            step()  # what a change of budget moves is not part of a step
            start = time.process_time()
            step()
            step()
            return time.process_time() - start

        subjects = {"": lambda: block(second, room)}
        pairs = interleave(lambda: block(first, None), subjects, rounds, run=rounds)
        return ratios(pairs[""]).median


def compare(model: Model, optimizer: str, training: bool, rounds: int) -> Report:
    """Rows by name. A method that does not work has a row with the reason."""
    peers = PEERS if training else {"cpu_offload": offloaded}
    peak, expected = held_at_most(plain, model, optimizer, training, None)
    report: Report = {"plain": {"peak": peak, "time": 1.0, "equal": True, "lines": 0}}

    def add(name: str, make: Make, budget: int | None) -> int:
        expects = RuntimeError if budget is None else managed.OutOfMemoryError
        try:
            most, results = held_at_most(make, model, optimizer, training, budget)
            equal = all(torch.equal(a, b) for a, b in zip(expected, results, strict=True))
            ratio = time_over_plain(make, model, optimizer, training, budget, rounds)
        except expects as error:
            report[name] = {"why": str(error).splitlines()[0]}
            return 0
        lines = len(LINES[name.split(",")[0]])
        report[name] = {"peak": most, "time": ratio, "equal": equal, "lines": lines}
        return most

    for name, make in peers.items():
        most = add(name, make, None)
        if most:
            add(f"managed, as much as {name}", on_managed, most)
        else:
            add("managed, half of plain", on_managed, peak // 2)
    return report


def print_report(title: str, report: Report) -> None:
    rows = []
    for name, r in report.items():
        if "why" in r:
            rows.append([name, "fails", "", "", ""])
            continue
        equal = "equal" if r["equal"] else "DIFFERENT"
        rows.append([name, f"{r['peak'] / MiB:.1f}", f"{r['time']:.2f}", equal, str(r["lines"])])
    print_table(title, ["peak, MiB", "time", "result", "lines"], rows)
    for name, r in report.items():
        if "why" in r:
            print(f"{name}: {r['why']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--model", default=",".join(MODELS), help="models, with commas")
    parser.add_argument("--optimizer", default="adamw", choices=OPTIMIZERS)
    parser.add_argument("--check", action="store_true", help="exit with 1 when managed differs")
    default = ROOT / "build" / "bench" / "peers.json"
    parser.add_argument("--out", "--json", type=Path, default=default, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    managed.simulate(devices=1, memory="4GiB")
    results: Report = {"machine": machine(), "lines": LINES, "training": {}, "inference": {}}
    for training, kind in ((True, "training"), (False, "inference")):
        for model in choose(options.model):
            rounds = 1 if options.quick else 5
            found = compare(model, options.optimizer, training, rounds)
            results[kind][model.name] = found
            print_report(f"{model.name}, {kind}", found)
    for name, lines in LINES.items():
        print(f"\n{name}:", *lines, sep="\n    ")
    write(results, options.out)
    tables = [*results["training"].values(), *results["inference"].values()]
    ours = [r for t in tables for name, r in t.items() if name.startswith("managed")]
    return int(options.check and not all(r.get("equal") for r in ours))


if __name__ == "__main__":
    raise SystemExit(main())
