"""Trains under a budget on virtual GPUs, once for each seed: the CPU's bits, each access in order.

    python -m managed.virtual_gpu --devices 2x320MiB seeds.py FIRST COUNT

A seed says what of the runtime runs when, and how the training goes: which part of its memory it
has, how much of the host, whether a peer takes what leaves or has half of the layers, and what else
the program does in between. The first seed that gives other bits, or a report of the checker, ends
it with its number.
"""

import contextlib
import copy
import ctypes
import io
import os
import random
import sys

import torch
from torch import nn

import managed
from managed import _C, ManagedModule, ManagedTensor
from managed.errors import ManagedError

WIDTH, DEPTH, BATCH, STEPS = 256, 8, 256, 6
MIB = 1 << 20
gpu = ctypes.CDLL(os.environ["LD_PRELOAD"].split(os.pathsep)[0])
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, foreach=False),
    "AdamW": lambda p: torch.optim.AdamW(p, 1e-3, foreach=False),
}


def races():
    text = ctypes.create_string_buffer(1 << 16)
    gpu.vgpu_report(text, len(text))
    gpu.vgpu_clear()
    return text.value.decode()


def step(model, optimizer, batch):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def plain(optimizer):
    """The data, and the losses and weights of the CPU."""
    torch.manual_seed(0)
    layers = (m for _ in range(DEPTH) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh()))
    model = nn.Sequential(*layers)
    start, batch = copy.deepcopy(model), torch.randn(BATCH, WIDTH)
    with_optimizer = OPTIMIZERS[optimizer](model.parameters())
    losses = [step(model, with_optimizer, batch) for _ in range(STEPS)]
    return start, batch, losses, [p.detach() for p in model.parameters()]


def on_side_stream(model):
    """Weights that are there are written on another stream, which allocates nothing."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    with torch.cuda.stream(side), torch.no_grad():
        for p in model.parameters():
            if not _C.is_spilled(p):
                p.mul_(1.0)
    main.wait_stream(side)


def saved(model):
    torch.save(model.state_dict(), io.BytesIO())


def train(start, batch, optimizer, choose, halves=False):
    model = ManagedModule.from_module(copy.deepcopy(start)).to("cuda:0")
    if halves:
        model[DEPTH:].to("cuda:1")
    there = batch.as_subclass(ManagedTensor).to("cuda:0")
    with_optimizer = OPTIMIZERS[optimizer](model.parameters())
    losses = []
    for _ in range(STEPS):
        losses.append(step(model, with_optimizer, there))
        if choose.random() < 0.1:
            on_side_stream(model)
        if choose.random() < 0.1:
            _C.spill_all()
        if choose.random() < 0.1:
            saved(model)
        if choose.random() < 0.1 and _C.step_state(1)["follows"]:
            with contextlib.suppress(ManagedError):  # a plan in which nothing leaves
                _C.lie(1, choose.randrange(1 << 30))
    return [x.cpu() for x in losses], [p.detach().cpu() for p in model.parameters()]


def trained(seed, expected, needed):
    choose = random.Random(seed)
    optimizer = choose.choice(sorted(OPTIMIZERS))
    start, batch, losses, weights = expected[optimizer]
    managed.LEARN_STEPS = False
    managed.LEARN_STEPS = choose.random() < 0.8
    host = choose.choice((None, None, 10 * MIB, 14 * MIB))
    with contextlib.ExitStack() as budgets:
        part = choose.choice((0.5, 0.6, 0.7, 0.85))
        halves = choose.random() < 0.4
        most = int(part * needed[optimizer] * (0.6 if halves else 1.0))
        budgets.enter_context(managed.budget("cuda:0", most))
        if choose.random() < 0.3:
            budgets.enter_context(managed.budget("cuda:1", most if halves else 4 * MIB))
        if host is not None:
            budgets.enter_context(managed.budget("cpu", _C.host_memory()["used"] + host))
        found = train(start, batch, optimizer, choose, halves)
    assert all(map(torch.equal, losses, found[0])), f"seed {seed}: other losses"
    assert all(map(torch.equal, weights, found[1])), f"seed {seed}: other weights"
    report = races()
    assert not report, f"seed {seed}: {report}"


def main():
    first, count = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    torch.empty(1, device="cuda:1")
    expected, needed = {name: plain(name) for name in OPTIMIZERS}, {}
    for name, (start, batch, *_) in expected.items():
        torch.cuda.reset_peak_memory_stats()
        train(start, batch, name, random.Random(-1))
        needed[name] = torch.cuda.max_memory_allocated()
        torch.cuda.empty_cache()
    managed.stats(reset=True)
    for seed in range(first, first + count):
        gpu.vgpu_seed(ctypes.c_ulonglong(seed))
        trained(seed, expected, needed)
    told = managed.stats()
    print(*(f"{k}={told[k]}" for k in ("spill", "drop", "spare", "restore", "copy", "host_waits")))


if __name__ == "__main__":
    main()
