"""Differentiation and function transforms

Autograd's modes and hooks, forward mode and torch.func, with operands over several devices.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from support.devices import device_name
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from managed import ManagedTensor

from .common import Place, managed_on, same

scripts = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")


def randoms(*sizes, grad=False):
    return [torch.randn(s, requires_grad=grad) for s in sizes]


def body(x, w, b):
    return torch.tanh(x @ w + b).pow(2).sum()


SIZES = ((4,), (4, 3), (3,))
EVERY = (0, 1, 2)
REVERSE = (
    pytest.param(lambda f: torch.func.grad(f, EVERY), id="grad"),
    pytest.param(lambda f: torch.func.grad_and_value(f, EVERY), id="grad_and_value"),
    pytest.param(lambda f: lambda *a: torch.func.vjp(f, *a)[1](torch.ones(())), id="vjp"),
    pytest.param(lambda f: torch.func.jacrev(f, EVERY), id="jacrev"),
    pytest.param(lambda f: torch.func.hessian(f, EVERY), id="hessian"),
)


def agree(place, function, *operands):
    """The function gives the same on managed operands; returns what it gave there."""
    actual = function(*place(*operands))
    same(function(*operands), actual)
    return actual


@pytest.mark.row("torch.no_grad, enable_grad, set_grad_enabled")
def test_grad_modes(place):
    x, w = place(*randoms((4, 4), (4, 4), grad=True))
    for mode in (torch.no_grad(), torch.set_grad_enabled(False)):
        with mode:
            out = x @ w
            assert not out.requires_grad
            with torch.enable_grad():
                assert (x @ w).requires_grad
        assert isinstance(out, ManagedTensor)


@pytest.mark.row("torch.inference_mode")
def test_inference_mode(place):
    x, w = randoms((4, 4), (4, 4))
    there = place(x, w)
    with torch.inference_mode():
        out = there[0] @ there[1]
        out.add_(1)
    assert out.is_inference()
    same(x @ w + 1, out)


@pytest.mark.row(
    "Inference tensors in training",
    "refused: RuntimeError",
    note="torch's own error; a clone made outside inference mode trains",
)
def test_inference_tensors_later(place):
    x, w = randoms((4, 4), (4, 4), grad=True)
    a, b = place(x, w)
    with torch.inference_mode():
        inner = a.detach() * 2
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        inner @ b
    (inner.clone() @ b).sum().backward()
    ((x.detach() * 2) @ w).sum().backward()
    place.same_gradients([w], [b])


@pytest.mark.row("Double backward, retain_graph, accumulation")
def test_higher_order(place):
    here = randoms(*SIZES, grad=True)
    there = place(*here)
    for x, w, b in (here, there):
        out = body(x, w, b)
        grads = torch.autograd.grad(out, (x, w, b), create_graph=True)
        sum(g.pow(3).sum().to("cpu") for g in grads).backward(retain_graph=True)
        out.backward()
    place.same_gradients(here, there)


@pytest.mark.filterwarnings(
    "ignore::managed.errors.CopyWarning"
)  # it writes its inputs for each number
@pytest.mark.row("gradcheck and gradgradcheck", note="float64, over several devices")
def test_gradcheck(place):
    there = place(*(t.double().requires_grad_() for t in randoms((3,), (3, 2), (2,))))
    assert torch.autograd.gradcheck(body, there, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(body, there)


@scripts
@pytest.mark.row("gradcheck in forward mode")
def test_gradcheck_forward(place):
    there = place(*(t.double().requires_grad_() for t in randoms((3,), (3, 2), (2,))))
    assert torch.autograd.gradcheck(body, there, check_forward_ad=True)


@scripts
@pytest.mark.row("Forward-mode AD", note="tangents that operators make are plain")
def test_forward_ad(place):
    operands, tangents = randoms(*SIZES), randoms(*SIZES)

    def run(operands, tangents):
        with forward_ad.dual_level():
            duals = map(forward_ad.make_dual, operands, tangents)
            return forward_ad.unpack_dual(body(*duals))

    there = place(*operands)
    lifted = [managed_on(t, o.device) for t, o in zip(tangents, there, strict=True)]
    expected, actual = run(operands, tangents), run(there, lifted)
    same(expected.primal, actual.primal)
    same(expected.tangent, actual.tangent, managed=False)
    assert actual.tangent.device == actual.primal.device


@scripts
@pytest.mark.row("torch.func: grad, value_and_grad, vjp, jacrev, hessian")
@pytest.mark.parametrize("transform", REVERSE)
def test_func_reverse(place, transform):
    agree(place, transform(body), *randoms(*SIZES))


@pytest.mark.row("torch.func: grad of one argument, the rest on other devices")
def test_func_gradient_of_one_argument(place):
    x, w, b = randoms(*SIZES)
    there = place(w, b)

    def gradient(x, w, b):
        return torch.func.grad(lambda x: body(x, w, b))(x)

    same(gradient(x, w, b), gradient(managed_on(x, there[0].device), *there))


@scripts
@pytest.mark.row("torch.func: jvp, jacfwd, linearize")
def test_func_forward(place):
    operands, tangents = randoms(*SIZES), randoms(*SIZES)
    there = place(*operands)
    lifted = tuple(managed_on(t, o.device) for t, o in zip(tangents, there, strict=True))
    jvp = torch.func.jvp
    same(jvp(body, tuple(operands), tuple(tangents)), jvp(body, there, lifted))
    every = (0, 1, 2)
    same(torch.func.jacfwd(body, every)(*operands), torch.func.jacfwd(body, every)(*there))


@pytest.mark.row("torch.vmap", note="nested, with in_dims, chunks and randomness")
def test_vmap(place):
    a, b, c = randoms((5, 4, 3), (3, 2), (4, 2))

    def run(a, b, c):
        inner = torch.vmap(lambda x, y: torch.softmax(x @ b + y, -1))
        return [
            torch.vmap(inner, in_dims=(0, None))(a, c),
            torch.vmap(lambda x: (x @ b).sum(), in_dims=1, out_dims=0)(a),
            torch.vmap(lambda x: x @ b, chunk_size=2)(a),
        ]

    agree(place, run, a, b, c)


@pytest.mark.row("Per-sample gradients", note="vmap of grad of functional_call")
def test_per_sample_gradients(place):
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    x, y = torch.randn(6, 4), torch.randint(0, 2, (6,))
    there = place.module(net)

    def run(net, x, y):
        state = {k: v.detach() for k, v in net.named_parameters()}

        def loss(state, x, y):
            out = torch.func.functional_call(net, state, (x.unsqueeze(0),))
            return F.cross_entropy(out, y.unsqueeze(0))

        return torch.vmap(torch.func.grad(loss), (None, 0, 0))(state, x, y)

    same(run(net, x, y), run(there, *place(x, y)))


@pytest.mark.row("Ensembles", note="stack_module_state and vmap over models")
def test_ensemble(place):
    nets = [nn.Linear(4, 3) for _ in range(3)]
    x = torch.randn(5, 4)

    def run(nets, x):
        state = torch.func.stack_module_state(nets)
        base = copy.deepcopy(nets[0])
        return torch.vmap(
            lambda state, x: torch.func.functional_call(base, state, (x,)), in_dims=(0, None)
        )(state, x)

    same(run(nets, x), run([place.module(n) for n in nets], place(x)))


@pytest.mark.row("torch.func.functionalize")
def test_functionalize(place):
    def run(x, y):
        x = x.clone()
        x[0].add_(y)
        return x.view(-1).mul_(2)

    x, y = randoms((3, 4), (4,))
    agree(place, torch.func.functionalize(run), x, y)


class Cube(torch.autograd.Function):
    generate_vmap_rule = False

    @staticmethod
    def forward(x, w):
        return x**3 * w

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * 3 * x**2 * w, g * x**3

    @staticmethod
    def jvp(ctx, x_t, w_t):
        x, w = ctx.saved_tensors
        return 3 * x**2 * w * x_t + x**3 * w_t

    @staticmethod
    def vmap(info, in_dims, x, w):
        x, w = (t if d is None else t.movedim(d, 0) for t, d in zip((x, w), in_dims, strict=True))
        return Cube.apply(x, w), 0


@pytest.mark.row(
    "autograd.Function", note="setup_context, jvp, vmap; gradients return to their inputs"
)
def test_function(place):
    x, w = randoms((4,), (4,), grad=True)
    there = place(x, w)
    for a, b in ((x, w), there):
        Cube.apply(a, b).sum().backward()
    place.same_gradients((x, w), there)


@scripts
@pytest.mark.row("autograd.Function")
def test_function_under_transforms(place):
    x, w = randoms((5, 4), (4,))
    agree(place, torch.vmap(Cube.apply, (0, None)), x, w)
    grad = torch.func.grad(lambda x, w: Cube.apply(x, w).sum(), (0, 1))
    agree(Place("one"), torch.vmap(grad, (0, None)), x, w)
    agree(Place(place.name), grad, x[0], w)  # mixed: a simulated device and the CPU
    there = place(x, w)
    tangents = [
        managed_on(torch.ones_like(t), o.device) for t, o in zip((x, w), there, strict=True)
    ]
    same(
        torch.func.jvp(Cube.apply, (x, w), (torch.ones_like(x), torch.ones_like(w))),
        torch.func.jvp(Cube.apply, there, tuple(tangents)),
    )


@pytest.mark.row(
    "autograd.Function under torch.func.grad, operands on several accelerators",
    "refused: NotImplementedError",
    note="bring its operands together inside",
)
def test_function_under_gradient_transforms():
    x, w = (managed_on(t, device_name(i)) for i, t in enumerate(randoms((4,), (4,))))
    with pytest.raises(NotImplementedError, match="bring their operands to one device"):
        torch.func.grad(lambda x, w: Cube.apply(x, w).sum(), (0, 1))(x, w)


@pytest.mark.row("saved_tensors_hooks, save_on_cpu")
def test_saved_tensors(place):
    x, w = randoms((4, 4), (4, 4), grad=True)
    there = place(x, w)
    packed = []

    def pack(t):
        packed.append(t)
        return t.cpu()

    for a, b in ((x, w), there):
        with saved_tensors_hooks(pack, lambda t: t):
            out = torch.tanh(a @ b)
        out.sum().backward()
    assert packed
    place.same_gradients((x, w), there)


@pytest.mark.row("saved_tensors_hooks, save_on_cpu")
def test_save_on_cpu(place):
    x, w = randoms((4, 4), (4, 4), grad=True)
    there = place(x, w)
    for a, b in ((x, w), there):
        with save_on_cpu():
            out = torch.tanh(a @ b)
        out.sum().backward()
    place.same_gradients((x, w), there)


@pytest.mark.row("Gradient hooks", note="on tensors, accumulators and modules")
def test_hooks(place):
    net = nn.Linear(4, 4)
    x = torch.randn(2, 4, requires_grad=True)
    there, xs = place.module(net), place(x)
    seen = []

    def halve(p):
        p.grad.mul_(0.5)

    for n, t in ((net, x), (there, xs)):
        n.weight.register_hook(lambda g: g * 2)
        n.weight.register_post_accumulate_grad_hook(halve)
        n.register_full_backward_hook(lambda m, gi, go: (gi[0] * 3,))
        out = n(t)
        out.register_hook(lambda g: seen.append(g.device))
        out.sum().backward()
        assert seen[-1] == out.device
    place.same_gradients(net, there)
    place.same_gradients([x], [xs])
