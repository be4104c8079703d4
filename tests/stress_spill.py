"""Threads that train and infer where there is not room for all, while another spills everything.

    python tests/stress_spill.py [SECONDS] [SEED]

Run by test_spill_threads.py for some seconds and by `make stress` for minutes. Four threads train
models of their own, two infer with one that they share, one hammers. What each gets is compared
with what plain tensors gave before. In the second half of the time there is no hammer, and budgets
alone press. The program ends with status 0 and a line for each half, with the tracebacks of the
workers that failed, or, when a worker gets nowhere, with those of all threads.
"""

import copy
import faulthandler
import gc
import itertools
import os
import sys
import threading
import time
import traceback

import torch
from torch import nn

import managed
from managed import _C, ManagedModule, ManagedTensor

PATIENCE = 60  # seconds in which a worker gets something done; a round takes a fraction of one
MIB = 2**20
ROOM = 2 * MIB  # of each device; all that the threads have there is twice that


def perceptron():
    layers = (m for _ in range(4) for m in (nn.Linear(128, 128), nn.Tanh()))
    return nn.Sequential(*layers), torch.randn(32, 128)


def convolutions():
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten(),
        nn.Linear(16 * 12 * 12, 16),
    )  # fmt: skip
    return net, torch.randn(8, 3, 16, 16)


def encoder():
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(8, 12, 64)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(32, 64, num_layers=2)
        self.last = nn.Linear(64, 8)

    def forward(self, x):
        return self.last(self.lstm(x)[0][-1])


def recurrent():
    return Recurrent(), torch.randn(10, 8, 32)


TRAINED = (perceptron, convolutions, encoder, recurrent)


def train(net, x, steps=4):
    """Losses, weights and buffers after some steps, as plain tensors on the CPU."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(net(x).square().mean())
        losses[-1].backward()
        optimizer.step()
    return [t.detach().cpu() for t in (*losses, *net.parameters(), *net.buffers())]


def on(t, device):
    return t.as_subclass(ManagedTensor).to(device)


def assert_same(expected, actual):
    for i, (a, b) in enumerate(zip(expected, actual, strict=True)):
        assert torch.equal(a, b), f"tensor {i} of {len(expected)} has another value than plain"


class Worker:
    """Calls `work` again and again in a thread of its own; knows when a call ended last."""

    def __init__(self, name, work):
        self.name, self.work = name, work
        self.rounds, self.latest, self.failure = 0, time.monotonic(), None
        self.thread = threading.Thread(target=self.run, name=name)

    def run(self):
        try:
            while not ended.is_set():
                self.work()
                self.rounds += 1
                self.latest = time.monotonic()
        except Exception:
            self.failure = f"{self.name}, round {self.rounds}: {traceback.format_exc()}"
            ended.set()


ended = threading.Event()


def trainer(make, device):
    """The model is on one device; the batch of every other round comes from the other."""
    net, x = make()
    expected = train(copy.deepcopy(net), x)
    devices = itertools.cycle([device, device, f"sim:{1 - int(device[-1])}"])

    def work():
        there = ManagedModule.from_module(copy.deepcopy(net)).to(device)
        assert_same(expected, train(there, on(x, next(devices))))

    return Worker(f"train {make.__name__}", work)


def inferers():
    net, _ = perceptron()
    inputs = [torch.randn(16, 128) for _ in range(4)]
    with torch.no_grad():
        expected = [net(x) for x in inputs]
    there = ManagedModule.from_module(net).to("sim:0")
    placed = [on(x, "sim:0") for x in inputs]

    def work(mode):
        with mode():
            for x, wanted in zip(placed, expected, strict=True):
                assert_same([wanted], [there(x).cpu()])

    for mode in (torch.no_grad, torch.inference_mode):
        yield Worker(f"infer, {mode.__name__}", lambda mode=mode: work(mode))


def watch(workers, seconds):
    """Until the time is over and each worker has done a round, or one has failed.

    A worker that gets nowhere ends the program.
    """
    until = time.monotonic() + seconds
    while not ended.wait(0.5):
        if time.monotonic() > until and all(w.rounds for w in workers):
            break
        # A watchdog in C: it also ends a program in which no thread can run Python.
        faulthandler.dump_traceback_later(2 * PATIENCE, exit=True)
        stuck = [w.name for w in workers if time.monotonic() - w.latest > PATIENCE]
        if stuck:
            print(f"nothing for {PATIENCE} s from {stuck}", file=sys.stderr, flush=True)
            faulthandler.dump_traceback()
            os._exit(3)
    ended.set()
    for worker in workers:
        worker.thread.join()


def held():
    gc.collect()
    used = [torch.sim.memory_allocated(i) for i in range(2)]
    return [*used, _C.host_memory()["used"], *(_C.residency(i)["storages"] for i in range(2))]


def assert_given_back(before):
    """The engine's threads drop their last tensors a little after a backward pass has returned."""
    until = time.monotonic() + 10
    while held() != before and time.monotonic() < until:
        time.sleep(0.01)
    assert held() == before, f"bytes and storages: {before} before, {held()} after"


def run(seconds, hammer):
    """What the workers did, in words."""
    ended.clear()
    workers = [trainer(make, f"sim:{i % 2}") for i, make in enumerate(TRAINED)]
    workers += inferers()
    budgets = [managed.budget(f"sim:{i}", ROOM) for i in range(2)]
    with managed.debug.torture(odds=None, hammer=hammer):
        for worker in workers:
            worker.thread.start()
        watch(workers, seconds)
    failures = [w.failure for w in workers if w.failure]
    if failures:
        sys.exit("\n".join(failures))
    most = max(torch.sim.max_memory_allocated(i) for i in range(2))
    assert most <= ROOM, f"{most} bytes were in use at once, where {ROOM} were allowed"
    for budget in budgets:
        budget.__exit__()
    return ", ".join(f"{w.rounds} x {w.name}" for w in workers)


def main():
    seconds, seed = (float(a) for a in [*sys.argv[1:], "5", "0"][:2])
    faulthandler.dump_traceback_later(2 * PATIENCE, exit=True)
    torch.manual_seed(int(seed))
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-4)
    managed.simulate(devices=2, memory="64MiB")
    managed.COPY_WARNING = 0
    before = held()
    for hammer in (True, False):
        done, moved = run(seconds / 2, hammer), managed.stats(reset=True)
        assert_given_back(before)
        left, how = moved["spill"] + moved["drop"], "hammer" if hammer else "budget"
        print(f"{how}: as plain: {done}; {left} left, {moved['restore']} came back", flush=True)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
