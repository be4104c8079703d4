"""What every program of tests/test_fake_cuda.py begins with. Kernels do nothing, copies do."""

import ctypes
import os
import random

import torch

import managed
from managed import _C as C
from managed import ManagedTensor

MIB = 1 << 20
CUDA = "cuda:0"
fake = ctypes.CDLL(os.environ["LD_PRELOAD"])
fake.fake_pinned.restype = ctypes.c_size_t


def made(mib, device=CUDA):
    """A managed tensor with random bytes that may leave."""
    values = torch.tensor(random.sample(range(1 << 20), 1024), dtype=torch.int32)
    plain = values.repeat(mib * MIB // 4096).to(device)
    return plain.as_subclass(ManagedTensor).clone()


def same(tensor, host):
    return torch.equal(tensor.cpu(), host)


def log():
    """What the runtime was asked for since the last call."""
    path = os.environ["FAKE_CUDA_LOG"]
    if not os.path.exists(path):
        return []
    with open(path) as file:
        lines = file.read().split("\n")[:-1]
    os.truncate(path, 0)
    return lines


def contexts():
    """Indices of the devices that have one."""
    return [i for i in range(8) if fake.fake_contexts() >> i & 1]


def pinned():
    """Bytes of the host's memory that the driver has pinned."""
    return fake.fake_pinned()


def empty(mib, device=CUDA):
    """A managed tensor that may leave, of one block and nothing beside it."""
    small = torch.empty(1, dtype=torch.uint8, device=device).as_subclass(ManagedTensor)
    return small.new_empty(mib * MIB)


def capture(stream):
    fake.fake_capture(ctypes.c_void_p(stream.cuda_stream if stream else 0))


__all__ = [
    "CUDA",
    "MIB",
    "C",
    "capture",
    "contexts",
    "empty",
    "log",
    "made",
    "managed",
    "pinned",
    "same",
    "torch",
]
