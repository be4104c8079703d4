"""Operands whose bytes are away and that are needed on another device than theirs."""

import threading

import pytest
import torch
from support.pressure import BYTES, N, make, moved, nothing_left, on, spill  # noqa: F401

import managed
from managed import _C

pytestmark = pytest.mark.not_under_torture("it counts what moves")


def large():
    """On sim:1, and so large that operators run there."""
    return on(torch.full((4, N), 2.0), "sim:1")


def test_from_the_host_straight_to_where_they_are_needed():
    here, x = make()
    spill(x)
    y = large()
    torch.sim.reset_peak_memory_stats("sim:0")
    before = torch.sim.memory_allocated("sim:0")
    with moved() as m:
        result = x * y
    assert m["restore"] == 0
    assert {k: n for k, n in m["links"].items() if n} == {"cpu->sim:1": BYTES}
    assert _C.is_spilled(x)
    assert torch.sim.max_memory_allocated("sim:0") == before
    assert torch.equal(result.cpu(), here * torch.full((4, N), 2.0))
    with moved() as m:
        x + y
    assert not any(m["links"].values()), "the copy is kept as any other"
    assert torch.equal(x.cpu(), here), "and x comes home as ever"


def test_from_a_peer():
    """sim:0 is full, and what leaves it goes to sim:1, where it is needed next."""
    here, x = make()
    y = large()
    with managed.budget("sim:0", torch.sim.memory_allocated("sim:0") + 1):
        other = on(torch.ones(N))
        assert _C.is_spilled(x)
        with moved() as m:
            result = x * y
        assert m["restore"] == 0
        assert sum(m["links"].values()) == BYTES
        assert torch.equal(result.cpu(), here * torch.full((4, N), 2.0))
        assert torch.equal(x.cpu(), here)
    del other


def test_to_the_host():
    here, x = make()
    w = torch.randn(4, N).as_subclass(managed.ManagedTensor).pin()
    spill(x)
    with moved() as m:
        result = x * w
    assert m["restore"] == 0
    assert torch.equal(result, here * w)


def test_a_view_takes_its_part_alone():
    here, x = make()
    view = x[N // 4 : N // 2]
    spill(x)
    y = on(torch.full((4, N // 4), 2.0), "sim:1")
    with moved() as m:
        result = view * y
    assert m["restore"] == 0
    assert {k: n for k, n in m["links"].items() if n} == {"cpu->sim:1": BYTES // 4}
    assert torch.equal(result.cpu(), here[N // 4 : N // 2] * torch.full((4, N // 4), 2.0))


def test_strides_go_along():
    here = torch.randn(64, N // 64)
    x = on(here).t()
    spill(x)
    y = on(torch.full((4, N // 64, 64), 2.0), "sim:1")
    with moved() as m:
        result = x * y
    assert m["restore"] == 0
    expected = here.t() * torch.full((4, N // 64, 64), 2.0)
    assert result.stride() == expected.stride()
    assert torch.equal(result.cpu(), expected)


def test_a_view_with_holes_is_taken_of_the_whole():
    here, x = make()
    view = x[::2]
    spill(x)
    y = on(torch.full((4, N // 2), 2.0), "sim:1")
    with moved() as m:
        result = view * y
    assert m["restore"] == 0
    assert {k: n for k, n in m["links"].items() if n} == {"cpu->sim:1": BYTES}
    assert torch.equal(result.cpu(), here[::2] * torch.full((4, N // 2), 2.0))


def test_gradients_come_to_what_is_away():
    _, x = make(requires_grad=True)
    spill(x)
    y = large()
    with moved() as m:
        loss = (x * y).sum()
    assert m["restore"] == 0
    loss.backward()
    assert x.grad.device == x.device
    assert torch.equal(x.grad.cpu(), torch.full((N,), 8.0))


def test_a_copy_that_fails_leaves_it_where_it_is():
    here, x = make()
    spill(x)
    y = large()
    with managed.debug.torture(odds=None, fail_copy=1) as torture:
        with pytest.raises(RuntimeError, match=r"copy of .* failed"):
            x * y
        assert _C.is_spilled(x)
        assert _C.residency("sim:0")["moving"] == 0
        assert torch.equal((x * y).cpu(), here * torch.full((4, N), 2.0))
    assert torture.failures == 1


def test_threads_that_want_it_here_and_there(monkeypatch):
    """Who wants it at home waits for who reads it where it is."""
    monkeypatch.setattr(managed, "COPY_WARNING", 0)
    here, x = make()
    y = large()
    failures = []

    def work(f, expected):
        try:
            for _ in range(50):
                _C.spill_all()
                assert torch.equal(f().cpu(), expected)
                x.add_(0)  # what was copied is of no use any more
        except BaseException as error:
            failures.append(error)

    jobs = [(lambda: x * y, here * torch.full((4, N), 2.0)), (lambda: x + 1, here + 1)]
    threads = [threading.Thread(target=work, args=job) for job in jobs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures
