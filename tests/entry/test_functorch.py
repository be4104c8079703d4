"""torch.func over devices: each gradient is where its argument is, values are the CPU's."""

import warnings

import pytest
import torch
from support.autograd_functions import Product
from support.devices import D0, D1
from support.scattered import pair, places

import managed
from managed import ManagedTensor

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
X = torch.randn(4, generator=torch.Generator().manual_seed(4))
Y = torch.randn(40, generator=torch.Generator().manual_seed(5))
PLACES = [(D0, D1), ("cpu", D1), (D1, "cpu")]


def at(device, data):
    return data.to(device).as_subclass(ManagedTensor)


def body(x, y):
    return (x.repeat(10) * y).sin() * y


def agree(transform, here, there, devices=None):
    expected, actual = transform(*here), transform(*there)
    pairs = zip(
        torch.utils._pytree.tree_leaves(expected),
        torch.utils._pytree.tree_leaves(actual),
        strict=True,
    )
    for i, (a, b) in enumerate(pairs):
        assert torch.allclose(a, b.cpu(), rtol=1e-6, atol=1e-6)
        if devices:
            assert b.device == torch.device(devices[i])


TRANSFORMS = {
    "grad": lambda x, y: torch.func.grad(lambda *a: body(*a).sum(), argnums=(0, 1))(x, y),
    "vjp": lambda x, y: torch.func.vjp(body, x, y)[1](torch.ones(40)),
    "jacrev": lambda x, y: torch.func.jacrev(lambda *a: body(*a)[:5], argnums=(0, 1))(x, y),
    "copied": lambda x, y: torch.func.grad(lambda x, y: body(x.to(y.device), y).sum(), (0, 1))(
        x, y
    ),
}


@pytest.mark.parametrize("devices", PLACES)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_gradients_arrive_at_their_arguments(name, devices):
    there = [at(d, t.clone()) for d, t in zip(devices, (X, Y), strict=True)]
    agree(TRANSFORMS[name], (X, Y), there, devices)


@pytest.mark.parametrize("devices", PLACES)
def test_nested_gradients(devices):
    def twice(x, y):
        return torch.func.grad(torch.func.grad(lambda x: (x * y).sin().sum()))(x)

    number = X[0]
    agree(
        twice, (number, Y), [at(d, t) for d, t in zip(devices, (number, Y), strict=True)], devices
    )


@pytest.mark.parametrize("devices", PLACES)
def test_hessians_and_gradients_of_each_sample(devices):
    there = [at(d, t) for d, t in zip(devices, (X, Y), strict=True)]
    agree(lambda x, y: torch.func.hessian(lambda x: body(x, y).sum())(x), (X, Y), there)
    rows = torch.stack([X, X + 1])
    each = [at(devices[0], rows), there[1]]
    agree(
        lambda x, y: torch.vmap(torch.func.grad(lambda x: body(x, y).sum()))(x),
        (rows, Y),
        each,
        devices,
    )


def test_a_plain_argument_of_a_function_over_managed_tensors():
    there = at(D1, Y)
    agree(torch.func.grad(lambda x: body(x, Y).sum()), (X,), (X,))
    g = torch.func.grad(lambda x: body(x, there).sum())(X)
    assert g.device == X.device
    assert torch.allclose(g, torch.func.grad(lambda x: body(x, Y).sum())(X))


def test_gradients_of_a_module_for_each_sample():
    plain, net = pair()
    x = torch.randn(3, 6)

    def gradients(m):
        m.eval()
        parameters = {n: p.detach() for n, p in m.named_parameters()}

        def loss(parameters, row):
            out = torch.func.functional_call(m, parameters, (row.unsqueeze(0),))
            return out.square().sum()

        return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)

    expected, actual = gradients(plain), gradients(net)
    for name, g in actual.items():
        assert str(g.device) == places(net)[name]
        assert torch.allclose(expected[name], g.cpu(), rtol=1e-5, atol=1e-6)


def test_a_pin_holds_inside():
    """Without it the few bytes would go to the many."""
    x, y = at(D0, X[:1]), at(D1, Y)
    x.pin()
    seen = []

    def f(x, y):
        out = (x * y).sin()
        seen.append(out.device)
        return out.sum()

    torch.func.grad(f, argnums=(0, 1))(x, y)
    assert seen == [x.device]


def test_writing_an_argument_on_another_device():
    def f(x, y):
        z = torch.zeros_like(x)
        z.copy_(x)
        z.mul_(y[:4])
        return z.sum()

    agree(torch.func.grad(f, (0, 1)), (X, Y), (at(D0, X), at(D1, Y)), (D0, D1))


def test_plain_tensors_and_frozen_blocks_are_left_to_torch():
    f = torch.func.grad(lambda x, y: body(x, y).sum())
    with pytest.raises(RuntimeError, match="same device"):
        f(X.to(D0), Y.to(D1))
    with managed.frozen(), pytest.raises(RuntimeError, match="same device"):
        f(at(D0, X), at(D1, Y))
    assert torch.equal(f(X, Y).cpu(), f(at(D0, X), at(D0, Y)).cpu())


def test_a_custom_function_over_devices_is_refused_with_advice():
    """Its node has one device, and torch's engine asks a wrapper for its storage."""

    def f(x, y):
        return Product.apply(x, y).sum()

    x, y = at(D0, X), at(D1, X + 1)
    with pytest.raises(RuntimeError, match=r"managed: (.|\n)*bring their operands to one device"):
        torch.func.grad(f, (0, 1))(x, y)
    g = torch.func.grad(lambda x, y: f(x, y.to(x.device)), (0, 1))(x, y)
    assert [t.device for t in g] == [x.device, y.device]


def test_compiled_gradients_on_one_device():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f = torch.compile(
            lambda x: torch.func.grad(lambda x: (x * x).sum())(x), backend="eager", fullgraph=True
        )
        assert torch.equal(f(X.as_subclass(ManagedTensor)), 2 * X)
