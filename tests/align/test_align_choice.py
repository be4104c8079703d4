"""On which device an operator over several devices runs, and which operands stay where they are.

Every result must be the CPU's to the bit: the copies are copies and the kernels are the same.
"""

import ctypes

import pytest
import torch
import torch.nn.functional as F
from support.apart import at, copies, put, same
from support.devices import D0, D1, D2, D3

import managed
from managed import ManagedTensor
from managed.errors import PinConflictError


def why(result_of, operand):
    """The reason that the history of `operand` gives for its last copy."""
    result_of()
    return str(managed.explain(operand)).splitlines()[-1].rpartition(": ")[2]


# ---- who is chosen


@pytest.mark.parametrize("swapped", [False, True])
def test_an_accelerator_comes_before_the_cpu_whatever_the_order_and_the_sizes(swapped):
    near, far = at(D1, 1, 4), at("cpu", 1000, 4)
    result, copied = copies(lambda: far + near if swapped else near + far)
    assert result.device == torch.device(D1)
    assert copied == 1
    assert same(result, near.cpu() + far)


@pytest.mark.parametrize("swapped", [False, True])
def test_of_two_accelerators_the_one_with_most_bytes(swapped):
    small, large = at(D0, 1, 64), at(D2, 64, 64)
    result, copied = copies(lambda: large * small if swapped else small * large)
    assert result.device == torch.device(D2)
    assert copied == 1


def test_bytes_are_summed_per_device():
    parts = [at(D0, 600), at(D1, 400), at(D1, 400)]
    assert torch.cat(parts).device == torch.device(D1)


def test_equal_bytes_give_the_same_device_whatever_the_order():
    a, b = at(D0, 8), at(D3, 8)
    assert (a + b).device == (b + a).device


def test_floating_operands_decide_before_integers():
    mask, values = at(D0, 1000) > 0, at(D1, 1000)
    assert torch.where(mask, values, 0.0).device == torch.device(D1)
    index = put(torch.zeros(2000, dtype=torch.long), D2)
    assert F.embedding(index, at(D1, 3, 4)).device == torch.device(D1)
    assert values.take(index).device == torch.device(D1)


def test_integers_decide_among_themselves():
    a, b = put(torch.arange(4), "cpu"), put(torch.arange(4), D2)
    assert (a + b).device == torch.device(D2)


def test_a_generator_decides():
    there = torch.Generator(D1).manual_seed(5)
    here = torch.Generator().manual_seed(5)
    p = torch.full((100,), 0.3)
    result = torch.bernoulli(put(p, D0), generator=there)
    assert result.device == torch.device(D1)
    assert same(result, torch.bernoulli(p, generator=here))


@pytest.mark.only_simulated("the generator of an unknown device is made of a simulated one's")
def test_a_generator_of_an_unknown_device_leaves_the_choice_to_torch():
    """As those of MPS and XPU, which no build has beside simulated devices."""
    g = torch.Generator(D1)
    implementation = ctypes.c_void_p.from_address(id(g) + object.__basicsize__).value
    bytes_of = (ctypes.c_ubyte * 128).from_address(implementation)
    simulated, mps = bytes([20, 1]), 13  # c10::DeviceType and index
    bytes_of[bytes(bytes_of).index(simulated)] = mps
    assert g.device == torch.device("mps:1")
    for _ in range(8):  # it wrote before an array on the stack
        with pytest.raises(RuntimeError, match="same device"):
            torch.normal(at(D0, 4), at(D1, 4).abs(), generator=g)


def test_one_device_copies_nothing():
    a, b = at(D1, 4, 4), at(D1, 4, 4)
    before = managed.stats()
    (a @ b + a).relu().sum()
    after = managed.stats()
    assert (after["misaligned_calls"], after["copy"]) == (
        before["misaligned_calls"],
        before["copy"],
    )


def test_a_tensor_given_twice_is_copied_once():
    x, y = at("cpu", 4), at(D1, 4)
    result, copied = copies(lambda: torch.addcmul(y, x, x))
    assert copied == 1
    assert same(result, torch.addcmul(y.cpu(), x, x))
    z = at("cpu", 4)
    _, copied = copies(lambda: torch.cat([y, z, z]))
    assert copied == 1


def test_a_plain_operand_is_aligned_with_a_managed_one():
    plain = torch.randn(4, device=D2)
    result = at(D0, 400)[:4] + plain
    assert isinstance(result, ManagedTensor)
    with pytest.raises(RuntimeError, match="same device"):
        plain + torch.randn(4, device=D0)  # nothing managed takes part: torch's own rules


def test_a_reason_is_given():
    host = at("cpu", 4)
    assert why(lambda: host + at(D1, 4), host) == "an accelerator is preferred to the host"
    assert str(managed.explain(host)).count(f"copy cpu -> {D1} 16 bytes aten::add.Tensor") == 1


# ---- pins


def test_a_pin_comes_before_bytes_and_before_accelerators():
    small, large = at("cpu", 4), at(D1, 1000, 4)
    small.pin()
    assert (small + large).device == torch.device("cpu")
    small.unpin()
    assert (small + large).device == torch.device(D1)


def test_two_pins_on_one_device_agree():
    a, b = at(D1, 4), at(D1, 4)
    a.pin()
    b.pin()
    assert torch.addcmul(at(D0, 1000, 4), a, b).device == torch.device(D1)


def test_a_pin_conflict_names_both_tensors_and_devices_and_changes_nothing():
    a, b = at(D0, 3, 4), at(D2, 4, 5)
    a.pin()
    b.pin()
    before = managed.stats()["copy"]
    with pytest.raises(PinConflictError) as raised:
        torch.mm(a, b)
    for words in ("'self'", "[3, 4]", D0, "'mat2'", "[4, 5]", D2, "unpin()"):
        assert words in str(raised.value)
    assert managed.stats()["copy"] == before
    assert (a.device, b.device) == (torch.device(D0), torch.device(D2))
    b.unpin()
    assert (a @ b).device == torch.device(D0)


def test_a_pin_conflict_inside_a_list_gives_the_position():
    parts = [at(D0, 2), at(D1, 2), at(D2, 2)]
    parts[1].pin()
    parts[2].pin()
    with pytest.raises(PinConflictError, match=rf"'tensors'\[1\].*{D1}.*'tensors'\[2\].*{D2}"):
        torch.cat(parts)


def test_a_written_operand_wins_over_a_pin_that_is_only_read():
    x, pinned = at(D1, 4), at(D0, 4)
    pinned.pin()
    expected = x.cpu() + pinned.cpu()
    x += pinned
    assert x.device == torch.device(D1)
    assert same(x, expected)
