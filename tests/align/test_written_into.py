"""What a managed tensor is written into is managed: the tensor, and the base of a view."""

import copy
import gc

import pytest
import torch
from support.devices import D0, D1, D3, device_module
from support.pressure import MiB, on, spill
from torch import nn

import managed
from managed import _C, ManagedModule, ManagedTensor

A, B = D0, D1


def setitem(index):
    return lambda out, y: out.__setitem__(index, y)


WAYS = {
    "out[0] = y": setitem(0),
    "out[:1] = y": setitem(slice(0, 1)),
    "out[[0]] = y": setitem([0]),
    "out[0, :] = y": setitem((0, slice(None))),
    "out[...] = y": setitem(...),
    "select.copy_": lambda out, y: out.select(0, 0).copy_(y),
    "a view of a view": lambda out, y: out[1:][0].copy_(y),
    "a transposed view": lambda out, y: out.t()[:, 0].copy_(y),
    "out[0] += y": lambda out, y: out[0].add_(y),
    "out=": lambda out, y: torch.mul(y, 2, out=out[0]),
    "unbind": lambda out, y: out.unbind()[0].copy_(y),
    "foreach": lambda out, y: torch._foreach_copy_([out[0], out[1]], [y, y]),
    "index_copy_": lambda out, y: out.index_copy_(0, torch.tensor([0], device=out.device), y[None]),
    "copy_": lambda out, y: out.copy_(y),
    "fill_ with a number": lambda out, y: out[0].fill_(y[0]),
}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("device", [A, B, "cpu"])
@pytest.mark.parametrize("way", WAYS)
def test_ways_to_write(way, device, grad):
    y = on(torch.rand(3), A)
    plain, out = torch.zeros(2, 3), torch.zeros(2, 3, device=device)
    with torch.set_grad_enabled(grad):
        WAYS[way](plain, y.cpu().clone().as_subclass(torch.Tensor))
        WAYS[way](out, y)
    assert isinstance(out, ManagedTensor)
    assert out.device == torch.device(device)
    assert torch.equal(out.cpu(), plain)
    assert isinstance(out * 2, ManagedTensor)


def test_older_views_stay_plain_and_the_bytes_at_home():
    y = on(torch.rand(2**14), A)  # large enough to leave
    out = torch.zeros(2, 2**14, device=A)
    older, alias = out[1], out.data
    out[0] = y
    assert isinstance(out, ManagedTensor)
    assert not isinstance(older, ManagedTensor)
    assert not isinstance(alias, ManagedTensor)
    (out * 2).sum()
    spill()
    assert torch.equal(alias[0].cpu(), y.cpu())  # nobody would have brought them back
    assert older.sum() == 0
    del older, alias
    gc.collect()
    out * 1  # now it owns its bytes alone
    spill()
    assert _C.is_spilled(out)
    assert torch.equal(out[0].cpu(), y.cpu())


def test_writes_through_an_older_alias_are_seen():
    out = torch.zeros(2, 3, device=A)
    alias = out.data  # has a version counter of its own
    out[0] = on(torch.ones(3), A)
    far = on(torch.ones(2, 3), B).pin()
    assert (out + far).sum() == 9
    alias.add_(1)  # no operator of managed sees this
    assert (out + far).sum() == 15


def test_gradients_through_what_is_written():
    x = torch.rand(3)
    found = []
    for y in (x.clone().requires_grad_(), on(x, B).requires_grad_()):
        out = torch.zeros(2, 3, device=y.device)
        out[0] = y * 2
        out[1] = y
        (out.sum(0) ** 2).sum().backward()
        assert y.grad.device == y.device
        found.append(y.grad.cpu())
    assert torch.equal(*found)


def test_an_ensemble_that_fills_a_buffer():
    models = [nn.Linear(4, 2) for _ in range(3)]
    x = torch.rand(5, 4)
    plain = torch.empty(3, 5, 2)
    for i, model in enumerate(models):
        plain[i] = model(x)
    for i, model in enumerate(models):
        ManagedModule.from_module(model).cuda(i)
    filled = torch.empty(3, 5, 2, device=A)
    for i, model in enumerate(models):
        filled[i] = model(x)
    assert torch.equal(filled.cpu(), plain)
    assert torch.equal((filled.mean(0) + on(x[:, :2], D3)).cpu(), plain.mean(0) + x[:, :2])


def test_what_plain_tensors_are_written_into_stays_plain():
    out = torch.zeros(2, 3, device=A)
    out[0] = torch.ones(3, device=A)
    assert not isinstance(out, ManagedTensor)


# ---- a plain parameter with a managed gradient


@pytest.mark.parametrize("to", [A, B, "cpu", torch.float64])
@pytest.mark.parametrize("swap", [False, True])
def test_a_plain_module_with_managed_gradients_can_be_moved(to, swap):
    plain, net = nn.Linear(3, 2), nn.Linear(3, 2)
    net.load_state_dict(plain.state_dict())
    x = torch.rand(4, 3)
    plain(x).sum().backward()
    net(x.as_subclass(ManagedTensor)).sum().backward()
    assert isinstance(net.weight.grad, ManagedTensor)
    torch.__future__.set_swap_module_params_on_conversion(swap)
    try:
        net.to(to)
        plain.to(to)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    for p, q in zip(net.parameters(), plain.parameters(), strict=True):
        assert (p.device, p.dtype) == (q.device, q.dtype) == (p.grad.device, p.grad.dtype)
        assert torch.equal(p.grad.cpu(), q.grad.cpu())
    torch.optim.SGD(net.parameters(), lr=0.5).step()


# ---- a managed leaf with a plain gradient


def by_set(leaf, values):
    with torch.no_grad():
        leaf.set_(values)


def by_data(leaf, values):
    leaf.data = values


def by_wrapping(leaf, values):
    """The leaf is managed, and the program gives it a gradient that it made itself."""
    leaf.grad, grad = None, leaf.grad
    _C.mark(leaf, True)
    leaf.grad = grad


MOVES = {
    "hint": lambda leaf: managed.hint(leaf, near=B),
    "near another": lambda leaf: managed.hint(leaf, near=on(torch.ones(1), B)),
    "module": lambda leaf: ManagedModule.from_module(holder(leaf)).cuda(1),
}


def holder(leaf):
    module = nn.Module()
    module.leaf = nn.Parameter(torch.ones(1))
    del module.leaf
    module.register_parameter("leaf", leaf)
    return module


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("way", [by_set, by_data, by_wrapping])
def test_the_plain_gradient_of_a_leaf_that_became_managed_leaves_and_comes_back(way, move):
    leaf = nn.Parameter(torch.rand(MiB // 4))
    (leaf * leaf).sum().backward()
    expected = leaf.grad.clone()
    way(leaf, torch.rand(MiB // 4).as_subclass(ManagedTensor))
    assert isinstance(leaf, ManagedTensor)
    assert not isinstance(leaf.grad, ManagedTensor)
    MOVES[move](leaf)
    assert leaf.grad.device == leaf.device == torch.device(B)
    for _ in range(2):
        spill(leaf.grad)
        assert _C.is_spilled(leaf.grad)
        assert torch.equal(leaf.grad.cpu(), expected)
    leaf.grad = None
    (leaf * leaf).sum().backward()
    assert torch.equal(leaf.grad.cpu(), (leaf * 2).detach().cpu())


def test_a_plain_leaf_that_moves_in_place_keeps_a_plain_gradient():
    leaf = nn.Parameter(torch.rand(MiB // 4))
    (leaf * leaf).sum().backward()
    expected = leaf.grad.clone()
    _C.move(leaf, 1)
    _C.spill_all()
    assert not isinstance(leaf.grad, ManagedTensor)
    assert torch.equal(leaf.grad.cpu(), expected)


@pytest.mark.only_simulated("4 MiB take 20 from CUDA's driver, which is beyond the budget")
def test_the_budget_counts_what_was_written_into():
    room = device_module.memory_allocated(0) + 10 * MiB
    with managed.budget(D0, room):
        out = torch.empty(4, MiB // 4, device=A)
        for i in range(4):
            out[i] = on(torch.full((MiB // 4,), float(i)), A)
        out.mul_(1)
        more = on(torch.ones(8 * MiB // 4), A)  # does not fit beside it
        assert out.sum() + more.sum() == 6 * MiB // 4 + 8 * MiB // 4


# ---- torchdiffeq, whose solvers fill a buffer: pip install --no-deps torchdiffeq


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, t, y):
        return self.net(y**3)


@pytest.mark.filterwarnings("ignore:t is not on the same device as y0")  # it brings t there itself
@pytest.mark.parametrize("method", ["dopri5", "rk4"])
@pytest.mark.parametrize("where", [(A, A), (A, B), (A, "cpu"), ("cpu", B)])
@pytest.mark.parametrize("solver", ["odeint", "odeint_adjoint"])
def test_an_ode_whose_model_and_state_are_apart(solver, where, method):
    solve = getattr(pytest.importorskip("torchdiffeq"), solver)
    plain, y0, t = Field(), torch.rand(5, 2), torch.linspace(0, 1, 7)
    net = ManagedModule.from_module(copy.deepcopy(plain)).to(where[0])
    expected = solve(plain, y0, t, method=method)
    expected[-1].square().sum().backward()
    found = solve(net, on(y0, where[1]), t.to(where[1]), method=method)
    found[-1].square().sum().backward()
    assert isinstance(found, ManagedTensor)
    assert torch.equal(found.cpu(), expected)
    for p, q in zip(net.parameters(), plain.parameters(), strict=True):
        assert p.grad.device == p.device
        assert torch.allclose(p.grad.cpu(), q.grad, rtol=1e-6, atol=1e-7)


SECOND = {
    "mul_": lambda out: out.mul_(3),
    "copy_": lambda out: out[:, :2].copy_(out.detach()[:, 1:]),
    "foreach": lambda out: torch._foreach_mul_([out], 3),
    "fill_diagonal_": lambda out: out.fill_diagonal_(2),
    "index_put_": lambda out: out.index_put_((torch.tensor([1]),), torch.ones(1, 3)),
    "masked_fill_": lambda out: out.masked_fill_(torch.tensor([True, False, True]), 4),
    "out[1] = y": lambda out: out.__setitem__(1, torch.ones(3)),
    "baddbmm_": lambda out: out[None].baddbmm_(torch.ones(1, 2, 2), torch.ones(1, 2, 3)),
    "sigmoid_": torch.sigmoid_,
}


@pytest.mark.parametrize("managed_source", [False, True])
@pytest.mark.parametrize("first", ["out[0] = y", "out[0] += y", "a view of a view", "copy_"])
@pytest.mark.parametrize("second", SECOND)
def test_what_was_wrapped_on_the_host_is_written_twice(first, second, managed_source):
    """Torch took it for a leaf, as any view whose base was written through another one."""

    def gradient(out, wrap):
        w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        WAYS[first](out, wrap(w) * 2)
        SECOND[second](out)
        out.square().sum().backward()
        return w.grad

    def wrap(w):
        return w.as_subclass(ManagedTensor) if managed_source else w

    want = gradient(torch.zeros(2, 3), lambda w: w)
    assert torch.equal(gradient(torch.zeros(2, 3).as_subclass(ManagedTensor), wrap), want)


def test_a_leaf_that_requires_a_gradient_is_not_written():
    for x in (torch.zeros(3), torch.zeros(3).as_subclass(ManagedTensor)):
        x.requires_grad_()
        with pytest.raises(RuntimeError, match="leaf Variable"):
            x.mul_(2)
    parameter = nn.Parameter(torch.zeros(3)).as_subclass(ManagedTensor)
    with pytest.raises(RuntimeError, match="a view of a leaf Variable"):
        parameter.mul_(2)
