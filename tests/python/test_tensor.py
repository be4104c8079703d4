"""What a managed tensor is, and all that importing managed adds to torch.Tensor."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from support.devices import D0, D1, D2, D3, DEVICE_TYPE, device_name
from torch import nn
from torch.overrides import TorchFunctionMode

import managed
from managed import _C, ManagedTensor


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(6.0).as_subclass(ManagedTensor)


# ---- the class without a class


def test_the_class_is_a_name(x):
    assert x.__class__ is ManagedTensor
    assert isinstance(x, ManagedTensor)
    assert isinstance(x, torch.Tensor)
    assert type(x) is torch.Tensor


def test_a_plain_tensor_is_not_managed():
    plain = torch.ones(2)
    assert plain.__class__ is torch.Tensor
    assert not isinstance(plain, ManagedTensor)
    assert nn.Parameter(plain).__class__ is nn.Parameter
    assert not isinstance(3, ManagedTensor)


def test_a_managed_parameter_is_both(x):
    parameter = nn.Parameter(x)
    assert parameter.__class__ is ManagedTensor
    assert isinstance(parameter, nn.Parameter)
    assert type(parameter) is nn.Parameter


def test_as_subclass_gives_an_alias_and_leaves_the_original_plain():
    plain = torch.zeros(3)
    managed_alias = plain.as_subclass(ManagedTensor)
    assert plain.__class__ is torch.Tensor
    assert managed_alias.data_ptr() == plain.data_ptr()


def test_as_subclass_is_recorded_by_autograd():
    leaf = torch.ones(3, requires_grad=True)
    (leaf.as_subclass(ManagedTensor) * 2).sum().backward()
    assert leaf.grad.tolist() == [2.0, 2.0, 2.0]


def test_as_subclass_to_a_users_own_class():
    class Own(torch.Tensor):
        pass

    own = torch.ones(2).as_subclass(ManagedTensor).as_subclass(Own)
    assert own.__class__ is Own
    assert isinstance(own, ManagedTensor)
    assert own.as_subclass(ManagedTensor).__class__ is ManagedTensor


@pytest.mark.parametrize(
    "data", [[1.0, 2.0], (3,), np.ones(2, np.float32)], ids=["list", "size", "numpy"]
)
def test_constructor_takes_what_torch_tensor_takes(data):
    arguments = data if isinstance(data, tuple) else (data,)
    made = ManagedTensor(*arguments)
    assert made.__class__ is ManagedTensor
    assert made.shape == torch.Tensor(*arguments).shape
    assert made.dtype is torch.float32


def test_constructor_keeps_a_tensor_dtype_and_memory():
    whole = torch.arange(3)
    made = ManagedTensor(whole)
    assert made.dtype is torch.int64
    assert made.data_ptr() == whole.data_ptr()


def test_managed_tensor_cannot_be_subclassed():
    with pytest.raises(TypeError, match="cannot be subclassed"):
        type("Mine", (ManagedTensor,), {})


def test_setting_the_class_works_as_before():
    class Own(torch.Tensor):
        pass

    plain = torch.ones(2).as_subclass(Own)
    with pytest.raises(TypeError):
        plain.__class__ = int
    assert type(plain) is Own


def parameter():
    return nn.Parameter(torch.full((2,), 7.0))


@pytest.mark.parametrize("first", ["plain", "managed"])
@pytest.mark.parametrize("second", ["plain", "managed"])
def test_swapping_tensors_swaps_their_types(first, second):
    a, b = parameter(), torch.zeros(3)
    a.mine = "a"
    for tensor, kind in ((a, first), (b, second)):
        if kind == "managed":
            _C.mark(tensor)
    torch.utils.swap_tensors(a, b)
    assert (type(a), type(b)) == (torch.Tensor, nn.Parameter)
    assert a.shape == (3,)
    assert b.tolist() == [7.0, 7.0]
    assert b.requires_grad
    assert b.mine == "a"
    assert (_C.is_managed(a), _C.is_managed(b)) == (second == "managed", first == "managed")
    torch.utils.swap_tensors(b, a)
    assert (type(a), type(b)) == (nn.Parameter, torch.Tensor)


def test_tensors_that_cannot_be_swapped_keep_their_types():
    a, b = parameter(), torch.zeros(3)
    _C.mark(a)
    _C.mark(b)
    kept = a.view(-1)  # shares the tensor's insides
    assert kept.shape == (2,)
    with pytest.raises(RuntimeError, match="use_count"):
        torch.utils.swap_tensors(a, b)
    assert (type(a), type(b)) == (nn.Parameter, torch.Tensor)


# ---- results


@pytest.mark.parametrize(
    "result",
    [
        lambda x: x + 1,
        lambda x: 1 + x,
        lambda x: x + torch.ones(6),
        lambda x: torch.ones(6) @ x,
        lambda x: x.view(2, 3).t(),
        lambda x: x[1:3],
        lambda x: torch.stack([torch.ones(6), x])[0],
        lambda x: x.split(2)[1],
        lambda x: torch.linalg.solve(torch.eye(6), x),
        lambda x: nn.functional.linear(torch.ones(1, 6), x.view(1, 6)),
        lambda x: x.detach(),
        lambda x: x.clone(),
        lambda x: x.double(),
        lambda x: x.sum(),
        lambda x: x > 2,
        lambda x: x.new_zeros(3),
        lambda x: torch.zeros_like(x),
        lambda x: x.add_(1),
        lambda x: torch.add(torch.ones(6), 1, out=x),
        lambda x: x.data,
        lambda x: x.mT if x.dim() > 1 else x.unsqueeze(0).mT,
    ],
)
def test_results_are_managed(x, result):
    assert result(x).__class__ is ManagedTensor


def test_mixing_gives_the_plain_numbers(x):
    plain = torch.arange(6.0)
    other = torch.linspace(0, 1, 6)
    assert torch.equal(x * other - x / (other + 1), plain * other - plain / (other + 1))


def test_gradients_are_managed():
    leaf = torch.ones(3).as_subclass(ManagedTensor).requires_grad_()
    leaf.exp().sum().backward()
    assert leaf.grad.__class__ is ManagedTensor
    assert torch.equal(leaf.grad, torch.ones(3).exp())


def test_the_engine_keeps_its_other_attributes():
    engine = torch.autograd.Variable._execution_engine
    assert engine.is_checkpoint_valid() is True
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = engine.nothing_such


def test_deepcopy_stays_managed(x):
    assert copy.deepcopy(x).__class__ is ManagedTensor


def test_files_hold_plain_tensors(x):
    file = io.BytesIO()
    torch.save({"x": x}, file)
    assert b"managed" not in file.getvalue()
    file.seek(0)
    loaded = torch.load(file, weights_only=True)["x"]
    assert loaded.__class__ is torch.Tensor
    assert torch.equal(loaded, torch.arange(6.0))
    assert b"managed" not in pickle.dumps(x)


# ---- new and new_tensor


def test_new_and_new_tensor(x):
    assert x.new(2, 3).shape == (2, 3)
    assert x.new([1, 2]).tolist() == [1.0, 2.0]
    made = x.double().new_tensor([1, 2], dtype=torch.int16)
    assert made.dtype is torch.int16
    for result in (x.new(2), x.new(), made, x.cuda(2).new_tensor([1.0])):
        assert result.__class__ is ManagedTensor
    assert x.cuda(2).new_tensor([1.0]).device == torch.device(D2)
    assert x.new_tensor([1.0], device="meta").__class__ is torch.Tensor
    assert x.__class__ is ManagedTensor


def test_new_tensor_of_a_plain_tensor_is_plain():
    assert torch.ones(2).new_tensor([1]).__class__ is torch.Tensor
    assert torch.ones(2).new(2).__class__ is torch.Tensor


# ---- pins


def test_pin_and_unpin(x):
    assert x.pinned is False
    assert x.pin() is x
    assert x.pinned is True
    assert x.unpin() is x
    assert x.pinned is False


def test_a_view_is_pinned_with_its_base():
    base = torch.ones(4).as_subclass(ManagedTensor) + 1
    view = base[1:]
    base.pin()
    assert view.pinned is True
    base.unpin()
    assert view.pinned is False


@pytest.mark.parametrize("name", ["pin", "unpin", "pinned"])
def test_plain_tensors_have_no_pins(name):
    plain = torch.ones(2)
    assert not hasattr(plain, name)
    with pytest.raises(AttributeError, match=r"not managed, see as_subclass\(ManagedTensor\)"):
        getattr(plain, name)


@pytest.mark.parametrize("name", ["pin", "unpin", "pinned"])
def test_plain_tensors_keep_attributes_of_their_own(name):
    plain = torch.ones(2)
    setattr(plain, name, 5)
    assert getattr(plain, name) == 5
    delattr(plain, name)
    assert not hasattr(plain, name)
    with pytest.raises(AttributeError):
        delattr(plain, name)


def test_pins_cannot_be_set(x):
    with pytest.raises(AttributeError, match=r"call pin\(\), unpin\(\)"):
        x.pinned = True
    assert x.pinned is False


def test_operands_come_to_the_pin(x):
    pinned = x.cuda(2).pin()
    assert (pinned + torch.ones(6, device=D1)).device == torch.device(D2)
    pinned.unpin()


# ---- cuda and to


def test_cuda_lets_the_manager_pick(x):
    there = x.cuda()
    assert there.device.type == DEVICE_TYPE
    assert there.__class__ is ManagedTensor
    assert torch.equal(there.cpu(), x)
    assert there.cuda() is there
    assert there.cuda(disperse=True) is there
    assert there.to("cuda") is there


def test_disperse_spreads_equal_tensors(x):
    ones = torch.ones(2**18)  # against which what other tests have left is light
    kept = [ones.as_subclass(ManagedTensor).cuda(disperse=True) for _ in range(10)]
    counts = [sum(t.device.index == i for t in kept) for i in range(4)]
    assert sum(counts) == 10
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("device", [1, "cuda:1", D1, torch.device("cuda", 1)])
def test_a_named_device(x, device):
    assert x.cuda(device).device == torch.device(D1)
    assert x.to(device).device == torch.device(D1)
    assert x.to(device=device, non_blocking=True).device == torch.device(D1)
    there = x.cuda(device)
    assert there.cuda(device) is there


def test_to_with_more_arguments(x):
    for there in (
        x.to("cuda:1", torch.float16),
        x.to(device="cuda:1", dtype=torch.float16),
        x.to("cuda:1", dtype=torch.float16, copy=True),
    ):
        assert there.device == torch.device(D1)
        assert there.dtype is torch.float16
        assert there.__class__ is ManagedTensor
    image = x.view(1, 1, 2, 3).expand(1, 2, 2, 3).cuda(1, memory_format=torch.channels_last)
    assert image.is_contiguous(memory_format=torch.channels_last)


def test_the_other_forms_of_to_are_torchs(x):
    assert x.to(torch.float64).dtype is torch.float64
    assert x.to("cpu") is x
    assert x.to(torch.ones(1, dtype=torch.int32, device=D3)).device == torch.device(D3)
    with pytest.raises(TypeError):
        x.to("cuda:1", nothing_such=1)


def test_moving_is_recorded_by_autograd(x):
    leaf = torch.ones(6, requires_grad=True)
    (leaf.as_subclass(ManagedTensor).cuda(3) * 3).sum().backward()
    assert leaf.grad.device.type == "cpu"
    assert leaf.grad.tolist() == [3.0] * 6


def test_plain_tensors_go_to_torchs_cuda():
    with pytest.raises(TypeError, match="disperse"):
        torch.ones(2).cuda(disperse=True)
    assert torch.ones(2).to(torch.int32).dtype is torch.int32


def test_modes_see_cuda_and_to(x):
    seen = []

    class Listener(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function.__name__)
            return function(*args, **(kwargs or {}))

    with Listener():
        there = x.cuda(1)
        again = there.to("cuda:2")
    assert {"cuda", "to"} <= set(seen)
    assert (there.device.index, again.device.index) == (1, 2)


def test_unbound_methods_and_docstrings(x):
    assert torch.Tensor.to(x, "cuda:1").device == torch.device(D1)
    assert "dtype" in torch.Tensor.to.__doc__
    assert torch.Tensor.cuda.__name__ == "cuda"


# ---- refusals: one test each, and nothing has changed


@pytest.mark.parametrize("device", [4, "cuda:4", device_name(9), torch.device("cuda", 7)])
def test_a_device_that_does_not_exist(x, device):
    for move in (x.cuda, x.to):
        with pytest.raises(ValueError, match=f"there are cpu, {D0}, {D1}, {D2}, {D3}"):
            move(device)


def test_a_word_that_names_no_device(x):
    with pytest.raises(ValueError, match="'gpu' names no device"):
        x.cuda("gpu")


def test_a_thing_that_names_no_device(x):
    with pytest.raises(TypeError, match="a device is a"):
        x.cuda(1.5)


def test_cuda_of_the_host(x):
    with pytest.raises(ValueError, match="names no accelerator"):
        x.cuda("cpu")


def test_disperse_with_a_device(x):
    with pytest.raises(ValueError, match="disperse=True chooses a device"):
        x.cuda(1, disperse=True)


def test_a_pinned_tensor_does_not_go_elsewhere(x):
    there = x.cuda(1).pin()
    for move in (lambda: there.cuda(2), lambda: there.to(D2)):
        with pytest.raises(managed.errors.PinConflictError, match=rf"pinned to {D1}.*unpin\(\)"):
            move()
    assert there.cuda() is there
    assert there.cuda(1) is there
    assert there.unpin().cuda(2).device.index == 2


def test_a_tensor_pinned_to_the_host_is_not_placed(x):
    x.pin()
    with pytest.raises(managed.errors.PinConflictError, match=r"pinned to cpu.*unpin\(\)"):
        x.cuda()
    x.unpin()


def test_conflicting_pins_name_both_devices():
    a = torch.ones(2).as_subclass(ManagedTensor).cuda(0).pin()
    b = torch.ones(2).as_subclass(ManagedTensor).cuda(1).pin()
    with pytest.raises(managed.errors.PinConflictError, match=rf"(?s){D0}.*{D1}"):
        a + b
    assert (a.device.index, b.device.index) == (0, 1)
    a.unpin()
    b.unpin()
