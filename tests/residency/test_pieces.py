"""Free bytes in pieces on CUDA: neighbours leave, so that the pieces come together."""

import contextlib
import gc
import random

import pytest
import torch
from support.devices import D0, ON_CUDA
from support.pressure import MiB, nothing_left, on  # noqa: F401

import managed

pytestmark = [
    pytest.mark.skipif(not ON_CUDA, reason="simulated devices have no pieces"),
    pytest.mark.not_under_torture("it counts what leaves"),
]

BLOCK = 5 * MiB  # torch takes 20 MiB from the driver for requests of 1 to 10 MiB
SEGMENTS = 8


@contextlib.contextmanager
def filled():
    """Tensors that have all of the device; those that are left in the end have their values."""
    gc.collect()
    torch.cuda.empty_cache()
    with managed.budget(D0, SEGMENTS * 4 * BLOCK):
        tensors = [on(torch.full((BLOCK // 4,), float(i))) for i in range(SEGMENTS * 4)]
        assert managed.stats()["devices"][D0]["used"] >= SEGMENTS * 4 * BLOCK
        yield tensors
        every = SEGMENTS * 4 // len(tensors)
        assert all((t == every * i).all().item() for i, t in enumerate(tensors))
        tensors.clear()


@pytest.fixture
def pieces(not_learning):
    """Tensors that have half of the device; between them are free blocks."""
    with filled() as tensors:
        del tensors[1::2]
        yield tensors


@pytest.fixture
def full(not_learning):
    """Tensors that have all of the device, in the order of their use: no neighbours."""
    with filled() as tensors:
        for i in range(SEGMENTS * 4):
            tensors[i * 9 % len(tensors)].add_(0)
        yield tensors


def left(work):
    """What work() gives, and the bytes that left for it."""
    before = managed.stats()["spill_bytes"]
    return work(), managed.stats()["spill_bytes"] - before


def ones(blocks):
    return torch.ones(blocks * BLOCK // 4, device=D0)


@pytest.mark.parametrize(("blocks", "leave"), [(1, 0), (2, 1), (3, 1), (4, 2)])
def test_as_few_bytes_leave_as_make_the_piece(pieces, blocks, leave):
    random.shuffle(pieces)  # the least recently used ones are no neighbours
    for t in pieces:
        t.add_(0)
    pieces.sort(key=lambda t: t[0].item())
    x, gone = left(lambda: ones(blocks))
    assert gone == leave * BLOCK
    assert x.sum().item() == x.numel()


def test_of_the_windows_the_one_that_was_used_least_recently_leaves(pieces):
    for t in pieces[:4] + pieces[6:]:
        t.add_(0)
    _, gone = left(lambda: ones(4))
    assert gone == 2 * BLOCK
    assert [managed._C.is_spilled(t) for t in pieces] == [i in (4, 5) for i in range(len(pieces))]


def test_what_is_pinned_ends_a_window(pieces):
    for t in pieces[2:4] + pieces[6::2]:
        t.pin()
    _, gone = left(lambda: (ones(4), ones(4)))
    assert gone == 4 * BLOCK
    gone_now = [managed._C.is_spilled(t) for t in pieces]
    assert gone_now == [i in (0, 1, 4, 5) for i in range(len(pieces))]
    for t in pieces[2:4] + pieces[6::2]:
        t.unpin()


def test_what_has_left_becomes_a_part_of_a_window(full):
    """The least recently used blocks lie in four segments; what lies beside one of them follows."""
    x, gone = left(lambda: ones(4))
    assert gone == (4 + 3) * BLOCK
    assert x.sum().item() == x.numel()


def test_what_is_used_again_soon_stays(pieces):
    for t in pieces[:8] + pieces[10:]:
        managed.hint(t, reuse=True)
    _, gone = left(lambda: ones(4))
    assert gone == 2 * BLOCK
    assert [managed._C.is_spilled(t) for t in pieces] == [i in (8, 9) for i in range(len(pieces))]


def test_without_a_window_the_error_is_as_it_was(pieces):
    """Each segment has a block that may not leave."""
    for t in pieces[::2]:
        t.pin()
    with pytest.raises(torch.OutOfMemoryError):
        ones(4)
    for t in pieces[::2]:
        t.unpin()
    assert ones(4).sum().item() == 4 * BLOCK // 4
