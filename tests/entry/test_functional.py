"""torch.autograd.functional and torch.func over one to four devices: the numbers are the CPU's."""

import itertools

import pytest
import torch
from support.devices import D0, D1, D2, D3
from torch.autograd import functional
from torch.utils._pytree import tree_leaves, tree_map

from managed import ManagedTensor

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
PLACES = {
    "1": (D0, D0, D0, D0),
    "2": (D0, D1, D0, D1),
    "3": ("cpu", D1, D2, "cpu"),
    "4": (D0, D1, D2, D3),
}
FUNCTIONS = {
    "product": lambda a, b: (a * b).sum(),
    "cubes": lambda a, b: (a * b * a).exp().sum() + (b**3).sum(),
    "matrix": lambda a, b: (torch.outer(a, b).t() @ a).tanh().sum() + a.view(3, 1).mul(b).sum(),
}
VECTORS = {
    "product": lambda a, b: (a * b).exp(),
    "views": lambda a, b: torch.outer(a, b).t()[1:].tanh().flatten() + a[0],
    "two": lambda a, b: (a * b, (b.unsqueeze(0) + a.unsqueeze(1)).sin().sum(0)),
}


def put(device, t):
    return t.detach().clone().to(device).as_subclass(ManagedTensor).detach()


@pytest.fixture(params=PLACES.values(), ids=PLACES)
def places(request):
    return request.param


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def data(request):
    return torch.randn(3, dtype=request.param), torch.randn(3, dtype=request.param)


def scattered(data, places):
    return tuple(put(d, t) for t, d in zip(data, places, strict=False))


def agree(expected, actual):
    pairs = zip(tree_leaves(expected), tree_leaves(actual), strict=True)
    for a, b in pairs:
        assert a.shape == b.shape
        assert a.requires_grad == b.requires_grad
        limit = 1e-6 if a.dtype == torch.float32 else 1e-12
        assert (a - b.cpu()).abs().max() <= limit * max(1, a.abs().max())


def same(expected, actual):
    for a, b in zip(tree_leaves(expected), tree_leaves(actual), strict=True):
        assert torch.equal(a, b.cpu())


@pytest.mark.parametrize("vectorize", [False, True])
@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_hessian(name, strategy, vectorize, data, places):
    if strategy == "forward-mode" and not vectorize:
        pytest.skip("torch refuses it")
    f = FUNCTIONS[name]
    kinds = {"vectorize": vectorize, "outer_jacobian_strategy": strategy}
    there = scattered(data, places)
    agree(functional.hessian(f, data, **kinds), functional.hessian(f, there, **kinds))


def test_no_block_of_a_hessian_is_lost(places):
    """Sums of one part each: bitwise. The mixed blocks were zeros."""
    data = torch.randn(3), torch.randn(3)
    found = functional.hessian(FUNCTIONS["product"], scattered(data, places))
    same(functional.hessian(FUNCTIONS["product"], data), found)
    assert torch.equal(found[0][1].cpu(), torch.eye(3))


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("vectorize", [False, True])
@pytest.mark.parametrize("name", VECTORS)
def test_jacobian(name, vectorize, create_graph, data, places):
    f = VECTORS[name]
    kinds = {"vectorize": vectorize, "create_graph": create_graph}
    here = tuple(t.clone().requires_grad_(create_graph) for t in data)
    there = tuple(t.requires_grad_(create_graph) for t in scattered(data, places))
    a, b = functional.jacobian(f, here, **kinds), functional.jacobian(f, there, **kinds)
    agree(a, b)
    if create_graph:
        for result, leaves in ((a, here), (b, there)):
            sum(t.square().sum().cpu() for t in tree_leaves(result)).backward()
            assert all(t.grad.device == t.device for t in leaves)
        agree([t.grad for t in here], [t.grad for t in there])


@pytest.mark.parametrize("name", VECTORS)
def test_jacobian_forward(name, data, places):
    kinds = {"vectorize": True, "strategy": "forward-mode"}
    f = VECTORS[name]
    agree(
        functional.jacobian(f, data, **kinds),
        functional.jacobian(f, scattered(data, places), **kinds),
    )


def test_jacobian_forward_of_a_number_on_the_host(data, places):
    """Its tangents are several under vmap, and no number."""
    a, b = data[0], data[1][0]
    kinds = {"vectorize": True, "strategy": "forward-mode"}

    def f(a, b):
        return a * b + torch.where(a > 0, b, a).exp()

    there = put(places[0], a), put("cpu", b)
    agree(functional.jacobian(f, (a, b), **kinds), functional.jacobian(f, there, **kinds))


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("what", ["vjp", "jvp", "vhp", "hvp"])
def test_products(what, create_graph, data, places):
    f = FUNCTIONS["matrix"] if what in ("vhp", "hvp") else VECTORS["views"]
    transform = getattr(functional, what)
    v = tuple(torch.randn_like(t) for t in data) if what != "vjp" else torch.randn_like(f(*data))
    here = tuple(t.clone().requires_grad_(create_graph) for t in data)
    there = tuple(t.requires_grad_(create_graph) for t in scattered(data, places))
    moved = tree_map(lambda t: put(places[3], t), v)  # elsewhere than what it belongs to
    agree(
        transform(f, here, v, create_graph=create_graph),
        transform(f, there, moved, create_graph=create_graph),
    )


def test_jacrev_with_results_on_several_accelerators(data, places):
    def f(a, b):
        return {"a": a.sin() * 2, "b": (b * 3).cos(), "both": a * b}

    def apart(a, b):
        return f(a, b) | {"last": (a * b).to(places[3])}

    def alike(a, b):
        return f(a, b) | {"last": a * b}

    there = scattered(data, places)
    agree(torch.func.jacrev(alike, (0, 1))(*data), torch.func.jacrev(apart, (0, 1))(*there))
    out, vjp = torch.func.vjp(apart, *there)
    roots = tree_map(torch.ones_like, out)
    agree(torch.func.vjp(alike, *data)[1](tree_map(torch.ones_like, alike(*data))), vjp(roots))
    for g, t in zip(vjp(roots), there, strict=True):
        assert g.device == t.device


def test_hessian_with_results_on_several_accelerators(data, places):
    def f(a, b):
        return (a * b).sin(), (b * 2 + a.to(b.device)).cos()

    there = scattered(data, places)
    agree(
        torch.func.jacrev(torch.func.jacrev(f, (0, 1)), (0, 1))(*data),
        torch.func.jacrev(torch.func.jacrev(f, (0, 1)), (0, 1))(*there),
    )


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
def test_linearize_with_a_tangent_elsewhere(data, places):
    x, t = data

    def f(x):
        return {"out": (x.sin() * x).exp()}

    out, jvp = torch.func.linearize(f, x)
    there, moved = torch.func.linearize(f, put(places[0], x))
    agree(out, there)
    for tangent in (put(places[1], t), t):
        found = moved(tangent)
        agree(jvp(t), found)
        assert found["out"].device == torch.device(places[0])


def test_lobpcg_with_root_gradients_elsewhere(places):
    a = torch.randn(2, 9, 9)
    a = a @ a.mT

    def run(a, roots):
        x = torch.ones(2, 9, 1, device=a.device)
        return torch.autograd.grad(torch.lobpcg(a, k=1, X=x, niter=50), a, roots)

    roots = torch.randn(2, 1), torch.randn(2, 9, 1)
    expected = run(a.clone().requires_grad_(), roots)
    moved = tuple(put(d, r) for d, r in zip(places[1:], roots, strict=False))
    (found,) = run(put(places[0], a).requires_grad_(), moved)
    assert found.device == torch.device(places[0])
    assert torch.allclose(expected[0], found.cpu(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pair", list(itertools.permutations(["cpu", D0, D2], 2)))
def test_numbers_that_users_met(pair):
    """The reproductions, each with its silent wrong answer."""
    w, x = torch.randn(4, 4), torch.randn(64, 4)
    here, there = w.clone().requires_grad_(), put(pair[0], w).requires_grad_()
    y = put(pair[1], x)
    seen = []
    for leaf, operand in ((here, x), (there, y)):
        v = leaf.t()
        out = (operand @ v).tanh().sum()
        (g,) = torch.autograd.grad(out, v, retain_graph=True)  # was "not used in the graph"
        out.backward(inputs=[v], retain_graph=True)  # gave None
        first = v.grad.clone()
        v.grad = None
        v.register_hook(lambda g: g * 2)  # never fired
        v.retain_grad()
        out.backward(retain_graph=True)
        assert v.grad.device == v.device
        seen.append([g, first, v.grad, leaf.grad])
    same(*seen)
