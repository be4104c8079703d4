"""What programs of test_virtual_*.py begin with. Kernels do nothing, copies do."""

import contextlib
import ctypes
import itertools
import os
import random
import sys

import torch

import managed
from managed import _C as C
from managed import ManagedTensor

MIB = 1 << 20
CUDA = "cuda:0"
gpu = ctypes.CDLL(os.environ["LD_PRELOAD"])
gpu.vgpu_count.restype = gpu.vgpu_pending.restype = ctypes.c_long
gpu.vgpu_bytes.restype = ctypes.c_size_t


def made(mib, device=CUDA):
    """A managed tensor with random bytes that may leave."""
    values = torch.tensor(random.sample(range(1 << 20), 1024), dtype=torch.int32)
    plain = values.repeat(mib * MIB // 4096).to(device)
    return plain.as_subclass(ManagedTensor).clone()


def empty(mib, device=CUDA):
    """A managed tensor that may leave, of one block and nothing beside it."""
    small = torch.empty(1, dtype=torch.uint8, device=device).as_subclass(ManagedTensor)
    return small.new_empty(mib * MIB)


def contexts():
    """Indices of the devices that have one."""
    return [i for i in range(torch.cuda.device_count()) if gpu.vgpu_has_context(i)]


def pinned():
    """Bytes of the host's memory that the driver has pinned."""
    return gpu.vgpu_bytes(-1)


def pending(device=CUDA):
    """Bytes of blocks that nobody has and that wait for streams."""
    stats = torch.cuda.memory_stats(device)
    return stats["active_bytes.all.current"] - stats["allocated_bytes.all.current"]


def same(tensor, host):
    return torch.equal(tensor.cpu(), host)


class Calls:
    """How often the runtime's functions were called since this was made."""

    def __init__(self):
        names = ["StreamSynchronize", "DeviceSynchronize", "EventSynchronize", "MemcpyAsync"]
        names += ["EventRecord", "EventRecordWithFlags", "MemGetInfo", "GraphLaunch"]
        self.start = {name: gpu.vgpu_count(f"cuda{name}".encode()) for name in names}

    def waits(self):
        """How often the host has waited."""
        return sum(self[f"{what}Synchronize"] for what in ("Stream", "Device", "Event"))

    def __getitem__(self, name):
        return gpu.vgpu_count(f"cuda{name}".encode()) - self.start[name]


def races():
    """The reports of the checker, which are forgotten then."""
    text = ctypes.create_string_buffer(1 << 16)
    gpu.vgpu_report(text, len(text))
    gpu.vgpu_clear()
    return text.value.decode()


def stream_of_another_library():
    handle = ctypes.c_void_p()
    assert gpu.cudaStreamCreateWithFlags(ctypes.byref(handle), 1) == 0
    return torch.cuda.ExternalStream(handle.value)


def left_from_a_foreign_stream():
    """The stream of another library on which 8 MiB came home before they left, and their values."""
    x = made(8)
    expected = x.cpu()
    foreign = stream_of_another_library()
    C.spill_all()
    torch.cuda.memory_allocated()  # who looks gives the block back: x gets one of that stream
    with torch.cuda.stream(foreign):
        x.add_(0)
    assert C.spill_all() == 1
    return foreign, x, expected


def destroy(stream):
    assert gpu.cudaStreamDestroy(ctypes.c_void_p(stream.cuda_stream)) == 0


def fail_a_kernel():
    """On the current device's default stream; it is noticed by who waits for it."""
    assert gpu.vgpu_kernel_begin(None, b"a kernel that asserts") == 0
    gpu.vgpu_kernel_fail(710)
    gpu.vgpu_kernel_end()


def repeated(count=6, fit=4):
    """Tensors of 8 MiB, of which some fit, and what writes and reads each in turn for ever, an
    operator at a time. The step has been learned: copies to the host are made ahead of need."""
    shape = (2 * MIB,)
    out = torch.empty(shape, dtype=torch.int32, device=CUDA)
    managed.budget(CUDA, 8 * (fit + 1) * MIB + 2 * MIB)
    tensors = [made(8) for _ in range(count)]

    def operators():
        for step in itertools.count():
            for i, t in enumerate(tensors):
                late = torch.full(shape, 1000 * i + step, dtype=torch.int32).pin_memory()
                yield t.copy_(late, non_blocking=True)
            for t in tensors:
                yield out.copy_(t)

    steps = operators()
    for _ in range(8 * 2 * count):
        next(steps)
    assert C.step_state(1)["follows"]
    return tensors, steps


def until(came, operators):
    """Does what repeated() returned until came() is true. Each operator queues a copy that keeps 8
    MiB of pinned memory until something waits for it, so four steps are the most."""
    for _ in range(48):
        if came():
            return
        next(operators)
    raise AssertionError(f"it has not come in four steps: {C.step_state(1)}\n{managed.stats()}")


def until_spare(operators):
    """Does operators until one more copy has been made ahead of need."""
    before = managed.stats()["spare"]
    until(lambda: managed.stats()["spare"] > before, operators)


def ahead():
    """On a device that is short of room: x, y, `late`, full of 1, and two functions. work() copies
    that 20 times to y, as late as may be: there is a point behind one of the copies. leave() makes
    x leave, whose last use has been before that of y, and says what it holds then."""
    managed.budget(CUDA, 52 * MIB)
    x, y = made(16), made(16)
    others = [made(16) for _ in range(3)]
    assert C.is_spilled(x)
    del others
    x.add_(0)
    y.add_(0)
    torch.cuda.synchronize()
    late = torch.full((4 * MIB,), 1, dtype=torch.int32).pin_memory()

    def work():
        for _ in range(20):
            y.copy_(late, non_blocking=True)

    def leave():
        new = [empty(16), empty(16)]
        assert C.is_spilled(x)
        assert not C.is_spilled(y)
        del new
        return x.cpu()

    return x, y, late, work, leave


def copies_beside_a_spare():
    """Which copies after repeated() an operator makes before which a copy is made ahead of need."""
    _, operators = repeated()
    calls = Calls()
    copies = [0]

    def came():
        copies.append(calls["MemcpyAsync"])
        return managed.stats()["spare"] > spares

    spares = managed.stats()["spare"]
    until(came, operators)
    return range(copies[-2] + 1, copies[-1] + 1)


def give_up_spares():
    """The host has no room, and tensors of cuda:1, where two of 8 MiB fit, need it: copies on the
    host of tensors that are at home are given up. Returns those of cuda:1."""
    managed.budget("cuda:1", 22 * MIB)
    others = [empty(8, "cuda:1")]
    managed.budget("cpu", C.host_memory()["used"])
    with contextlib.suppress(torch.OutOfMemoryError):
        others.extend(empty(8, "cuda:1") for _ in range(16))
    away = sum(C.residency(device)["spilled"] for device in (CUDA, "cuda:1"))
    assert len(others) > 1
    assert C.host_memory()["used"] == away
    managed.budget("cpu", 1 << 34)
    return others


class Before:
    """What is done before the nth call of a function of the runtime, as another thread could."""

    def __init__(self, name, n, act):
        self.done = False

        def once():
            self.done = True
            act()

        self.act = ctypes.CFUNCTYPE(None)(once)  # lives as long as the runtime may call it
        gpu.vgpu_before(name.encode(), ctypes.c_long(n), self.act)


def in_a_backward_pass(use, device=CUDA):
    """A loss whose backward() calls use()."""

    class Uses(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            use()
            return g

    w = torch.ones(4, device=device).as_subclass(ManagedTensor).requires_grad_()
    return Uses.apply(w).sum()


def end():
    """Ends a program whose backward pass has just returned, without taking the interpreter down: a
    thread of torch's engine may still take the GIL, which aborts the process then (traps.md)."""
    sys.stdout.flush()
    ctypes.CDLL(None).exit(0)


class recorded:
    """A stream that Python does not know to be recorded."""

    def __init__(self, stream):
        self.stream = ctypes.c_void_p(stream.cuda_stream)

    def __enter__(self):
        assert gpu.cudaStreamBeginCapture(self.stream, 2) == 0

    def __exit__(self, *error):
        gpu.cudaStreamEndCapture(self.stream, ctypes.byref(ctypes.c_void_p()))
        gpu.cudaGetLastError()


__all__ = [
    "CUDA",
    "MIB",
    "Before",
    "C",
    "Calls",
    "ManagedTensor",
    "ahead",
    "contexts",
    "copies_beside_a_spare",
    "ctypes",
    "destroy",
    "empty",
    "end",
    "fail_a_kernel",
    "give_up_spares",
    "gpu",
    "in_a_backward_pass",
    "left_from_a_foreign_stream",
    "made",
    "managed",
    "pending",
    "pinned",
    "races",
    "recorded",
    "repeated",
    "same",
    "stream_of_another_library",
    "sys",
    "torch",
    "until",
    "until_spare",
]
