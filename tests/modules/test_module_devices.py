"""Modules whose parameters are on several devices: plans, conversions, loading, averages."""

import copy

import pytest
import torch
from support.devices import D0, D1, D2, D3, NEVER_FITS, device_name
from support.scattered import (
    all_managed,
    assert_same,
    assert_same_gradients,
    changed,
    pair,
    places,
    scatter,
    step,
)
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from managed import ManagedModule, ManagedTensor, device_manager
from managed.errors import OutOfMemoryError, PinConflictError

MiB = 2**20


def test_a_scattered_module_is_the_plain_one():
    plain, net = pair()
    assert len(set(places(net).values())) == 5
    assert torch.equal(step(plain), step(net))
    assert_same(plain, net)
    assert_same_gradients(plain, net)


# ---- each parameter by itself


class Wide(nn.Module):
    """Four parameters of one MiB, of which a fifth is a tie, and a buffer: one layer."""

    def __init__(self):
        super().__init__()
        for name in "abcd":
            self.register_parameter(name, nn.Parameter(torch.zeros(MiB // 4)))
        self.tied = self.b
        self.register_buffer("scale", torch.ones(3))


def test_parameters_are_spread_one_by_one():
    net = ManagedModule.from_module(Wide())
    objects = list(net.parameters())
    assert net.cuda(disperse="parameters") is net
    assert all(a is b for a, b in zip(net.parameters(), objects, strict=True))
    assert net.tied is net.b
    found = places(net)
    assert {found[name] for name in "abcd"} == {device_name(i) for i in range(4)}
    assert found["scale"] == found["a"]
    net.cuda(disperse="parameters")
    assert places(net) == found  # what it holds is room for its own plan
    device_manager.cuda(net, disperse=True)
    assert len(set(places(net).values())) == 1


@pytest.mark.parametrize("disperse", ["layers", "parameters"])
def test_spreading_is_all_or_nothing(disperse):
    net = ManagedModule.from_module(nn.Linear(4, 4))
    net.big = nn.Parameter(torch.zeros(300 * MiB, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(OutOfMemoryError, match=NEVER_FITS):
        net.cuda(disperse=disperse)
    assert set(places(net).values()) == {"cpu"}


def test_a_module_of_buffers_is_spread_too():
    net = ManagedModule.from_module(nn.BatchNorm1d(4, affine=False)).cuda(disperse="parameters")
    assert len(set(places(net).values())) == 1
    assert "cpu" not in places(net).values()


@pytest.mark.parametrize("wrong", ["layer", 3, None])
def test_what_disperse_may_be(wrong):
    net = ManagedModule.from_module(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="disperse is True"):
        net.cuda(disperse=wrong)
    assert places(net.cuda(disperse="layers"))["weight"] != "cpu"


# ---- conversions


@pytest.mark.parametrize("convert", ["half", "bfloat16", "double", "float"])
@pytest.mark.parametrize("trained", [False, True])
def test_a_conversion_leaves_everything_where_it_is(convert, trained):
    plain, net = pair()
    if trained:
        step(plain)
        step(net)
    before, objects = places(net), list(net.parameters())
    getattr(plain, convert)()
    getattr(net, convert)()
    assert places(net) == before
    assert all_managed(net)
    assert net.tied.weight is net.a.weight
    assert all(a is b for a, b in zip(net.parameters(), objects, strict=True))
    assert_same(plain, net)
    assert_same_gradients(plain, net)


def test_device_and_dtype_at_once():
    plain, net = pair()
    step(plain)
    step(net)
    objects = list(net.parameters())
    net.to(D2, torch.float64)
    plain.double()
    assert set(places(net).values()) == {D2}
    assert all(a is b for a, b in zip(net.parameters(), objects, strict=True))
    assert_same(plain, net)
    assert_same_gradients(plain, net)
    net.to(device=D1, dtype=torch.bfloat16, non_blocking=True)
    assert (set(places(net).values()), net.a.weight.dtype) == ({D1}, torch.bfloat16)
    net.to(torch.ones(1, device=D3))
    assert (set(places(net).values()), net.a.weight.dtype) == ({D3}, torch.float32)
    assert all_managed(net)


def test_swapping_conversions():
    """torch's other way to convert swaps the tensors' insides and their classes."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        plain, net = pair()
        before, objects = places(net), list(net.parameters())
        plain.double()
        net.double()
        assert places(net) == before
        assert_same(plain, net)
        net.load_state_dict(plain.state_dict())
        net.cuda(1)
        assert all(a is b for a, b in zip(net.parameters(), objects, strict=True))
        assert all(type(p) is nn.Parameter for p in net.parameters())
        assert all_managed(net)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def test_to_empty_keeps_parameters_and_ties():
    net = pair()[1]
    objects = list(net.parameters())
    for device in (D1, 2, "cuda", "cpu"):
        assert net.to_empty(device=device) is net
        assert len(set(places(net).values())) == 1
    assert all(a is b for a, b in zip(net.parameters(), objects, strict=True))
    assert net.tied.weight is net.a.weight
    assert all_managed(net)
    net.a.weight.pin()
    with pytest.raises(PinConflictError, match=r"Linear\.weight is pinned to cpu"):
        net.to_empty(device=D1)
    net.a.to_empty(device="cpu")
    assert net.a.weight.pinned


def test_to_meta_and_back():
    plain, net = pair()
    net.to("meta").to_empty(device=D0)
    assert all_managed(net)
    net.hidden.copy_(plain.hidden)
    net.load_state_dict(plain.state_dict())
    assert torch.equal(step(plain), step(net))


def test_data_can_be_assigned_over_devices():
    """As on CUDA; the parameter stays itself, and later gradients arrive where it is now."""
    net = ManagedModule.from_module(nn.Linear(2, 2))
    weight = net.weight
    net(torch.ones(1, 2)).sum().backward()
    weight.grad = None
    weight.data = weight.data.to(D1)
    net(torch.ones(1, 2)).sum().backward()
    assert weight is net.weight
    assert weight.device == weight.grad.device == torch.device(D1)


# ---- loading


@pytest.mark.parametrize("source", ["cpu", "one device", "scattered"])
def test_loading_leaves_parameters_where_they_are(source):
    net, other = pair()[1], changed()
    state = other.state_dict()
    if source != "cpu":
        there = ManagedModule.from_module(copy.deepcopy(other))
        state = (there.cuda(3) if source == "one device" else scatter(there, 2)).state_dict()
    before, objects = places(net), list(net.parameters())
    net.load_state_dict(state)
    assert places(net) == before
    assert all(a is b for a, b in zip(net.parameters(), objects, strict=True))
    assert all_managed(net)
    assert_same(other, net)


def test_strict_and_lenient_loading():
    net, state = pair()[1], changed().state_dict()
    before = places(net)
    del state["scale"]
    state["more"] = torch.ones(1)
    with pytest.raises(RuntimeError, match="Missing key"):
        net.load_state_dict(state)
    result = net.load_state_dict(state, strict=False)
    assert (result.missing_keys, result.unexpected_keys) == (["scale"], ["more"])
    assert places(net) == before
    assert all_managed(net)


def test_loading_by_assignment_takes_the_states_tensors():
    net, state = pair()[1].pin(), changed().state_dict()
    net.load_state_dict(state, assign=True)
    assert all_managed(net)
    assert {places(net)[name] for name in state} == {"cpu"}
    assert net.a.weight.data_ptr() == state["a.weight"].data_ptr()
    assert not net.a.weight.pinned  # a pin belongs to the tensor that was replaced
    step(net.unpin())


# ---- averages


@pytest.mark.parametrize("buffers", [False, True])
def test_moving_averages(buffers):
    plain, net = pair()
    averages, optimizers, planned = [], [], places(net)
    for m in (plain, net):
        function = get_ema_multi_avg_fn(0.9)
        averages.append(AveragedModel(m, multi_avg_fn=function, use_buffers=buffers))
        optimizers.append(torch.optim.SGD(m.parameters(), lr=0.1))
    for i in range(3):
        for m, average, optimizer in zip((plain, net), averages, optimizers, strict=True):
            step(m, optimizer, seed=i)
            average.update_parameters(m)
    assert_same(*averages)
    assert (
        places(averages[1].module) == planned
    )  # the module itself may have settled elsewhere since
    assert all_managed(averages[1].module)
    assert set(places(AveragedModel(net, device=D2).module).values()) == {D2}


def test_batch_norm_statistics_are_updated_over_devices():
    plain, net = pair()
    batches = [torch.randn(5, 6) for _ in range(2)]
    for m in (plain, net):
        update_bn(batches, m)
    assert_same(plain, net)


# ---- what modules offer besides


def test_requires_grad_and_zero_grad():
    net = pair()[1]
    assert not any(p.requires_grad for p in net.requires_grad_(False).parameters())
    step(net.requires_grad_(True))
    net.zero_grad(set_to_none=False)
    gradient = net.a.weight.grad
    assert (gradient.device, gradient.abs().sum().item()) == (net.a.weight.device, 0)
    step(net)
    assert net.a.weight.grad is gradient
    net.cuda(1)
    assert net.a.weight.grad is gradient
    assert gradient.device == torch.device(D1)
    net.zero_grad()
    assert net.a.weight.grad is None


def test_shared_memory():
    net = ManagedModule.from_module(nn.Linear(2, 2)).share_memory()
    assert net.weight.is_shared()
    assert all_managed(net)


def test_functional_call_with_tensors_from_anywhere():
    plain, net = pair()
    values = {n: (2 * p).detach().requires_grad_() for n, p in plain.named_parameters()}
    x, before = torch.randn(5, 6), places(net)
    expected = torch.func.functional_call(plain, values, (x,))
    expected.sum().backward()
    wanted = {n: v.grad for n, v in values.items()}
    for v in values.values():
        v.grad = None
    result = torch.func.functional_call(net, values, (x,))
    assert torch.equal(expected, result.cpu())
    result.sum().backward()
    assert all(torch.equal(wanted[n], v.grad) for n, v in values.items() if v.grad is not None)
    assert all(v.grad.device == v.device for v in values.values() if v.grad is not None)
    assert (places(net), all_managed(net)) == (before, True)


def test_ties_over_two_modules():
    """The second module's move carries the shared weight along, and training goes on."""
    a, b = nn.Linear(6, 6), nn.Linear(6, 6)
    b.weight = a.weight
    plain = copy.deepcopy(nn.ModuleList([a, b]))
    ManagedModule.from_module(a).cuda(0)
    ManagedModule.from_module(b).cuda(1)
    assert a.weight is b.weight
    assert [str(t.device) for t in (a.weight, a.bias, b.bias)] == [D1, D0, D1]
    x = torch.randn(3, 6)
    for first, second in ((a, b), plain):
        optimizer = torch.optim.SGD([first.weight, first.bias, second.bias], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            second(torch.tanh(first(x))).square().sum().backward()
            optimizer.step()
    assert torch.allclose(plain[0].weight, a.weight.cpu(), rtol=1e-6, atol=1e-6)
    assert isinstance(a.weight.grad, ManagedTensor)
