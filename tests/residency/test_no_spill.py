"""Budgets that forbid spilling, and reserves: what they refuse, what it says, nothing is lost."""

import pytest
import torch
from support.devices import D0, D1, ON_CUDA, TOTAL, device_module
from support.pressure import MiB, counted, moved, nothing_left, sized, spill  # noqa: F401

import managed
from managed import _C

LARGE = 20 if ON_CUDA else 4  # MiB; on CUDA a tensor of this size has segments of its own


def failure(call):
    """The text of the error; nothing is kept alive."""
    with pytest.raises(managed.OutOfMemoryError) as caught:
        call()
    return str(caught.value.with_traceback(None))


def all_is_there(kept):
    assert not any(map(_C.is_spilled, kept))
    assert [t[0].item() for t in kept] == [float(i) for i in range(len(kept))]
    return True


# ---- spill=False


@pytest.mark.parametrize("as_block", [True, False], ids=["block", "call"])
def test_a_request_that_needs_room_is_refused_and_nothing_leaves(as_block):
    kept = [sized(LARGE, float(i)) for i in range(4)]
    before = _C.capacity(0)
    with moved() as m:
        budget = managed.budget(D0, counted() + MiB, spill=False)
        if as_block:
            budget = budget.__enter__()
        text = failure(lambda: sized(LARGE) + 1)
        assert all_is_there(kept)
        if as_block:
            budget.__exit__(None, None, None)
        else:
            managed.budget(D0, None)
    assert (m["spill"], m["drop"]) == (0, 0)
    assert f"The budget of {D0} forbids spilling" in text
    assert "managed.budget() with spill=True or a larger size" in text
    assert f"{4 * LARGE} MiB that its budget keeps there (spill=False)" in text
    assert "were moved away" not in text
    assert (_C.capacity(0), budget.spill) == (before, False)
    assert "no spilling" in repr(budget)


@pytest.mark.not_under_torture("what leaves before each operator does not leave here")
def test_the_end_of_the_block_lets_bytes_leave_again():
    kept = [sized(LARGE, float(i)) for i in range(4)]
    room = counted() + MiB
    with managed.budget(D0, room):
        with managed.budget(D0, room, spill=False):
            failure(lambda: sized(LARGE))
            with managed.budget(D0, room), moved() as m:  # the default allows it
                kept.append(sized(LARGE, 4.0))
            assert m["spill"] + m["drop"] == 1
            failure(lambda: sized(LARGE))
        with moved() as m:
            kept.append(sized(LARGE, 5.0))
    assert m["spill"] + m["drop"] == 1
    assert [t[0].item() for t in kept] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_what_had_left_comes_home_where_there_is_room():
    """If there is none, the operator is refused, and the bytes wait on the host."""
    away, here = sized(LARGE, 2.0), sized(LARGE, 3.0)
    spill(away)
    here.sum()
    with managed.budget(D0, counted() + MiB, spill=False):
        assert f"The budget of {D0} forbids spilling" in failure(away.sum)
        assert (_C.is_spilled(away), _C.is_spilled(here)) == (True, False)
    with managed.budget(D0, counted() + (LARGE + 4) * MiB, spill=False):
        assert away.sum().item() == 2.0 * LARGE * MiB / 4
        assert not _C.is_spilled(here)


def test_a_budget_below_what_is_there_is_refused_and_changes_nothing():
    kept = [sized(LARGE, float(i)) for i in range(4)]
    size = (2 * LARGE + 1) * MiB
    with managed.budget(D0, "200MiB"):
        with moved() as m:
            text = failure(lambda: managed.budget(D0, size, spill=False))
        assert _C.capacity(0) == 200 * MiB
        assert _C.set_capacity(D0, 200 * MiB, True, False) == (True, False)  # spilling is allowed
        assert f"a budget of {size} bytes with spill=False" in text
        assert (m["spill"], m["drop"]) == (0, 0)
        assert all_is_there(kept)


def test_other_devices_keep_to_their_own_budgets():
    kept, other = [sized(LARGE, float(i)) for i in range(3)], sized(LARGE, device=D1)
    with managed.budget(D0, counted() + MiB, spill=False), managed.budget(D1, 0):
        assert _C.is_spilled(other)
        assert all_is_there(kept)


@pytest.mark.not_under_torture("it counts what is there")
@pytest.mark.only_simulated("budgets on CUDA are kept by segments")
def test_kept_copies_make_room_first():
    """They cost nothing, and are no tensors of the program."""
    x, y = sized(LARGE, 2.0, device=D1), sized(LARGE, 3.0)
    y.pin()
    before = device_module.memory_allocated(D0)
    assert torch.dot(x, y).item() == 6.0 * LARGE * MiB / 4
    assert device_module.memory_allocated(D0) == before + LARGE * MiB
    y.unpin()
    with managed.budget(D0, before, spill=False):
        assert device_module.memory_allocated(D0) == before
        assert (_C.is_spilled(x), _C.is_spilled(y)) == (False, False)


@pytest.mark.parametrize("spill", [None, 0, "no"])
def test_spill_is_a_bool(spill):
    with pytest.raises(TypeError, match=f"spill is True or False, not {spill!r}"):
        managed.budget(D0, "64MiB", spill=spill)
    with pytest.raises(TypeError, match="positional"):
        managed.budget(D0, "64MiB", False)
    assert _C.capacity(0) == TOTAL


def test_the_host_has_nothing_to_keep():
    before = _C.host_memory()["limit"]
    with pytest.raises(ValueError, match="tensors do not leave the host"):
        managed.budget("cpu", None, spill=False)
    assert _C.host_memory()["limit"] == before


def test_give_back_makes_nothing_leave():
    kept = [sized(LARGE, float(i)) for i in range(3)]
    with managed.budget(D0, None, spill=False):
        managed.give_back(D0, None)
        assert all_is_there(kept)
    assert managed.give_back(D0, None) >= 3 * LARGE * MiB


# ---- a reserve


@pytest.mark.parametrize(
    ("size", "reserve", "expected"),
    [
        (None, "56MiB", TOTAL - 56 * MiB),
        (None, "25%", TOTAL - TOTAL // 4),
        (None, 0, TOTAL),
        (None, TOTAL, 0),
        ("64MiB", "56MiB", 64 * MiB),
        ("100%", 56 * MiB, TOTAL - 56 * MiB),
    ],
)
def test_a_reserve_is_left_free(size, reserve, expected):
    with managed.budget(D1, size, reserve=reserve) as budget:
        assert budget.bytes == _C.capacity(D1) == expected
    assert _C.capacity(D1) == TOTAL


@pytest.mark.parametrize(
    ("reserve", "error", "says"),
    [
        (TOTAL + 1, ValueError, f"has {TOTAL} bytes; a reserve of {TOTAL + 1} is more"),
        ("101%", ValueError, f"no part of {D1}"),
        ("much", ValueError, "is no size"),
        (-1, ValueError, "is no size"),
        (1.5, TypeError, "a size is an int or a string"),
    ],
)
def test_a_reserve_that_cannot_be_meant_changes_nothing(reserve, error, says):
    with pytest.raises(error, match=says):
        managed.budget(D1, "64MiB", reserve=reserve)
    assert _C.capacity(D1) == TOTAL


def test_a_reserve_of_the_host():
    with managed.budget("cpu", None) as whole, managed.budget("cpu", None, reserve="1MiB") as cap:
        assert cap.bytes == whole.bytes - MiB == _C.host_memory()["limit"]


@pytest.mark.not_under_torture("it counts what leaves")
def test_what_the_program_needs_beside_fits_into_the_reserve():
    with managed.budget(D0, None, reserve="100MiB"):
        kept = [sized(LARGE, float(i)) for i in range(400 // LARGE)]
        assert device_module.memory_allocated(D0) <= TOTAL - 100 * MiB
        assert sum(map(_C.is_spilled, kept)) >= (400 * MiB - TOTAL + 100 * MiB) // (LARGE * MiB)
