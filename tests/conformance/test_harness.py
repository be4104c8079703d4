"""The sweeps can fail: each kind of difference is found, and nothing is excused by accident."""

import math

import pytest
import torch
from support.compare import difference

import managed

from .conftest import FLOORS
from .known import USED_AGAIN, Known
from .operators import run_operator
from .placement import OnDevice, Scattered
from .tally import Outcome, as_property, counts, from_property, settle
from .test_operators import operators


def float_of(bits):
    return torch.tensor([bits], dtype=torch.int32).view(torch.float32)


def uncoalesced(t):
    return torch.sparse_coo_tensor(t.indices(), t.values(), t.shape, check_invariants=True)


X = torch.arange(6.0).reshape(2, 3)
SPARSE = X.to_sparse()
COMPLEX = X.to(torch.complex64)
DIFFERENT = {
    "sizes": (X, X[:1]),
    "dtype": (X, X.double()),
    "strides": (X, X.t().contiguous().t()),
    "layout": (X, X.to_sparse()),
    "requires_grad": (X, X.clone().requires_grad_()),
    "conjugate": (COMPLEX, COMPLEX.conj_physical().conj()),
    "values differ by up to 1": (X, X + torch.eye(2, 3)),
    "NaN": (X / 0, X.log()),
    "NaN, infinity or the sign of zero": (torch.tensor([0.0]), torch.tensor([-0.0])),
    "values": (float_of(0x7FC00000), float_of(0x7FC00001)),
    "structure": ((X, X), [X, X]),
    "None instead of": (X, None),
    "2 instead of 1": (1, 2),
    "coalesced": (SPARSE, uncoalesced(SPARSE)),
}


def test_a_form_that_a_copy_does_not_keep_can_be_left_out():
    for what in ("strides", "conjugate"):
        assert difference(*DIFFERENT[what], form=False) is None


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_difference_is_named(what):
    expected, actual = DIFFERENT[what]
    assert what in difference(expected, actual)


@pytest.mark.parametrize("x", [X, X.t(), SPARSE, X.log(), X > 2, None, math.nan])
def test_what_is_equal_passes(x):
    assert difference([x], [x.clone() if isinstance(x, torch.Tensor) else x]) is None


def named(name):
    return next(op for op in operators(torch.float32) if op.name == name)


def test_an_operator_that_raises_on_one_side_only_is_a_failure():
    operator = named("add")
    with managed.frozen():  # nothing is aligned
        found = run_operator(operator, torch.float32, Scattered, samples=6, seed=0)
    assert found.mixed > 0
    assert any("on the same device" in text for text in found.forward)


def test_a_result_in_the_wrong_place_is_a_failure():
    class Elsewhere(OnDevice):
        def objection(self, result):
            return f"result on {result.device}"

    found = run_operator(named("add"), torch.float32, Elsewhere, samples=1, seed=0)
    assert len(found.forward) == 1


def test_bytes_left_over_are_a_failure():
    kept = []

    class Keeping(OnDevice):
        def objection(self, result):
            kept.append(result)

    found = run_operator(named("add"), torch.float32, Keeping, samples=1, seed=0)
    assert "bytes left over" in found.forward[0]
    found = run_operator(named("add"), torch.float32, OnDevice, samples=1, seed=0)
    assert not found.forward, "the same bytes are reported of one operator"


def test_only_the_named_failure_of_a_known_operator_is_excused():
    known = {"f": Known("a reason", "values differ", dtypes=("float32",))}
    excused = Outcome("f", "float32", samples=1, forward=["sample 0: values differ"])
    assert settle([excused], known) == ([], ["f (float32): a reason"])
    small = {"f": Known("a reason", USED_AGAIN.pattern)}
    for apart, failures in (("1.86e-09", 0), ("9.9e-06", 0), ("1e-05", 1), ("0.2", 1), ("3", 1)):
        text = f"sample 0: values differ by up to {apart} in 1 places"
        found = settle([Outcome("f", "float32", samples=1, backward=[text])], small)[0]
        assert bool(found) == bool(failures), apart
    other = Outcome("f", "float32", samples=1, forward=["sample 0: RuntimeError"])
    assert len(settle([other], known)[0]) == 2  # the failure, and the entry that nothing needed
    of_another_dtype = Outcome("f", "int64", samples=1, forward=["sample 0: values differ"])
    assert len(settle([of_another_dtype], known)[0]) == 1


def test_an_operator_of_which_nothing_ran_is_a_failure_unless_torch_refused():
    assert settle([Outcome("f", "float32")], {})[0] == ["f (float32): nothing ran"]
    assert settle([Outcome("f", "float32", refused=["sample 0: no"])], {}) == ([], [])


def test_counts_survive_the_way_to_the_table():
    found = [
        Outcome("f", "k", samples=3, differentiated=1),
        Outcome("g", "k", samples=1, forward=["x"]),
    ]
    again = from_property(as_property("sweep", found, 0, 1, []))
    assert counts(again) == counts(found)
    assert (counts(found)["forward equal"], counts(found)["forward failed"]) == (1, 1)
    assert all(set(floor) <= set(counts(found)) for floor in FLOORS.values())
