"""Streams, graphs and private pools of CUDA: bytes leave only when nothing can use them any more.

Run by `make gpu`. Every test makes a stream busy for about a tenth of a second before the work that
matters, so that a step that does not wait reads or overwrites too early.
"""

import gc

import pytest
import torch

from managed import _C as C
from managed import ManagedTensor

pytestmark = pytest.mark.gpu
pytest_plugins = ["emptied"]

CUDA = "cuda:0"
MIB = 1 << 20
BUSY = 200_000_000  # cycles


@pytest.fixture
def side():
    stream = torch.cuda.Stream(CUDA)
    stream.wait_stream(torch.cuda.current_stream())
    yield stream
    stream.synchronize()


def test_a_spill_waits_for_the_writer_on_another_stream(empty, made, spilled, side):
    x = made(64)
    expected = x.cpu() + 1
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(BUSY)
        x.add_(1)
    assert C.spill_all() >= 1
    assert spilled(x)
    assert torch.equal(x.cpu(), expected)


def test_a_drop_waits_for_the_reader_on_another_stream(empty, made, side):
    """The copy on the host is good, so nothing is copied; the block must not be reused at once."""
    x = made(64)
    C.spill_all()
    expected = x.cpu() * 2
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(BUSY)
        y = x * 2
    C.spill_all()
    others = [torch.zeros(16 * MIB, device=CUDA) for _ in range(4)]
    side.synchronize()
    assert torch.equal(y.cpu(), expected)
    del others


def test_a_tensor_that_dies_waits_for_the_reader(empty, made, side):
    x = made(64)
    expected = x.cpu() * 2
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(BUSY)
        y = x * 2
    del x
    others = [torch.zeros(16 * MIB, device=CUDA) for _ in range(4)]
    side.synchronize()
    assert torch.equal(y.cpu(), expected)
    del others


def test_a_restored_tensor_is_ready_on_every_stream(empty, made, spilled, side):
    x = made(64)
    expected = x.cpu() + 1
    C.spill_all()
    with torch.cuda.stream(side):
        y = x + 1
    assert not spilled(x)
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(y.cpu(), expected)


def test_backward_over_two_streams(empty, side):
    """The engine tells the allocator of its consumers' streams, past every operator."""
    torch.manual_seed(0)
    a = torch.rand(1024, 1024, device=CUDA)

    def gradient(wrap):
        x = wrap(a.clone()).requires_grad_()
        y = x @ x
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = (y @ y).relu() @ y
        torch.cuda.current_stream().wait_stream(side)
        (z @ x).sum().backward()
        return x.grad.cpu()

    expected = gradient(lambda t: t)
    for _ in range(5):
        assert torch.equal(gradient(lambda t: t.as_subclass(ManagedTensor)), expected)


def pending():
    """Bytes that were freed and wait for another stream."""
    stats = torch.cuda.memory_stats(0)
    return stats["active_bytes.all.current"] - stats["allocated_bytes.all.current"]


def test_record_stream_reaches_the_block_inside(empty, made):
    x = made(64)
    busy = torch.cuda.Stream(CUDA)  # no managed operator knows of it
    with torch.cuda.stream(busy):
        torch.cuda._sleep(BUSY)
    x.record_stream(busy)
    before = pending()
    del x
    assert pending() - before >= 64 * MIB
    busy.synchronize()
    torch.empty(1, device=CUDA)
    assert pending() <= before


def test_a_stream_of_another_library_ends_adoption(run_python):
    """It may be destroyed at any time: nothing new leaves, what can leave waits for the device."""
    run_python("""
        import ctypes, torch, managed
        from managed import _C as C
        x = torch.rand(1 << 22, device="cuda:0").as_subclass(managed.ManagedTensor) + 0
        expected = x.cpu() + 1
        runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")
        raw = ctypes.c_void_p()
        assert runtime.cudaStreamCreate(ctypes.byref(raw)) == 0
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.ExternalStream(raw.value)):
            torch.cuda._sleep(100_000_000)
            x.add_(1)
            later = x + 0
        torch.cuda.synchronize()
        assert runtime.cudaStreamDestroy(raw) == 0
        assert C.spill_all() == 1
        assert C.is_spilled(x) and not C.is_spilled(later)
        assert torch.equal(x.cpu(), expected)
    """)


GRAPH = """
    import torch, managed
    from managed import _C as C
    def made(value=1.0):
        return torch.full((1 << 22,), value, device="cuda:0").as_subclass(managed.ManagedTensor) + 0
    def warm(f):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            f()
        torch.cuda.current_stream().wait_stream(stream)
"""


# Torch warns of what it records where everything is refused.
REFUSED = """
    import warnings
    warnings.filterwarnings("ignore", "The CUDA Graph is empty")
"""


def test_a_graph_keeps_what_it_was_recorded_with(run_python):
    run_python(
        GRAPH
        + """
    x, idle = made(), made()
    warm(lambda: x * 2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        assert C.spill_all() == 0, "nothing leaves while a graph is recorded"
    assert C.spill_all() == 1
    assert C.is_spilled(idle) and not C.is_spilled(x) and not C.is_spilled(y)
    for value in (3.0, 5.0):
        x.fill_(value)
        C.spill_all()
        graph.replay()
        torch.cuda.synchronize()
        assert (y == 2 * value).all()
    """
    )


def test_a_tensor_that_is_away_is_refused_in_a_recording(run_python):
    run_python(
        GRAPH
        + REFUSED
        + """
    x = made()
    warm(lambda: x * 2)
    assert C.spill_all() >= 1
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            x * 2
    except RuntimeError as e:
        assert "a CUDA graph is being recorded on cuda:0" in str(e), e
    else:
        raise AssertionError("it was recorded")
    torch.cuda.synchronize()
    assert (x == 1).all(), "afterwards it comes back as ever"
    """
    )


def test_a_recording_in_a_full_device_fails_as_in_torch(run_python):
    run_python(
        GRAPH
        + REFUSED
        + """
    managed.budget("cuda:0", torch.cuda.memory_reserved(0) + (160 << 20))
    x = made()
    idle = [made() for _ in range(8)]
    warm(lambda: x * 2)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            kept = [x * i for i in range(20)]
    except torch.OutOfMemoryError:
        pass
    else:
        raise AssertionError("there was room")
    torch.cuda.synchronize()
    assert all((t == 1).all() for t in idle)
    """
    )


def test_blocks_of_a_memory_pool_stay_there(run_python):
    run_python(
        GRAPH
        + """
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = made()
    outside = made()
    inside + 1
    assert C.spill_all() == 1
    assert C.is_spilled(outside) and not C.is_spilled(inside)
    del inside
    """
    )


def test_many_streams_and_spills(empty, made):
    """A mixture in one process: eight streams, tensors that leave at any time, exact sums."""
    streams = [torch.cuda.Stream(CUDA) for _ in range(8)]
    tensors = [torch.zeros(4 * MIB, device=CUDA).as_subclass(ManagedTensor) + 0 for _ in range(8)]
    torch.cuda.synchronize()
    for round_ in range(40):
        stream = streams[round_ % 8]
        with torch.cuda.stream(stream):
            tensors[round_ % 8].add_(1)
        if round_ % 3 == 0:
            C.spill_all()
    torch.cuda.synchronize()
    assert all((t == 5).all() for t in tensors)
    del tensors
    gc.collect()
