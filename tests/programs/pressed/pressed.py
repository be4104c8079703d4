"""How a program under memory pressure begins: two devices of 64 MiB, and a watchdog.

Tests read this file and put its text before the text of short programs, for which it imports more
than it uses; programs that are files import it.
"""

import faulthandler
import gc
import os
import signal
import sys
import threading
import time

import torch
from torch import nn

import managed
import managed.debug
from managed import _C, ManagedModule, ManagedTensor

__all__ = [
    "_C",
    "Hammer",
    "ManagedModule",
    "ManagedTensor",
    "MiB",
    "faulthandler",
    "gc",
    "managed",
    "model",
    "nn",
    "on",
    "os",
    "signal",
    "sys",
    "threading",
    "time",
    "together",
    "torch",
    "train",
    "whole",
]

faulthandler.dump_traceback_later(90, exit=True)
torch.set_num_threads(1)
managed.simulate(devices=2, memory="64MiB")
MiB = 2**20


def on(t, device="sim:0"):
    return t.detach().as_subclass(ManagedTensor).to(device).requires_grad_(t.requires_grad)


def model(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(128, 128), nn.Tanh())))
    return net, torch.randn(32, 128)


def train(net, x, steps=6):
    optimizer, losses = torch.optim.AdamW(net.parameters(), lr=1e-3), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def Hammer():
    """Makes everything leave, again and again, as long as the block runs."""
    return managed.debug.torture(odds=None, at_least=2**14, hammer=True)


def together(*works):
    failures = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def whole(allocated=0, host=0):
    """No storage is in use or moving, and this much is held."""
    deadline = time.monotonic() + 20
    while True:
        gc.collect()
        found = [_C.residency(i) for i in range(2)]
        held = sum(torch.sim.memory_allocated(i) for i in range(2)), _C.host_memory()["used"]
        busy = [r[k] for r in found for k in ("in_use", "moving")]
        if (held == (allocated, host) and not any(busy)) or time.monotonic() > deadline:
            break
        time.sleep(0.002)  # the engine's threads drop their last tensors a little later
    assert not any(busy), found
    assert held == (allocated, host), held
