"""Backward over devices: gradients are the CPU's to the bit and arrive where their leaf is."""

import gc
import time

import pytest
import torch
from support.apart import DEVICES, torch_itself_scripts
from support.devices import D0, D1, D2, device_module
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import managed
from managed import ManagedTensor


def leaf(t, device):
    return t.to(device).as_subclass(ManagedTensor).requires_grad_()


def pair(*tensors, devices=DEVICES):
    """The same leaves, plain on the CPU and managed on devices of their own."""
    here = [t.clone().requires_grad_() for t in tensors]
    return here, [leaf(t.clone(), devices[i % len(devices)]) for i, t in enumerate(tensors)]


def check(here, there):
    for x, y in zip(here, there, strict=True):
        assert y.grad.device == y.device
        assert torch.equal(x.grad, y.grad.cpu())


def both(function, *tensors, devices=DEVICES):
    """Forward and backward of `function` on the CPU and over `devices`."""
    here, there = pair(*tensors, devices=devices)
    for leaves in (here, there):
        function(*leaves).sum().backward()
    check(here, there)
    return there


def square(n=4):
    return torch.randn(n, n)


@pytest.mark.parametrize("devices", [DEVICES, DEVICES[::-1], DEVICES[1:]])
def test_each_gradient_arrives_on_its_leaf(devices):
    both(lambda w, x, b: (x @ w + b).tanh(), square(), square(), torch.randn(4), devices=devices)


def test_gradients_are_managed():
    for w in both(lambda w, x: x @ w, square(), square()):
        assert isinstance(w.grad, ManagedTensor)


def test_ten_uses_of_one_leaf():
    def repeated(w, x):
        for _ in range(10):
            x = (x @ w).tanh()
        return x

    here, there = pair(square(), square(), devices=("cpu", D1))
    for leaves in (here, there):
        repeated(*leaves).sum().backward()
    assert there[0].grad.device == there[0].device
    assert torch.allclose(here[0].grad, there[0].grad.cpu(), rtol=1e-5, atol=1e-6)  # order of a sum
    assert torch.equal(here[1].grad, there[1].grad.cpu())


def test_accumulation_over_two_graphs_and_a_retained_one():
    w, x = leaf(square(), "cpu"), square().to(D1).as_subclass(ManagedTensor)
    loss = (x * w).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    (x * w).sum().backward()
    assert w.grad.device == w.device
    assert torch.equal(w.grad, 3 * x.cpu())


def test_a_leaf_used_on_two_devices():
    def twice(w, x, y):
        return (x @ w).sum().cpu() + (y @ w).square().sum().cpu()

    both(twice, square(), square(), square(), devices=(D0, D1, D2))


def test_views_of_a_leaf():
    both(lambda w, x: (x @ w.t()[:, :2]) * w[0, 0], square(), square())


def test_in_place_on_an_intermediate_result():
    def body(w, x):
        h = w * 1
        h[1].mul_(x)
        h += x
        return h

    both(body, square(), torch.randn(4))


def test_hooks_see_gradients_where_their_tensors_are():
    w, x = leaf(square(), "cpu"), leaf(square(), D1)
    h = w * 2
    h.retain_grad()
    seen = []
    h.register_hook(lambda g: seen.append(g.device))
    w.register_hook(lambda g: g * torch.ones(4, 4))
    (x @ h).square().sum().backward()
    assert seen == [h.device]
    assert (h.grad.device, w.grad.device) == (h.device, w.device)
    assert torch.equal(w.grad, 2 * h.grad)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant):
    def body(x, w, v):
        return ((x @ w).tanh() @ v) * w

    def run(x, w, v):
        return checkpoint(body, x, w, v, use_reentrant=reentrant)

    here, there = pair(*(square() for _ in range(3)), devices=(D1, "cpu", D0))
    body(*here).sum().backward()
    run(*there).sum().backward()
    check(here, there)


def test_double_backward():
    def run(w, x, v):
        y = ((x @ w).tanh() * v).square().sum()
        gradients = torch.autograd.grad(y, (w, x, v), create_graph=True)
        sum(g.square().sum().cpu() for g in gradients).backward()

    here, there = pair(*(square() for _ in range(3)), devices=(D0, D1, "cpu"))
    run(*here)
    run(*there)
    for x, y in zip(here, there, strict=True):
        assert y.grad.device == y.device
        assert torch.allclose(x.grad, y.grad.cpu(), rtol=1e-5, atol=1e-6)


@torch_itself_scripts
def test_forward_mode():
    x, t, w = torch.randn(4), torch.randn(4), torch.randn(4).to(D0).as_subclass(ManagedTensor)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.as_subclass(ManagedTensor), t.as_subclass(ManagedTensor))
        tangent = forward_ad.unpack_dual(dual * w).tangent
    assert tangent.device == torch.device(D0)
    assert torch.equal(tangent.cpu(), t * w.cpu())


# ---- TorchScript


def scripted_layer(w, x, b):
    return torch.tanh(x @ w + b) * 2


@pytest.fixture
def layer():
    """Scripted for this test alone, and the thread's switch as it was afterwards."""
    with torch.jit.optimized_execution(True):
        scripted = torch.jit.script(scripted_layer)
        scripted._debug_flush_compilation_cache()
        yield scripted
        scripted._debug_flush_compilation_cache()


@torch_itself_scripts
def test_scripts_whose_operands_are_apart(layer):
    """Optimised, which they are from the third run, their gradients would not come home."""
    data = square(), square(), torch.randn(4)
    here, there = pair(*data)
    for _ in range(4):
        scripted_layer(*here).sum().backward()
        layer(*there).sum().backward()
        check(here, there)


@torch_itself_scripts
def test_a_script_that_was_optimised_before_its_operands_moved(layer):
    w, x, b = (leaf(t, D1) for t in (square(), square(), torch.randn(4)))
    for _ in range(4):
        layer(w, x, b).sum().backward()
    elsewhere = leaf(square(), D2)
    with pytest.raises(RuntimeError, match="_debug_flush_compilation_cache") as caught:
        layer(elsewhere, x, b).sum().backward()
    assert elsewhere.grad is None
    assert "a hook or a custom backward" not in str(caught.value)
    layer._debug_flush_compilation_cache()
    layer(elsewhere, x, b).sum().backward()
    assert elsewhere.grad.device == elsewhere.device


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x @ y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g @ y.t(), x.t() @ g


@pytest.mark.parametrize("devices", [("cpu", D1), (D1, "cpu"), (D0, D1)])
def test_a_function_that_returns_gradients_on_another_device(devices):
    both(Product.apply, square(), square(), devices=devices)


def test_a_written_leaf_gives_its_new_values():
    w, x = leaf(square(), "cpu"), leaf(square(), D1)
    x * w
    with torch.no_grad():
        w.add_(1)
        assert torch.equal((x * w).cpu(), x.cpu() * w)
        w.data.mul_(2)
        assert torch.equal((x * w).cpu(), x.cpu() * w)
        w.numpy()[:] = 3
        assert torch.equal((x * w).cpu(), x.cpu() * 3)


def test_a_module_over_devices_trains_like_one_on_the_cpu():
    torch.manual_seed(0)
    here = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    there = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    there.load_state_dict(here.state_dict())
    for i, (name, p) in enumerate(list(there.named_parameters())):
        part, _, last = name.rpartition(".")
        moved = nn.Parameter(p.detach().to(DEVICES[i % 4]).as_subclass(ManagedTensor))
        there.get_submodule(part)._parameters[last] = moved
    x = torch.randn(6, 4)
    for net in (here, there):
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            net(x.as_subclass(ManagedTensor) if net is there else x).square().mean().backward()
            optimizer.step()
    for p, q in zip(here.parameters(), there.parameters(), strict=True):
        assert q.grad.device == q.device
        assert torch.equal(p, q.cpu())


def test_backward_of_plain_tensors_stays_plain():
    w = torch.randn(4, requires_grad=True)
    before = managed.stats()["misaligned_calls"]
    (w * 2).sum().backward()
    assert not isinstance(w.grad, ManagedTensor)
    assert managed.stats()["misaligned_calls"] == before


def test_nothing_is_left_on_the_devices():
    def used():
        return [device_module.memory_allocated(d) for d in range(device_module.device_count())]

    before = used()
    for _ in range(20):
        w, x = leaf(square(16), D0), leaf(square(16), D1)
        y = ((x @ w).tanh() @ w.t()).sum()
        (g,) = torch.autograd.grad(y, w, create_graph=True)
        g.square().sum().backward()
        del w, x, y, g
    deadline = time.monotonic() + 20  # the engine's threads drop their last tensors a little later
    while used() != before and time.monotonic() < deadline:
        gc.collect()
    assert used() == before


def test_a_hook_writes_an_expanded_gradient_that_came_home():
    """Torch's copy of it is dense."""
    found = []

    def doubles(grad):
        found.append((grad.stride(), grad.device))
        return grad.mul_(2)

    leaf = torch.ones(1 << 14).to(D0).as_subclass(ManagedTensor).requires_grad_()
    there = torch.ones(2, 1 << 14).to(D1).as_subclass(ManagedTensor).pin()
    here = leaf * 2
    here.register_hook(doubles)
    (there[0] + here).sum().backward()
    assert found == [((1,), torch.device(D0))]
    assert torch.equal(leaf.grad.cpu(), torch.full((1 << 14,), 4.0))
