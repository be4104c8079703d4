"""Memory pressure for tests: storages that leave, exact figures, and that nothing is left over."""

import contextlib
import gc
import time

import pytest
import torch
from torch import nn

import managed
from managed import _C, ManagedModule, ManagedTensor
from support.devices import D0, D1, ON_CUDA, device_module, device_name
from support.garbage import collect_all, empty_queue

KiB, MiB = 2**10, 2**20
COUNTS = ("spill", "drop", "restore")
BYTES = 32 * KiB  # of a storage that may leave
N = BYTES // 4


def on(t, device=D0):
    """A managed copy of `t` that a device holds: a leaf that may leave."""
    there = t.detach().as_subclass(ManagedTensor).to(device)
    return there.requires_grad_(t.requires_grad)


def make(device=D0, dtype=torch.float32, requires_grad=False):
    """BYTES of random values on the host, and the same on a device."""
    here = torch.randn(BYTES // dtype.itemsize).to(dtype)
    return here, on(here.requires_grad_(requires_grad), device)


def spill(*tensors):
    """Brings the bytes of everything that may leave away; the given tensors are among it."""
    _C.spill_all()
    stayed = [i for i, t in enumerate(tensors) if not _C.is_spilled(t)]
    assert not stayed, f"tensors {stayed} have not left"


def module_on(module, device=D0):
    return ManagedModule.from_module(module).to(device)


class Moved(dict):
    """Counts and bytes of what left, was dropped (no copy needed) and came back in a block."""

    def bytes(self, kind):
        return self[f"{kind}_bytes"]


@contextlib.contextmanager
def moved():
    """Yields a Moved that is filled when the block ends."""
    before, found = managed.stats(), Moved()
    yield found
    after = managed.stats()
    for kind in COUNTS:
        for key in (kind, f"{kind}_bytes"):
            found[key] = after[key] - before[key]
    links = after["links"]
    found["links"] = {k: n - before["links"].get(k, 0) for k, n in links.items()}


def at_rest():
    """Nothing is garbage, and no block waits for a kernel to be free.

    Where CUDA's programs used a second stream, a block that is freed counts until the allocator
    has seen that no stream needs it.
    """
    gc.collect()
    if ON_CUDA:
        torch.cuda.empty_cache()


def held():
    """Bytes that devices and the host hold, and how many storages have a handle."""
    at_rest()
    names = [device_name(i) for i in range(device_module.device_count())]
    return {
        "allocated": [device_module.memory_allocated(name) for name in names],
        "storages": [_C.residency(name)["storages"] for name in names],
        "host": [_C.host_memory()["used"]],
    }


def counted(device=D0):
    """Bytes of a device that count against its budget: of CUDA's allocator, the segments it keeps.

    512 bytes that an earlier test left take a segment of 2 MiB.
    """
    at_rest()
    name = "memory_reserved" if ON_CUDA else "memory_allocated"
    return getattr(device_module, name)(device)


@contextlib.contextmanager
def no_guests():
    """What leaves the first device goes to the host, since no other device has room."""
    with contextlib.ExitStack() as budgets:
        for i in range(1, device_module.device_count()):
            name = device_name(i)
            budgets.enter_context(managed.budget(name, counted(name) + MiB // 2))
        yield


@contextlib.contextmanager
def leaves_nothing(patience=3):
    """What the block allocates is given back when it ends, or at most `patience` seconds later.

    The engine's threads drop their last tensors a little after a backward pass has returned.
    """
    before = held()
    yield
    if _stays(before, patience / 30):
        collect_all()
        empty_queue(D0)
        left = _stays(before, patience)
        assert not left, left


@pytest.fixture(autouse=True)
def nothing_left():
    """What a test allocates is given back when it ends. A file of tests has this by its import."""
    with leaves_nothing():
        yield


def sized(mib, value=1.0, device=D0):
    """A managed tensor of so many MiB that holds one value and may leave."""
    return on(torch.full((mib * MiB // 4,), value), device)


def _stays(before, seconds):
    """What is still held beyond `before` when so much time has passed, in words."""
    deadline = time.monotonic() + seconds
    while (more := _more(before)) and time.monotonic() < deadline:
        time.sleep(0.002)  # lets the engine's threads have the interpreter
    return more


def _more(before):
    """What is held beyond `before`, in words."""
    return [
        f"{name}: {before[name]} before, {now} after"
        for name, now in held().items()
        if any(b > a for a, b in zip(before[name], now, strict=True))
    ]


PRESSURES = ("torture", "hammer", "budget")


def pressed(pressure, function, fraction=0.6):
    """What the function returns while storages leave, also the smallest.

    "torture": before each operator. "hammer": all the time, too. "budget": on each device, where
    the function has a part of what it took at most when it ran the first time.
    """
    if pressure != "budget":
        with managed.debug.torture(hammer=pressure == "hammer"):
            return function()
    names = [device_name(i) for i in range(device_module.device_count())]
    with managed.debug.torture(odds=None), contextlib.ExitStack() as budgets:
        before = [device_module.memory_allocated(name) for name in names]
        for name in names:
            device_module.reset_peak_memory_stats(name)
        function()
        for name, least in zip(names, before, strict=True):
            needed = device_module.max_memory_allocated(name) - least
            budgets.enter_context(managed.budget(name, least + int(fraction * needed)))
        return function()


@contextlib.contextmanager
def half_of(program):
    """Runs a program on one device and then gives it half of what it took above what was there."""
    before = device_module.memory_allocated(D1)
    device_module.reset_peak_memory_stats(D1)
    program()
    peak = device_module.max_memory_allocated(D1) - before
    with managed.budget(D1, before + peak // 2):
        spilled = managed.stats()["spill"]
        yield
        assert managed.stats()["spill"] > spilled


def mlp(width=64, depth=4):
    layers = (m for _ in range(depth) for m in (nn.Linear(width, width), nn.Tanh()))
    return nn.Sequential(*layers)


def snapshot(t):
    """The values as plain tensors on the CPU."""
    return t.detach().cpu()


def train(model, batches, optimizer, loss=lambda m, *b: m(*b).float().square().mean()):
    """Losses, weights, gradients and buffers after training, as plain tensors on the CPU."""
    losses = []
    for k, batch in enumerate(batches):
        torch.manual_seed(k)  # of dropout
        optimizer.zero_grad()
        value = loss(model, *batch)
        value.backward()
        optimizer.step()
        losses.append(snapshot(value))
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [snapshot(t) for t in (*losses, *model.parameters(), *model.buffers(), *gradients)]


def assert_equal(expected, actual):
    """Bit by bit, and with the same sizes, dtypes and strides."""
    assert len(expected) == len(actual)
    for i, (a, b) in enumerate(zip(expected, actual, strict=True)):
        assert a.dtype == b.dtype, i
        assert a.shape == b.shape, i
        assert torch.equal(a, b), f"tensor {i} of {len(expected)}"
