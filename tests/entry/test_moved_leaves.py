"""A leaf that the program moves while a graph waits for its backward pass stays that graph's leaf.

The graph makes the gradient where the leaf was; it arrives where the leaf is, whatever asks for it.
"""

import pytest
import torch
from support.devices import D0, D1, D2
from torch import nn

import managed
from managed import _C, ManagedModule, ManagedTensor

MOVES = {
    "hint": lambda x, to: managed.hint(x, near=to),
    "C.move": lambda x, to: _C.move(x, to),
}
PLACES = ["cpu", D0, D1]


def leaf(place):
    torch.manual_seed(3)
    x = torch.randn(64, 64, dtype=torch.float64).as_subclass(ManagedTensor)
    return (x if place == "cpu" else x.to(place)).detach().clone().requires_grad_()


def wanted(power):
    torch.manual_seed(3)
    x = torch.randn(64, 64, dtype=torch.float64).requires_grad_()
    return torch.autograd.grad((x**power).sum(), x)[0]


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("begin", PLACES)
@pytest.mark.parametrize("then", PLACES)
def test_grad_finds_a_leaf_that_has_moved(move, begin, then):
    x = leaf(begin)
    loss = (x**2).sum()
    MOVES[move](x, then)
    (g,) = torch.autograd.grad(loss, x, retain_graph=True)
    assert torch.equal(g.cpu(), wanted(2))
    assert g.device == x.device
    loss.backward()
    assert torch.equal(x.grad.cpu(), wanted(2))
    assert x.grad.device == x.device


def test_graphs_from_before_and_after_moves_share_the_leaf():
    x = leaf(D0)
    losses = [(x**2).sum()]
    for to in (D1, "cpu", D2, D0):
        _C.move(x, to)
        losses.append((x**2).sum())
    total = sum(loss.cpu() for loss in losses)
    (g,) = torch.autograd.grad(total, x, retain_graph=True)
    assert torch.equal(g.cpu(), 5 * wanted(2))
    total.backward()
    assert torch.equal(x.grad.cpu(), 5 * wanted(2))


def test_the_second_derivative_of_a_leaf_that_has_moved():
    x = leaf(D0)
    loss = (x**3).sum()
    _C.move(x, D1)
    (g,) = torch.autograd.grad(loss, x, create_graph=True)
    assert g.device == x.device
    (again,) = torch.autograd.grad(g.sum(), x)
    torch.manual_seed(3)
    plain = torch.randn(64, 64, dtype=torch.float64).requires_grad_()
    (h,) = torch.autograd.grad((plain**3).sum(), plain, create_graph=True)
    assert torch.equal(again.cpu(), torch.autograd.grad(h.sum(), plain)[0])


def test_hooks_see_a_gradient_once():
    x = leaf(D0)
    seen = []
    x.register_hook(lambda g: seen.append("hook"))
    x.register_post_accumulate_grad_hook(lambda p: seen.append(str(p.grad.device)))
    loss = (x**2).sum()
    _C.move(x, D1)
    _C.move(x, D2)
    loss.backward()
    assert seen == ["hook", D2]


def test_a_module_that_moves_between_forward_and_grad():
    torch.manual_seed(3)
    net = nn.Linear(64, 64).double()
    x = torch.randn(8, 64, dtype=torch.float64)
    plain = torch.autograd.grad(net(x).square().sum(), [*net.parameters()])
    net = ManagedModule.from_module(net).cuda(0)
    loss = net(x).square().sum()
    net.cuda(1)
    for found, g in zip(torch.autograd.grad(loss, [*net.parameters()]), plain, strict=True):
        assert torch.equal(found.cpu(), g)
        assert str(found.device) == D1
