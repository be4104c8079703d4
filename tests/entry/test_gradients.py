"""Gradients that user code puts on another device: brought home, or refused with advice.

Custom functions, hooks, root gradients, `.grad` itself. What torch.func does: test_functorch.py.
"""

import copy
import itertools
import pickle
import time

import pytest
import torch
from support.autograd_functions import Product
from support.devices import D0, D1, D2, D3, device_name
from support.scattered import assert_same_gradients, pair, step
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.checkpoint import checkpoint

import managed
from managed import ManagedModule, ManagedTensor

X = torch.randn(4, generator=torch.Generator().manual_seed(2))


def leaf(device, data=X):
    return data.clone().to(device).as_subclass(ManagedTensor).requires_grad_()


def at(device, data=X):
    return data.clone().to(device).as_subclass(ManagedTensor)


def check(tensor, expected):
    assert tensor.grad.device == tensor.device
    assert isinstance(tensor.grad, ManagedTensor)
    assert torch.equal(tensor.grad.cpu(), expected)


# ---- custom functions


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x * 2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context, gradient):
        return gradient.to(D1) * 2


class Selected(torch.autograd.Function):
    """Arguments that need no gradient in between, and None for one that would."""

    @staticmethod
    def forward(context, number, x, flag, y, z):
        return x + y + z

    @staticmethod
    def backward(context, gradient):
        return None, gradient.to(D2), None, None, gradient.to(D3)


def test_a_function_that_is_once_differentiable():
    w = leaf(D0)
    Doubled.apply(w).sum().backward()
    check(w, torch.full((4,), 2.0))


def test_a_function_with_a_context_of_its_own():
    w, v = leaf(D0), leaf(D1, X + 1)
    Product.apply(w, v).sum().backward()
    check(w, X + 1)
    check(v, X)


def test_none_among_the_gradients():
    tensors = [leaf(D0), leaf(D1), leaf(D2)]
    Selected.apply(3, tensors[0], torch.ones(1), *tensors[1:]).sum().backward()
    check(tensors[0], torch.ones(4))
    assert tensors[1].grad is None
    check(tensors[2], torch.ones(4))
    fixed = leaf(D2)
    Selected.apply(3, at(D0), None, at(D1), fixed).sum().backward()
    check(fixed, torch.ones(4))


def test_a_function_under_vmap():
    w, v = leaf(D0, torch.stack([X, X])), leaf(D1, torch.stack([X, X + 1]))
    torch.vmap(Product.apply)(w, v).sum().backward()
    check(w, torch.stack([X, X + 1]))
    check(v, torch.stack([X, X]))


def test_double_backward_of_a_function():
    w, v = leaf(D0), leaf(D1, X + 1)
    gradients = torch.autograd.grad(Product.apply(w, v).sum(), (w, v), create_graph=True)
    assert [g.device for g in gradients] == [w.device, v.device]
    sum(g.square().sum().cpu() for g in gradients).backward()
    check(w, 2 * X)
    check(v, 2 * (X + 1))


@pytest.mark.not_under_torture("it counts what leaves and comes back")
def test_what_a_function_sends_home_is_counted():
    w = leaf(D0)
    managed.stats(reset=True)
    Doubled.apply(w).sum().backward()
    assert managed.stats()["links"] == {f"{D0}->{D1}": 16, f"{D1}->{D0}": 16}


# ---- hooks of tensors and modules


@pytest.mark.parametrize("device", [D1, "cpu"])
@pytest.mark.parametrize("where", ["leaf", "inside", "root", "before a crossing"])
def test_hooks_of_tensors(where, device):
    w, v = leaf(D0), at(D1, torch.full((400,), 3.0))
    seen = []

    def hook(gradient):
        seen.append(str(gradient.device))
        return gradient.to(device) * 2

    if where == "leaf":
        w.register_hook(hook)
        out, expected = (w * 2).sum(), 4.0
    elif where == "inside":
        y = w * 2
        handle = y.register_hook(hook)
        y.retain_grad()
        out, expected = y.sum(), 4.0
        handle.remove()
        y.register_hook(hook)
    elif where == "root":
        out, expected = (w * 2).sum(), 4.0
        out.register_hook(hook)
    else:
        y = w * 2
        y.register_hook(hook)
        out, expected = (y.repeat(100) * v).sum(), 1200.0
    out.backward()
    check(w, torch.full((4,), expected))
    assert seen == [D0]
    if where == "inside":
        assert y.grad.device == y.device


def test_hooks_that_return_nothing_and_hooks_of_plain_tensors():
    w, seen = leaf(D0), []
    w.register_hook(seen.append)
    (w * 2).sum().backward()
    check(w, torch.full((4,), 2.0))
    plain = torch.ones(2, requires_grad=True)
    plain.register_hook(seen.append)
    assert list(plain._backward_hooks.values()) == [seen.append]


def test_a_hook_after_accumulation():
    w, seen = leaf(D0), []
    w.register_post_accumulate_grad_hook(lambda p: seen.append(str(p.grad.device)))
    (w * at(D1, torch.full((4,), 2.0))).sum().backward()
    check(w, torch.full((4,), 2.0))
    assert seen == [D0]


@pytest.mark.parametrize("device", [D3, "cpu"])
@pytest.mark.parametrize("pre", [False, True])
def test_full_backward_hooks_of_modules(pre, device):
    plain, net = pair()
    for m in (plain, net):

        def hook(module, *gradients, net=net, m=m):
            return tuple(2 * g.to(device if m is net else "cpu") for g in gradients[0])

        part = m.parts["last"]
        register = part.register_full_backward_hook
        (part.register_full_backward_pre_hook if pre else register)(hook)
        step(m)
    assert_same_gradients(plain, net)


def passing(module, given, received):
    return given


def test_a_module_with_hooks_can_be_pickled():
    net = ManagedModule.from_module(nn.Linear(2, 2))
    net.register_full_backward_hook(passing)
    other = pickle.loads(pickle.dumps(net))
    x = torch.ones(1, 2, requires_grad=True)
    other.cuda(1)(x).sum().backward()
    assert x.grad is not None


def nodes(register):
    y = leaf(D0) * 2

    def hook(gradients, *received):
        return tuple(None if g is None else g.cpu() for g in gradients)

    getattr(y.grad_fn, register)(hook)
    return y.exp().sum()


@pytest.mark.parametrize("register", ["register_hook", "register_prehook"])
def test_hooks_of_nodes_are_refused_with_advice(register):
    with pytest.raises(RuntimeError, match=r"changed the type(.|\n)*managed: .*gradient\.to\(old_"):
        nodes(register).backward()


def test_a_hook_from_before_is_refused_with_advice():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].register_full_backward_hook(lambda module, given, received: (given[0].to(D3),))
    ManagedModule.from_module(net).cuda(0)
    with pytest.raises(RuntimeError, match=r"expected device(.|\n)*after the tensor or module"):
        net(X).sum().backward()
    with pytest.raises(RuntimeError) as other:
        torch.ones(2, requires_grad=True).as_subclass(ManagedTensor).backward()
    assert "managed" not in str(other.value)


# ---- gradients of roots


@pytest.mark.parametrize("device", ["cpu", D1])
@pytest.mark.parametrize("kind", ["plain", "managed"])
def test_root_gradients_come_from_anywhere(device, kind):
    given = torch.full((4,), 3.0, device=device)
    if kind == "managed":
        given = given.as_subclass(ManagedTensor)
    w = leaf(D0)
    managed.stats(reset=True)
    (w * 2).backward(gradient=given)
    assert managed.stats()["copy"] == 1
    check(w, torch.full((4,), 6.0))
    w.backward(given)  # a root that is a leaf
    check(w, torch.full((4,), 9.0))
    (gradient,) = torch.autograd.grad(w * 2, w, grad_outputs=given)
    assert gradient.device == w.device
    with managed.frozen(), pytest.raises(RuntimeError, match="expected device"):
        (w * 2).backward(given)


def test_many_roots_and_none_among_their_gradients():
    w, v = leaf(D0), leaf(D1)
    torch.autograd.backward([w * 2, v * 2, (w * 3).sum()], [torch.ones(4), torch.ones(4), None])
    check(w, torch.full((4,), 5.0))
    check(v, torch.full((4,), 2.0))


def test_root_gradients_are_recorded():
    w, v = leaf(D0), leaf(D1, X + 1)
    (g,) = torch.autograd.grad(w * w, w, grad_outputs=v, create_graph=True)
    g.sum().backward()
    check(v, 2 * X)
    check(w, 2 * (X + 1))


def test_batched_root_gradients():
    w = leaf(D0)
    (rows,) = torch.autograd.grad(w * 2, w, grad_outputs=torch.eye(4), is_grads_batched=True)
    assert rows.device == w.device
    assert torch.equal(rows.cpu(), 2 * torch.eye(4))


def test_batched_root_gradients_of_a_graph_over_devices():
    w, v = leaf(D0), leaf(D1, X + 1)
    options = {"grad_outputs": torch.eye(4), "is_grads_batched": True}
    rows = torch.autograd.grad(w * v, (w, v), **options)
    for row, tensor, expected in zip(rows, (w, v), (X + 1, X), strict=True):
        assert row.device == tensor.device
        assert torch.equal(row.cpu(), torch.diag(expected))


@pytest.mark.parametrize("device", ["cpu", D1])
@pytest.mark.parametrize("given", ["cpu", D2])
def test_roots_that_are_edges(device, given):
    """As pipelines have, which let go of an output and go on from its node."""
    plain = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    net = ManagedModule.from_module(copy.deepcopy(plain)).to(device)
    gradient = torch.randn(5, 2)
    for module, there in ((plain, "cpu"), (net, given)):
        edge = get_gradient_edge(module(torch.ones(5, 4)))
        torch.autograd.backward([edge], [gradient.to(there)])
    for mine, expected in zip(net.parameters(), plain.parameters(), strict=True):
        check(mine, expected.grad)
        assert type(expected.grad) is torch.Tensor


# ---- gradients that meet


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def sums():
    """The gradient of a leaf with a use on each device, for every order in which they are done."""
    terms = (1e8, 1.0, -1e8)  # the sum of three floats depends on which two come first
    uses = [at(device_name(i), torch.full((64,), x)).pin() for i, x in enumerate(terms)]
    found = set()
    for order in itertools.permutations(range(3)):
        w = leaf(D3, torch.ones(64)).pin()
        found.add(_sum(w, uses, order))
    return found


def _sum(w, uses, order):
    total = torch.zeros((), device=D3)
    for x, late in zip(uses, order, strict=True):
        there = torch.empty_like(x).copy_(w)  # a copy of its own, that the program asks for
        product = x * there
        product.register_hook(lambda g, late=late: time.sleep(0.02 * late))
        total = total + product.sum().to(D3)
    total.backward()
    return w.grad[0].item()


def test_threads_of_several_devices_sum_as_they_come():
    assert len(sums()) > 1


def test_gradients_of_several_devices_are_summed_in_one_order(deterministic):
    assert len(sums()) == 1
    assert torch.autograd.is_multithreading_enabled()


# ---- .grad itself


def test_a_gradient_is_assigned_where_the_tensor_is():
    w = leaf(D0)
    for wrong in (torch.ones(4), at(D1)):
        with pytest.raises(RuntimeError, match="attempting to assign a gradient"):
            w.grad = wrong
    w.grad = torch.ones(4).to(w.device)
    (w * 2).sum().backward()
    assert torch.equal(w.grad.cpu(), torch.full((4,), 3.0))


# ---- what moves between the forward pass and the backward pass

OPERATORS = {
    "mul": lambda x, w: x * w,
    "mm": lambda x, w: x @ w,
    "div": lambda x, w: x / w,
    "where": lambda x, w: torch.where(w > 0, x, w),
    "index": lambda x, w: x[w.long().clamp(0, 2)[0]] * w,
    "addcmul": lambda x, w: torch.addcmul(x, x, w),
}


@pytest.mark.parametrize("trained", [True, False], ids=["weight", "constant"])
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("to", [D1, "cpu"])
def test_a_saved_operand_moves_before_the_backward_pass(name, to, trained):
    """The graph has saved the tensor itself, which is then on another device than the gradient."""
    generator = torch.Generator().manual_seed(3)
    x, w = (torch.randn(4, 4, generator=generator) for _ in range(2))
    plain_x, plain_w = x.clone().requires_grad_(), w.clone().requires_grad_(trained)
    OPERATORS[name](plain_x, plain_w).square().sum().backward()
    here, there = leaf(D0, x), w.as_subclass(ManagedTensor).to(D0).requires_grad_(trained)
    result = OPERATORS[name](here, there).square().sum()
    managed.hint(there, near=to)
    result.backward()
    check(here, plain_x.grad)
    assert there.device == torch.device(to)
    if trained:
        check(there, plain_w.grad)


def test_a_module_moves_before_the_backward_pass():
    plain, there = pair()
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(4))
    plain(x).sum().backward()
    result = there(x).sum()
    there.to(D3)
    result.backward()
    assert_same_gradients(plain, there)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_module_runs_again_on_its_own_devices(reentrant):
    """A checkpoint that is not reentrant runs it inside of the node that unpacks a tensor."""
    plain, there = pair()
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(4))
    for net in (plain, there):
        checkpoint(net, x.clone().requires_grad_(), use_reentrant=reentrant).sum().backward()
    assert_same_gradients(plain, there)


def test_gradients_of_gradients_where_an_operand_has_moved():
    def second(x, w, between):
        (first,) = torch.autograd.grad((x * w * x).sum(), x, create_graph=True)
        between()
        (first * w).sum().backward()
        return x

    w = X + 1
    expected = second(X.clone().requires_grad_(), w, lambda: None)
    there = w.as_subclass(ManagedTensor).to(D0)
    x = second(leaf(D0), there, lambda: managed.hint(there, near=D1))
    check(x, expected.grad)
