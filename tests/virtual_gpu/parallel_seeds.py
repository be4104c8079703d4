"""Trains on several virtual GPUs at once, once for each seed of what runs when: the CPU's bits.

    python -m managed.virtual_gpu --devices 4x320MiB parallel_seeds.py FIRST COUNT

A seed trains by managed.DataParallel and by managed.Pipeline, on two to four devices and with
batches of several sizes; between the steps bytes leave, parameters are written on another stream,
and budgets change. The first seed that gives other bits, or a report of the checker, ends it with
its number.
"""

import contextlib
import copy
import ctypes
import random
import sys

import torch
import torch.nn.functional as F
from seeds import MIB, gpu, on_side_stream, races
from torch import nn

import managed
from managed import _C
from managed._parallel import parts

WIDTH, DEPTH, STEPS = 192, 8, 3


class Model(nn.Module):
    """Layers with a skip, one parameter that goes in parts, and one that some parts do not use."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(33 * MIB // (4 * WIDTH) + 1, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x):
        y = self.table(x).mean(1)
        for layer in self.layers:
            y = y + torch.tanh(layer(y))
        return y


def loss_of(net, x, target):
    return F.mse_loss(net(x), target)


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=True)


def on_the_host(model, batches, count):
    """What both must give: gradients of the parts, weighted by samples, summed in their order."""
    optimizer = optimizer_of(model)
    for x, target in batches:
        sizes = parts.sizes(len(x), count)
        total = [None] * len([*model.parameters()])
        for a, b, n in zip(x.split(sizes), target.split(sizes), sizes, strict=True):
            loss = loss_of(model, a, b)
            weight = torch.full_like(loss, n / len(x))
            for i, g in enumerate(torch.autograd.grad(loss, [*model.parameters()], weight)):
                total[i] = g if total[i] is None else total[i] + g
        for p, g in zip(model.parameters(), total, strict=True):
            p.grad = g
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def disturb(model, choose):
    if choose.random() < 0.3:
        on_side_stream(model)
    if choose.random() < 0.3:
        _C.spill_all()


def by_batch(model, batches, count, choose):
    net = managed.DataParallel(model, range(count))
    optimizer = optimizer_of(net)
    for x, target in batches:
        net.each(loss_of, x, target).backward()
        disturb(net, choose)
        optimizer.step()
        optimizer.zero_grad()
        disturb(net, choose)
    return [p.detach().cpu() for p in net.parameters()]


def by_layer(model, batches, count, choose):
    pipe = managed.Pipeline(model, count, schedule=choose.choice(("1f1b", "gpipe")))
    optimizer = optimizer_of(model)
    for x, target in batches:
        pipe.step(F.mse_loss, x, target)
        disturb(model, choose)
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().cpu() for p in model.parameters()]


def trained(seed):
    choose = random.Random(seed)
    torch.manual_seed(seed)
    start, count = Model(), choose.randrange(2, 5)
    batches = []
    for _ in range(STEPS):
        n = choose.randrange(count, 40)
        x = torch.randint(start.table.num_embeddings, (n, 4))
        batches.append((x, torch.randn(n, WIDTH)))
    expected = on_the_host(copy.deepcopy(start), batches, count)
    for train in (by_batch, by_layer):
        with contextlib.ExitStack() as budgets:
            if choose.random() < 0.5:
                for i in range(4):
                    budgets.enter_context(
                        managed.budget(f"cuda:{i}", choose.randrange(150, 250) * MIB)
                    )
            found = train(copy.deepcopy(start), batches, count, choose)
        same = all(map(torch.equal, found, expected))
        assert same, f"seed {seed}: other weights by {train.__name__}"
        report = races()
        assert not report, f"seed {seed}: {train.__name__}: {report}"


def main():
    first, count = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    managed.COPY_WARNING = 0
    managed.stats(reset=True)
    for seed in range(first, first + count):
        gpu.vgpu_seed(ctypes.c_ulonglong(seed))
        trained(seed)
    told = managed.stats()
    print(*(f"{k}={told[k]}" for k in ("spill", "restore", "copy")))


if __name__ == "__main__":
    main()
