"""What a recorded CUDA graph and a private memory pool forbid, on simulated devices.

Nothing here records a graph: tests/gpu does. What Python tells the compiled part is counted, and
what follows from it is the same for every kind of device. A process that has recorded a graph
remembers it for good, hence the interpreters of their own.
"""

from types import SimpleNamespace

import pytest
import torch

from managed import _C as C
from managed._torch_patches import graphs

SETUP = """
    import torch, managed
    from managed import _C as C
    managed.simulate(devices=1, memory="64MiB")
    def made():
        return torch.rand(1 << 16).as_subclass(managed.ManagedTensor).cuda(0)
"""


def test_nothing_leaves_while_a_graph_is_recorded(run_python):
    run_python(
        SETUP
        + """
    used, idle = made(), made()
    expected = used.cpu() + 1
    C.private_pool(1, True)
    result = used + 1
    assert C.spill_all() == 0
    C.private_pool(-1, True)
    assert C.spill_all() == 1
    assert C.is_spilled(idle)
    assert not C.is_spilled(used), "the graph goes on reading it where it is"
    assert not C.is_spilled(result), "its memory belongs to the graph"
    assert torch.equal(result.cpu(), expected)
    """
    )


def test_a_spilled_tensor_comes_home_for_good_when_a_graph_uses_it(run_python):
    run_python(
        SETUP
        + """
    x = made()
    expected = x.cpu()
    C.spill_all()
    assert C.is_spilled(x)
    C.private_pool(1, True)
    x + 1
    C.private_pool(-1, True)
    assert C.spill_all() == 0
    assert torch.equal(x.cpu(), expected)
    """
    )


def test_what_had_no_handle_then_gets_none_later(run_python):
    """An alias hides the storage while the graph is recorded; the graph uses it all the same."""
    run_python(
        SETUP
        + """
    plain = torch.rand(1 << 16, device="sim:0")
    hidden = plain.as_subclass(managed.ManagedTensor)
    C.private_pool(1, True)
    hidden + 1
    C.private_pool(-1, True)
    del plain
    hidden + 1
    assert C.spill_all() == 0
    fresh = made()
    assert C.spill_all() == 1
    """
    )


APART = (
    SETUP.replace("devices=1", "devices=2")
    + """
    def kept(f):
        before = managed.stats()
        f()
        after = managed.stats()
        return after["replica_hits"] - before["replica_hits"], after["copy"] - before["copy"]
    w, x = made(), torch.rand(4, 1 << 16).as_subclass(managed.ManagedTensor).cuda(1)
    assert kept(lambda: w * x) == (0, 1)
    assert kept(lambda: w * x) == (1, 0)
"""
)


@pytest.mark.parametrize("multiply", ["w * x", "torch.addcmul(x, w, x)"])  # typed, and boxed
def test_no_kept_copy_serves_a_graph(run_python, multiply):
    """It would be stale, or another's memory, when the graph is replayed."""
    run_python(
        APART
        + f"""
    C.private_pool(1, True)
    assert kept(lambda: {multiply}) == (0, 1), "a copy that is part of the graph"
    C.private_pool(-1, True)
    assert kept(lambda: {multiply}) == (0, 1), "a replay may write what the graph has touched"
    assert kept(lambda: {multiply}) == (0, 1)
    """
    )


@pytest.mark.parametrize(
    "write", ["w.add_(1)", "torch.ops.aten.logit_(w)", "torch.add(w, 1, out=w)"]
)
def test_what_a_graph_writes_has_no_copies(run_python, write):
    run_python(
        APART
        + f"""
    C.private_pool(1, True)
    {write}
    made_inside = w + 1
    C.private_pool(-1, True)
    for t in (w, made_inside):
        assert kept(lambda: t * x) == (0, 1)
        assert kept(lambda: t * x) == (0, 1), "no copy of it is kept"
    """
    )


def test_blocks_of_a_private_pool_stay(run_python):
    run_python(
        SETUP
        + """
    before = made()
    C.private_pool(1, False)
    inside = made()
    assert C.spill_all() == 1
    C.private_pool(-1, False)
    assert C.is_spilled(before) and not C.is_spilled(inside)
    inside + 1
    assert C.spill_all() == 0, "it got a handle when it was used again"
    """
    )


class Graph:
    def __init__(self, fails=None):
        self.fails = fails
        self.calls = []

    def capture_begin(self, pool=None, *, capture_error_mode="global"):
        self.calls.append(("begin", pool, capture_error_mode))
        if self.fails == "begin":
            raise RuntimeError("begin")

    def capture_end(self):
        self.calls.append(("end",))
        if self.fails == "end":
            raise RuntimeError("end")


@pytest.fixture
def counts(monkeypatch):
    """The sums that Python tells: of graphs, and of other pools."""
    told = {True: 0, False: 0}

    def private_pool(change, graph):
        told[graph] += change
        assert told[graph] >= 0

    monkeypatch.setattr(graphs, "C", SimpleNamespace(private_pool=private_pool))
    return told


@pytest.fixture
def graph_class():
    kind = type("WrappedGraph", (Graph,), dict(vars(Graph)))
    graphs.wrap_graph(kind)
    return kind


def test_a_graph_is_counted_from_begin_to_end(counts, graph_class):
    g = graph_class()
    g.capture_begin("pool", capture_error_mode="relaxed")
    assert counts[True] == 1
    g.capture_end()
    assert counts == {True: 0, False: 0}
    assert g.calls == [("begin", "pool", "relaxed"), ("end",)]


@pytest.mark.parametrize("fails", ["begin", "end"])
def test_a_recording_that_fails_is_over(counts, graph_class, fails):
    g = graph_class(fails)

    def record():
        g.capture_begin()
        g.capture_end()

    with pytest.raises(RuntimeError, match=fails):
        record()
    assert counts[True] == 0


def test_an_end_without_a_begin_counts_nothing(counts, graph_class):
    graph_class().capture_end()
    assert counts[True] == 0


def test_pools_are_counted_by_every_way_in(counts):
    calls = []
    names = [*graphs._BEGIN, graphs._END]
    module = SimpleNamespace(**{n: lambda *a, n=n: calls.append((n, a)) for n in names[1:]})
    graphs.wrap_pools(module)
    module._cuda_beginAllocateCurrentThreadToPool(0, (0, 1))
    module._cuda_beginAllocateCurrentStreamToPool(0, (0, 2))
    assert counts[False] == 2
    module._cuda_endAllocateToPool(0, (0, 1))
    module._cuda_endAllocateToPool(0, (0, 2))
    assert counts == {True: 0, False: 0}
    assert len(calls) == 4
    assert calls[0] == ("_cuda_beginAllocateCurrentThreadToPool", (0, (0, 1)))


def test_record_stream_brings_the_bytes_home(run_python):
    """The allocator is told of the block that the tensor has now."""
    run_python(
        SETUP
        + """
    x = made()
    C.spill_all()
    assert C.is_spilled(x)
    x.record_stream(torch.sim.current_stream(0))
    assert not C.is_spilled(x)
    small = torch.rand(3, device="sim:0").as_subclass(managed.ManagedTensor)
    small.record_stream(torch.sim.current_stream(0))
    """
    )


def test_the_backend_of_cuda_is_connected_where_it_was_built():
    """Importing attached it, or this torch has no CUDA; simulated devices do without."""
    if torch.version.cuda is None:
        assert not hasattr(getattr(torch.cuda.CUDAGraph, "capture_begin", None), "__wrapped__")
        return
    from managed import _cuda

    assert hasattr(torch.cuda.CUDAGraph.capture_begin, "__wrapped__")
    with pytest.raises(ValueError, match="takes the capsule"):
        _cuda.attach(object())
    _cuda.attach(C.bridge)  # again, which changes nothing
