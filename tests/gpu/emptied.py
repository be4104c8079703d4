"""What the tests of memory on real devices share: tensors that may leave, and an empty device."""

import gc
import time

import pytest
import torch

import managed
from managed import _C as C
from managed import ManagedTensor

CUDA = "cuda:0"
MIB = 1 << 20


@pytest.fixture
def made():
    """Makes a managed tensor of so many MiB on cuda:0 whose bytes may leave, with random values."""

    def make(mib, device=CUDA):
        plain = torch.rand(mib * MIB // 4, device=device)
        return plain.as_subclass(ManagedTensor) + 0  # a fresh result gets a handle at once

    return make


def empty_caches():
    """cuBLAS keeps workspace for each stream that it has seen: 32 MiB on Hopper.

    The engine's threads drop the last tensors of a test before a little after its backward pass.
    """
    time.sleep(0.2)
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


@pytest.fixture
def empty():
    """Nothing of torch's is on the device before the test and, but for its own, after it."""
    empty_caches()
    before = torch.cuda.memory_allocated(0)
    yield before
    managed.budget(CUDA, None)
    empty_caches()
    assert torch.cuda.memory_allocated(0) == before, "bytes were left on cuda:0"


@pytest.fixture
def cap(empty):
    """cap(mib): torch may reserve no more than that on cuda:0, beyond what is there already."""

    def set_cap(mib):
        return managed.budget(CUDA, torch.cuda.memory_reserved(0) + mib * MIB)

    return set_cap


@pytest.fixture
def spilled():
    return C.is_spilled
