"""CuPy and Numba beside managed on a real CUDA device: they are asked for memory, and get some.

Run by `make gpu`. The program first takes all of the card but 4 GiB, so that sizes are the same on
any card.
"""

import os
import subprocess
import sys
import textwrap

import pytest
import torch

import managed
from managed import holders

pytestmark = pytest.mark.gpu
pytest_plugins = ["emptied"]

CUDA = "cuda:0"
MIB = 1 << 20
ROOM, BLOCK = 4096 * MIB, 256 * MIB


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def small(empty, cupy):
    """A card with 4 GiB."""
    cupy.get_default_memory_pool().free_all_blocks()
    torch.cuda.empty_cache()
    ballast = cupy.cuda.runtime.malloc(torch.cuda.mem_get_info(0)[0] - ROOM)
    yield
    cupy.cuda.runtime.free(ballast)
    cupy.get_default_memory_pool().free_all_blocks()


def idle(made, blocks):
    tensors = [made(BLOCK // MIB) for _ in range(blocks)]
    return tensors, [t.double().sum().item() for t in tensors]


def gone_bytes():
    """What has left the card, copied now or before."""
    return sum(managed.stats()[f"{kind}_bytes"] for kind in ("spill", "drop"))


def test_what_cupy_keeps_comes_before_tensors(cupy, small, made):
    arrays = [cupy.ones(BLOCK, cupy.int8) for _ in range(9)]
    del arrays
    pool = cupy.get_default_memory_pool()
    assert pool.free_bytes() == 9 * BLOCK
    tensors, sums = idle(made, 5)
    before = gone_bytes()
    more = [torch.ones(BLOCK // 4, device=CUDA) for _ in range(5)]
    assert gone_bytes() == before
    assert pool.free_bytes() == 0  # CuPy gives back all blocks at once
    row = holders.report(CUDA)["cupy"]
    assert row.given >= 9 * BLOCK
    assert row.asks == 1
    assert [t.double().sum().item() for t in tensors] == sums
    del more


def test_the_report_is_all_of_the_card(cupy, small, made):
    array = cupy.ones(BLOCK, cupy.int8)
    cupy.ones(BLOCK, cupy.int8)  # cached from here on
    tensors, _ = idle(made, 2)
    report = holders.report(CUDA)
    free, total = torch.cuda.mem_get_info(0)
    assert sum(row.live + row.cached for row in report.values()) == total - free
    assert (report["cupy"].live, report["cupy"].cached) == (BLOCK, BLOCK)
    assert report["torch"].live >= 2 * BLOCK
    del array, tensors


def test_a_library_that_knows_nothing_gets_room(cupy, small, made):
    tensors, sums = idle(made, 14)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="out of memory"):
        cupy.cuda.runtime.malloc(4 * BLOCK)
    free = torch.cuda.mem_get_info(0)[0]
    gained = managed.give_back(CUDA, 4 * BLOCK)
    assert torch.cuda.mem_get_info(0)[0] - free >= gained >= 4 * BLOCK
    address = cupy.cuda.runtime.malloc(4 * BLOCK)
    cupy.cuda.runtime.free(address)
    assert [t.double().sum().item() for t in tensors] == sums


def test_tensors_leave_for_arrays_of_one_allocator(cupy, small, made):
    tensors, sums = idle(made, 14)
    before, allocated = gone_bytes(), torch.cuda.memory_allocated(0)
    with cupy.cuda.using_allocator(managed.integrations.cupy_allocator()):
        arrays = [cupy.arange(BLOCK // 8, dtype=cupy.int64) for _ in range(8)]
        assert gone_bytes() - before >= 6 * BLOCK
        assert int(sum(int(a.sum()) for a in arrays)) == 8 * sum(range(BLOCK // 8))
        with cupy.cuda.Stream():  # memory of a stream of CuPy's own
            assert int((cupy.ones(1000) * 3).sum()) == 3000
        empty = cupy.empty(0)
        assert empty.size == 0
        with pytest.raises(torch.OutOfMemoryError):
            cupy.ones(2 * ROOM, cupy.int8)
        del arrays, empty
    assert [t.double().sum().item() for t in tensors] == sums
    assert torch.cuda.memory_allocated(0) == allocated


NUMBA = """
    import numpy, torch, managed
    from numba import cuda
    from managed import ManagedTensor, holders

    {set_up}
    MIB, BLOCK = 2**20, 256 * 2**20
    ballast = []
    torch.zeros(1, device="cuda:0")
    free = torch.cuda.mem_get_info(0)[0]
    ballast = torch.empty(free - 4096 * MIB, dtype=torch.int8, device="cuda:0")
    tensors = [torch.full((BLOCK // 4,), float(i), device="cuda:0").as_subclass(ManagedTensor) + 0
               for i in range(5)]
    torch.cuda.empty_cache()
    {body}
    assert [t.sum().item() / t.numel() for t in tensors] == [0, 1, 2, 3, 4]
    print("done")
"""


def run(set_up, body):
    code = textwrap.dedent(NUMBA.replace("{set_up}", set_up).replace("{body}", body))
    env = {**os.environ, "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=100
    )
    assert done.stdout.split()[-1:] == ["done"], done.stdout + done.stderr


def test_what_numba_has_not_freed_yet_is_freed():
    pytest.importorskip("numba.cuda")
    run(
        "",
        """
    arrays = [cuda.device_array(BLOCK, numpy.int8) for _ in range(6)]
    waiting = cuda.current_context().memory_manager.deallocations
    waiting.memory_capacity = 2**50  # it frees at a fifth of this
    del arrays
    assert len(waiting) == 6
    before = managed.stats()["spill_bytes"]
    more = [torch.ones(BLOCK // 4, device="cuda:0") for _ in range(8)]
    assert len(waiting) == 0
    assert managed.stats()["spill_bytes"] == before
    assert holders.report("cuda:0")["numba"].given >= 6 * BLOCK
""".strip(),
    )


def test_tensors_leave_for_numba():
    pytest.importorskip("numba.cuda")
    run(
        "cuda.set_memory_manager(managed.integrations.numba_memory_manager())",
        """
    before = managed.stats()["spill_bytes"]
    arrays = [cuda.to_device(numpy.full(BLOCK, i, numpy.int8)) for i in range(12)]
    assert managed.stats()["spill_bytes"] > before
    assert [int(a[:4].copy_to_host().sum()) for a in arrays] == [4 * i for i in range(12)]
    del arrays
""".strip(),
    )
