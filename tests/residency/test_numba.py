"""Numba itself beside managed, in programs of their own: it may not share its first context."""

import importlib.util

import pytest
from support.devices import ON_CUDA

pytestmark = [
    pytest.mark.skipif(not ON_CUDA, reason="Numba knows CUDA devices alone"),
    pytest.mark.skipif(not importlib.util.find_spec("numba_cuda"), reason="needs numba-cuda"),
]

START = """
    import numpy, torch, managed
    from numba import cuda
    from managed import ManagedTensor, holders

    if {shares}:
        cuda.set_memory_manager(managed.integrations.numba_memory_manager())
    MIB, BLOCK = 2**20, 12 * 2**20

    def filled(value):
        return torch.full((BLOCK // 4,), float(value), device="cuda:0").as_subclass(ManagedTensor)

    def spilled():
        return managed.stats()["spill_bytes"]

    tensors = [filled(i) + 0 for i in range(5)]
    torch.cuda.empty_cache()
"""
END = """
    assert [t.sum().item() / t.numel() for t in tensors] == [0, 1, 2, 3, 4]
    print("done")
"""


def test_what_numba_has_not_freed_yet_is_freed(run_python):
    out = run_python(
        START.format(shares=False)
        + """
    arrays = [cuda.device_array(BLOCK, numpy.int8) for _ in range(12)]
    waiting = cuda.current_context().memory_manager.deallocations
    waiting.memory_capacity = 2**50  # it frees at a fifth of this, or at the tenth
    with waiting.disable():
        del arrays
    assert len(waiting) == 12, len(waiting)
    assert holders.report("cuda:0")["numba"].cached == 12 * BLOCK
    before = spilled()
    more = [torch.ones(BLOCK // 4, device="cuda:0") for _ in range(6)]
    assert len(waiting) == 0
    assert spilled() == before
    assert holders.report("cuda:0")["numba"].given == 12 * BLOCK
"""
        + END,
        own=True,
    )
    assert out == "done\n"


def test_tensors_leave_for_numba(run_python):
    out = run_python(
        START.format(shares=True)
        + """
    before, allocated = spilled(), torch.cuda.memory_allocated(0)
    arrays = [cuda.to_device(numpy.full(BLOCK, i, numpy.int8)) for i in range(18)]
    assert spilled() - before >= 2 * BLOCK
    assert [int(a.copy_to_host()[::MIB].sum()) for a in arrays] == [12 * i for i in range(18)]
    assert holders.report("cuda:0")["numba"][:2] == (0, 0)
    del arrays
    cuda.current_context().memory_manager.deallocations.clear()
    assert torch.cuda.memory_allocated(0) <= allocated
"""
        + END,
        own=True,
    )
    assert out == "done\n"
