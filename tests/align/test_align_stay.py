"""Operands that stay where they are although the others are elsewhere: numbers, indices, shapes.

Also operators that go where they are told, and frozen(), which leaves everything where it is.
"""

import pytest
import torch
from support.apart import at, copies, put, same
from support.devices import D0, D1, D2, DEVICE_TYPE

import managed


def test_a_zero_dimensional_cpu_tensor_is_a_number():
    x = at(D1, 4)
    for number in (torch.tensor(2.5), put(torch.tensor(2.5), "cpu")):
        result, copied = copies(lambda n=number: (x * n, n - x, x.clamp(max=n), x / n))
        assert copied == 0
        assert {r.device for r in result} == {x.device}
        assert same(result[1], 2.5 - x.cpu())
    assert x.sum().add(at("cpu")).device == torch.device(D1)


def test_a_zero_dimensional_tensor_of_an_accelerator_is_copied():
    x = at(D1, 4)
    result, copied = copies(lambda: x * at(D0))
    assert (result.device, copied) == (x.device, 1)


@pytest.mark.parametrize("operator", ["pow", "float_power", "logical_and", "logical_xor"])
def test_operators_whose_kernels_take_no_cpu_number(operator):
    x, number = at(D1, 4).abs(), torch.tensor(2.0)
    result = getattr(torch, operator)(x, number)
    assert result.device == x.device
    assert same(result, getattr(torch, operator)(x.cpu(), number))


def test_masked_fill_with_a_cpu_number():
    x = at(D1, 4)
    result = x.masked_fill(x > 0, torch.tensor(7.0))
    assert same(result, x.cpu().masked_fill(x.cpu() > 0, 7.0))


def test_cpu_indices_stay_where_torch_allows_them():
    x, index = at(D1, 5, 4), torch.tensor([3, 0, 3])
    result, copied = copies(lambda: x[index])
    assert copied == 0
    assert same(result, x.cpu()[index])
    far, copied = copies(lambda: x[put(index, D2)])
    assert copied == 1
    assert same(far, x.cpu()[index])


def test_gather_and_index_select_align_their_indices():
    x, index = at(D1, 5, 4), put(torch.tensor([3, 0]), "cpu")
    result, copied = copies(lambda: x.index_select(0, index))
    assert (result.device, copied) == (x.device, 1)
    assert same(result, x.cpu().index_select(0, index))
    columns = put(torch.tensor([[0, 1, 2, 3]]), D0)
    assert same(x.gather(0, columns), x.cpu().gather(0, columns.cpu()))


def test_copy_and_to_go_where_they_are_told():
    x = at(D1, 4)
    target = at("cpu", 4)
    (_, copied) = copies(lambda: target.copy_(x))
    assert copied == 1  # the one that the program asked for
    assert target.device == torch.device("cpu")
    assert torch.equal(target, x.cpu())
    assert x.to(D2).device == torch.device(D2)
    assert x.type_as(target).device == torch.device("cpu")


@pytest.mark.parametrize("operator", ["view_as", "expand_as", "reshape_as"])
def test_an_operand_of_which_only_the_sizes_matter(operator):
    x, shape = at(D1, 1, 4), at(D2, 1, 4)
    shape.pin()
    result, copied = copies(lambda: getattr(x, operator)(shape))
    assert (result.device, copied) == (x.device, 0)


def test_looking_at_tensors_moves_nothing():
    a, b = at("cpu", 4), at(D1, 3, 1)
    _, copied = copies(lambda: (a.is_same_size(b), torch.result_type(a, b), a.is_set_to(a)))
    assert copied == 0
    (x, y), copied = copies(lambda: torch.broadcast_tensors(a, b))
    assert (x.device, y.device, copied) == (a.device, b.device, 0)
    assert x.data_ptr() == a.data_ptr()  # still views of what they were made from
    (x, y), copied = copies(lambda: torch.atleast_2d(a, b))
    assert (x.device, y.device, copied) == (a.device, b.device, 0)


def test_a_device_argument_is_obeyed():
    x = at(D1, 4)
    assert torch.zeros_like(x, device=D2).device == torch.device(D2)
    assert x.new_zeros(2, device="cpu").device == torch.device("cpu")


def test_frozen_leaves_the_devices_to_torch():
    a, b = at(D0, 4), at(D1, 4)
    with managed.frozen(), pytest.raises(RuntimeError, match=r"same device|frozen"):
        a + b
    assert (a + b).device.type == DEVICE_TYPE
