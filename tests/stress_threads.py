"""Threads that share a managed model and tensors; run by test_threads.py and by `make tsan-python`.

    python tests/stress_threads.py [ROUNDS] [SEED]

Each worker compares what it gets with results of a plain model that were computed before, so the
program says the same however its threads interleave. It ends with exit status 0 and one line, or
with the tracebacks of the workers that failed. A program that hangs shows its threads and ends.
"""

import copy
import ctypes
import faulthandler
import gc
import random
import sys
import threading
import time
import traceback

import torch
import torch.distributed as dist
from torch import nn

import managed
from managed import _C, ManagedModule, ManagedTensor
from managed._modules import walk

ROUNDS, SEED = (int(a) for a in [*sys.argv[1:], "40", "0"][:2])
PATIENCE = 300  # seconds; what a run takes is a hundredth of it, under ThreadSanitizer a tenth
PLACES = ("sim:0", "sim:1", "cpu", "sim:2")
MIB = 2**20


class Net(nn.Module):
    """A tied weight, a normalisation and a bare parameter; nothing that writes in forward."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.second = nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.rand(8))
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        x = torch.tanh(self.norm(self.first(x)))
        return self.last(self.second(x) * self.scale)


def scattered(net, first=0):
    net = ManagedModule.from_module(copy.deepcopy(net))
    for i, slot in enumerate(walk.slots([net])):
        _C.move(slot.tensor, PLACES[(i + first) % len(PLACES)])
    return net


def managed_on(device, values):
    return values.clone().as_subclass(ManagedTensor).to(device)


def same(ours, theirs):
    assert torch.equal(ours.detach().cpu(), theirs), f"{ours.device}: another value than plain"


def train(net, inputs, steps=4):
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    for i in range(steps):
        optimizer.zero_grad()
        net(inputs[i % len(inputs)]).square().mean().backward()
        optimizer.step()
    return [p.detach().cpu() for p in net.parameters()]


def train_in_parts(net, inputs):
    """On all devices at once; the bits are those of each run in as many parts."""
    parts = managed.DataParallel(copy.deepcopy(net))
    return train(parts, [torch.cat([x, x]) for x in inputs], steps=2)


def gradients(net, x):
    return torch.autograd.grad(net(x).square().mean(), list(net.parameters()))


def double_gradient(net, x):
    (first,) = torch.autograd.grad(net(x).pow(3).sum(), net.scale, create_graph=True)
    return torch.autograd.grad(first.square().sum(), net.scale)[0]


class Keeper:
    """Keeps what it frees of a device, as a library's allocator does. Its blocks have one size."""

    def __init__(self):
        self.lock, self.kept = threading.Lock(), []

    def alloc(self):
        with self.lock:
            return self.kept.pop() if self.kept else torch.sim.raw_alloc(MIB // 32, "sim:2")

    def free(self, address):
        with self.lock:
            self.kept.append(address)

    def __gpu_memory_report__(self, device):
        return {"live": 0, "cached": len(self.kept) * MIB // 32 if device == "sim:2" else 0}

    def __gpu_memory_reclaim__(self, device, nbytes):
        with self.lock:
            given, self.kept = self.kept, []
        for address in given:
            torch.sim.raw_free(address)
        return len(given) * MIB // 32


class Shared:
    """What the threads share, and what plain tensors said of it."""

    def __init__(self):
        self.plain = Net()
        self.net = scattered(self.plain)
        self.inputs = [torch.randn(5, 8) for _ in range(4)]
        with torch.no_grad():
            self.outputs = [self.plain(x) for x in self.inputs]
        self.gradients = [gradients(self.plain, x) for x in self.inputs]
        self.doubles = [double_gradient(self.plain, x) for x in self.inputs]
        self.trained = train(copy.deepcopy(self.plain), self.inputs)
        self.trained_in_parts = train_in_parts(self.plain, self.inputs)
        values = [torch.randn(8, 8) for _ in PLACES]
        self.values = values
        self.leaves = [
            managed_on(d, v).requires_grad_() for d, v in zip(PLACES, values, strict=True)
        ]
        self.products = {(i, j): a @ b for i, a in enumerate(values) for j, b in enumerate(values)}
        # Written by several threads, which hold the lock meanwhile, and read by the same.
        self.lock = threading.Lock()
        self.written = [managed_on(d, torch.zeros(8)) for d in PLACES]
        self.writes = 0
        self.lent = managed_on("cpu", values[0])
        self.keeper = Keeper()
        managed.holders.add(self.keeper)
        self.big = [managed_on("sim:0", torch.rand(MIB // 4)) for _ in range(2)]


# ---- workers: each is called again and again, by a thread of its own


def infer(s, chance):
    k = chance.randrange(len(s.inputs))
    with torch.no_grad() if chance.random() < 0.5 else torch.inference_mode():
        same(s.net(s.inputs[k]), s.outputs[k])


def train_a_copy(s, chance):
    net = scattered(s.plain, chance.randrange(len(PLACES)))
    for ours, theirs in zip(train(net, s.inputs), s.trained, strict=True):
        same(ours, theirs)


def train_parts_of_a_batch(s, chance):
    for ours, before in zip(train_in_parts(s.plain, s.inputs), s.trained_in_parts, strict=True):
        same(ours, before)


def sum_over_processes(s, chance):
    """There is one; a thread of gloo's writes a storage that may leave afterwards."""
    x = managed_on(chance.choice(["sim:0", "sim:2"]), torch.ones(MIB // 64))
    works = [dist.all_reduce(x, async_op=True) for _ in range(3)]
    for work in works:
        work.wait()
    parts = [torch.empty_like(x)]
    dist.all_gather(parts, x)
    same(parts[0] + x, torch.full((MIB // 64,), 2.0))


def differentiate(s, chance):
    k = chance.randrange(len(s.inputs))
    # Where a gradient is cannot be asked: the parameter may have moved since.
    for ours, theirs in zip(gradients(s.net, s.inputs[k]), s.gradients[k], strict=True):
        same(ours, theirs)
    same(double_gradient(s.net, s.inputs[k]), s.doubles[k])


def multiply_leaves(s, chance):
    i, j = chance.randrange(len(s.leaves)), chance.randrange(len(s.leaves))
    a, b = s.leaves[i], s.leaves[j]
    y = a @ b
    same(y, s.products[i, j])
    if i != j:
        ours = torch.autograd.grad(y.sum(), (a, b))
        same(ours[0], torch.ones(8, 8) @ s.values[j].T)
        same(ours[1], s.values[i].T @ torch.ones(8, 8))


def write_under_lock(s, chance):
    with s.lock:
        if chance.random() < 0.5:
            torch._foreach_add_(s.written, 1)
        else:
            for t in s.written:
                t.view(2, 4).add_(1)
        s.writes += 1
        for t in s.written:
            other = managed_on(chance.choice(PLACES), torch.ones(8))
            same(t * other, torch.full((8,), float(s.writes)))


def look_and_pin(s, chance):
    leaf = s.leaves[0]
    with s.lock:  # two threads that pin and unpin one tensor would undo each other's pins
        leaf.pin()
        assert leaf.pinned
        managed.explain(leaf)
        leaf.unpin()
        with managed.budget("sim:1", chance.choice(["256KiB", "6MiB"])):
            managed.device_manager.find_device(1000, disperse=True)
    assert managed.stats(reset=chance.random() < 0.1)["copy"] >= 0


def lend_bytes(s, chance):
    same(s.lent + s.leaves[3], s.values[0] + s.values[3])
    leaf = s.leaves[chance.randrange(len(s.leaves))]
    ways = [leaf.untyped_storage, leaf.data_ptr, s.lent.detach().numpy, leaf.tolist]
    held = chance.choice(ways)()
    same(s.lent * leaf, s.values[0] * leaf.detach().cpu())
    del held


def crowd(s, chance):
    """Kept copies make room for what does not fit beside them."""
    here = managed_on("sim:2", torch.ones(MIB // 4))
    for big in s.big:
        assert (big * here).device.type == "sim"
    assert torch.empty(5 * MIB, dtype=torch.uint8, device="sim:2").numel() == 5 * MIB


def drop(s, chance):
    kept = [managed_on(chance.choice(PLACES), torch.rand(4, 8)) for _ in range(8)]
    alias = [t.detach() for t in kept] + [t[1:] for t in kept]
    assert all((t @ s.leaves[1]).shape[1] == 8 for t in kept)
    chance.shuffle(alias)
    del kept[:]
    assert all((t * s.leaves[2][0]).shape[1] == 8 for t in alias)


def keep_blocks(s, chance):
    """A library keeps blocks, and threads that need room take them away again."""
    taken = [s.keeper.alloc() for _ in range(4)]
    for i, address in enumerate(taken):
        if address is not None:
            ctypes.memset(address, i, MIB // 32)
    for i, address in enumerate(taken):
        if address is not None:
            assert ctypes.string_at(address, 4) == bytes([i]) * 4
            s.keeper.free(address)
    if not chance.randrange(8):
        managed.give_back("sim:2", MIB // 16)
        assert managed.holders.report("sim:2")["Keeper"].live >= 0


WORKERS = [infer, infer, differentiate, differentiate, multiply_leaves, train_a_copy]
WORKERS += [write_under_lock, write_under_lock, look_and_pin, lend_bytes, crowd, drop]
WORKERS += [train_parts_of_a_batch, sum_over_processes, keep_blocks, keep_blocks]


def work(worker, number, shared, start, failures):
    chance = random.Random(f"{SEED} {number}")
    start.wait()
    try:
        for _ in range(ROUNDS):
            worker(shared, chance)
            if failures:
                return
    except Exception:
        failures.append(f"{worker.__name__}: {traceback.format_exc()}")


def run(shared):
    failures = []
    start = threading.Barrier(len(WORKERS))
    threads = [
        threading.Thread(target=work, args=(w, i, shared, start, failures), name=w.__name__)
        for i, w in enumerate(WORKERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


# ---- a trainer that is now alone and now not


def read(leaves, inputs, failures):
    try:
        for x in inputs:
            for w in leaves:
                same((w * 2).sum(), torch.tensor(32.0))
                same((w * x).sum(), torch.tensor(1024.0))
    except Exception:
        failures.append(f"read: {traceback.format_exc()}")


def run_trainer():
    """Its leaves move by themselves when nobody else is there, and others come meanwhile."""
    ones, failures = torch.ones(16), []
    leaves = [managed_on("sim:0", ones).requires_grad_() for _ in range(8)]
    inputs = [managed_on(f"sim:{i}", torch.ones(64, 16)) for i in (1, 2)]
    for i in range(3 * ROUNDS):
        readers = [threading.Thread(target=read, args=(leaves, inputs, failures)) for _ in range(3)]
        readers = readers if i % 3 else []
        for reader in readers:
            reader.start()
        for w in leaves:
            (w * inputs[i // 9 % 2]).sum().backward()
            assert w.grad.device == w.device
            same(w.grad, 64 * ones)
            w.grad = None
        for reader in readers:
            reader.join()
        torch._foreach_add_([w.detach() for w in leaves], 0)
    return failures


def bytes_used():
    gc.collect()
    return [torch.sim.memory_allocated(f"sim:{i}") for i in range(3)]


def assert_given_back(before):
    """The engine's threads drop their last tensors a little after a backward pass has returned."""
    until = time.monotonic() + 10
    while bytes_used() != before and time.monotonic() < until:
        time.sleep(0.01)
    assert bytes_used() == before, f"bytes on the devices: {before} before, {bytes_used()} after"


def main():
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-4)  # with less, waiting for the GIL is all that threads do
    managed.simulate(devices=3, memory="8MiB")
    managed.COPY_WARNING = 0
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    before = bytes_used()
    shared = Shared()
    _C.shake_replicas(SEED + 1)
    failures = run(shared) or run_trainer()
    _C.shake_replicas(0)
    if failures:
        sys.exit("\n".join(failures))
    shared.keeper.__gpu_memory_reclaim__("sim:2", 0)
    del shared
    assert_given_back(before)
    dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()
    print(f"{len(WORKERS)} threads, {ROUNDS} rounds, seed {SEED}: as plain")


if __name__ == "__main__":
    main()
