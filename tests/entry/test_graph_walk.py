"""Whoever asks a graph later finds that of the same program on one device.

Each program runs plain on one device and managed, its leaves on one to four devices. Both graphs
are walked at once, managed's own nodes contracted; then the gradients of what the program asks for
are compared, and the calls of its hooks, one by one.
"""

import itertools

import pytest
import torch
from support.devices import D0, D1, D2
from support.graphwalk import OURS, difference
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from managed import ManagedTensor

PLACES = {
    "1": (D0, D0, D0),
    "2": (D0, D1, D1),
    "3": (D0, D1, D2),
    "4": ("cpu", D1, D2),
    "to the host": (D1, "cpu", "cpu"),
}

# Where graphs differ, and why. Nothing else may.
KNOWN = {}


class Program:
    """One run: its leaves, what it was told, and what it asks for."""

    def __init__(self, leaves):
        self.leaves = leaves
        self.calls = []
        self.asked = []

    # Hooks keep the calls and not the program: a tensor whose hook leads back to it is never freed.
    def hook(self, name, factor=None):
        calls = self.calls

        def called(g):
            calls.append((name, None if g is None else g.detach().cpu().clone()))
            return None if factor is None else g * factor

        return called

    def node_hook(self, name):
        calls = self.calls

        def called(*gradients):
            for g in gradients:
                calls.append((name, [None if t is None else t.detach().cpu().clone() for t in g]))

        return called

    def ask(self, *tensors):
        self.asked += tensors
        return tensors if len(tensors) > 1 else tensors[0]


class Reversed(torch.autograd.Function):
    """Its result is a view of its operand, and its gradient is none of a view."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g


class Transposed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.t()

    @staticmethod
    def backward(ctx, g):
        return 2 * g.t()


class TwoResults(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y, x + y

    @staticmethod
    def backward(ctx, g, h):
        x, y = ctx.saved_tensors
        return g * y + h, g * x + h


PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


VIEWS = {
    "t": lambda w: w.t(),
    "view": lambda w: w.view(2, 18),
    "view_as": lambda w: w.view_as(w),
    "reshape": lambda w: w.reshape(-1),
    "reshaped_copy": lambda w: w.t().reshape(-1),
    "unsqueeze": lambda w: w.unsqueeze(1),
    "squeeze": lambda w: w.view(6, 1, 6).squeeze(1),
    "permute": lambda w: w.view(2, 3, 6).permute(2, 0, 1),
    "movedim": lambda w: w.movedim(0, 1),
    "expand": lambda w: w.unsqueeze(0).expand(3, 6, 6),
    "narrow": lambda w: w.narrow(0, 1, 4),
    "select": lambda w: w.select(0, 1),
    "slices": lambda w: w[1:5, ::2],
    "diagonal": lambda w: w.diagonal(),
    "unfold": lambda w: w.unfold(0, 3, 2),
    "as_strided": lambda w: w.as_strided((4, 6), (6, 1), 6),
    "overlapping": lambda w: w.as_strided((8, 6), (3, 1), 0),
    "flatten": lambda w: w.flatten(),
    "unflatten": lambda w: w.unflatten(1, (2, 3)),
    "alias": lambda w: torch.ops.aten.alias(w),
    "part_of_a_part": lambda w: w[1:].t()[:, 1:].unsqueeze(0),
    "chain": lambda w: w.t().view(6, 2, 3).transpose(0, 2).unsqueeze(1),
    "first_row_twice": lambda w: w[0].view(2, 3).t(),
    "chunk": lambda w: w.chunk(2)[1],
    "split": lambda w: w.split([5, 1])[0],
    "unbind": lambda w: w.view(2, 18).unbind()[0],
    "tensor_split": lambda w: w.tensor_split(2)[0],
    "part_of_a_chunk": lambda w: w.chunk(2)[0].t(),
    "custom": lambda w: Reversed.apply(w),
    "custom_transposed": lambda w: Transposed.apply(w),
    "part_of_a_custom": lambda w: Transposed.apply(w)[1:].reshape(-1),
    "chunk_of_a_custom": lambda w: Reversed.apply(w).chunk(2)[0],
    "custom_of_a_view": lambda w: Reversed.apply(w.t()),
    "contiguous": lambda w: w.t().contiguous(),
}


def used(p, v):
    """The view is needed where the large operand is."""
    _, x, _ = p.leaves
    return (v * x.view(-1, *[1] * v.dim())).tanh()


def of_view(name):
    def run(p):
        w, _, _ = p.leaves
        v = p.ask(VIEWS[name](w))
        return used(p, v).sum() + v.sum()

    return run


for name in VIEWS:
    PROGRAMS[f"view: {name}"] = of_view(name)


@program
def tied_weights(p):
    w, x, _ = p.leaves
    return p.ask(F.linear(F.linear(x, w).tanh(), w.t()))


@program
def a_view_on_two_devices(p):
    w, x, y = p.leaves
    v = p.ask(w.t())
    return (x @ v).tanh().sum() + (y @ v).sigmoid().sum()


@program
def a_view_and_its_base(p):
    w, x, y = p.leaves
    v = p.ask(w.t())
    p.ask(w)
    return ((x @ v).tanh() @ w).square().sum() + (y @ v.t()).sum()


@program
def views_of_one_view(p):
    w, x, _ = p.leaves
    v = p.ask(w.t())
    a, b = p.ask(v.view(6, 6), v[1:])
    return (x @ a).tanh().sum() + (x[:, 1:] @ b).sigmoid().sum()


@program
def all_chunks(p):
    w, x, y = p.leaves
    a, b = p.ask(*w.chunk(2))
    return (x[:, :3] @ a).tanh().sum() + (y[:, :3] @ b).sum() + (b * 2).sum()


@program
def detached(p):
    w, x, _ = p.leaves
    v = w.t().detach()
    u = p.ask(w.detach().t().requires_grad_())
    return (x @ v @ w).tanh().sum() + (x @ u).sigmoid().sum()


@program
def made_without_gradients(p):
    w, x, _ = p.leaves
    with torch.no_grad():
        v = w.t()
        u = w.view(6, 6)
    u.requires_grad_()
    p.ask(u)
    return (x @ v @ w).tanh().sum() + (x @ u).sum()


@program
def written_intermediate(p):
    w, x, _ = p.leaves
    h = w * 1
    v = h.t()
    v.mul_(2)
    a = x @ v
    p.ask(h, v)
    return a.tanh().sum()


@program
def written_after_crossing(p):
    w, x, _ = p.leaves
    h = w * 1
    v = h.view(-1)
    a = x.flatten()[:, None] + v
    v.mul_(2)
    b = x @ h
    p.ask(h, v)
    return a.sum() + b.tanh().sum()


@program
def written_from_elsewhere(p):
    w, x, y = p.leaves
    h = w * 1
    h.t().add_(x[:6])
    h[0].mul_(y[0])
    h.diagonal().copy_(x[0])
    return p.ask(h)


@program
def rows_of_a_buffer(p):
    w, x, y = p.leaves
    out = torch.zeros_like(w)
    out[0] = (x[0] * 2).to(out.device)
    out[1:3].copy_(y[1:3])
    return p.ask(out) * w


@program
def results_of_a_function(p):
    w, x, _ = p.leaves
    a, b = p.ask(*TwoResults.apply(w, x[:6].to(w.device)))
    return (x @ a).sum() + (x @ b.t()).tanh().sum()


@program
def hooks_before(p):
    w, x, y = p.leaves
    v = p.ask(w.t())
    v.register_hook(p.hook("v"))
    v.retain_grad()
    w.register_hook(p.hook("w"))
    return (x @ v).tanh().sum() + (y @ w).sum()


@program
def hooks_after(p):
    w, x, y = p.leaves
    v = p.ask(w.t())
    out = (x @ v).tanh().sum() + (y @ v).sum()
    v.register_hook(p.hook("v", 2))
    v.retain_grad()
    w.register_hook(p.hook("w", 3))
    return out


@program
def hooks_in_the_middle(p):
    w, x, _ = p.leaves
    v = w.t()
    u = v[1:].unsqueeze(0)
    out = (x[:, 1:] @ u).tanh().sum()
    p.ask(u)
    v.register_hook(p.hook("v", 0.5))
    u.register_hook(p.hook("u"))
    return out


@program
def hooks_of_nodes(p):
    w, x, _ = p.leaves
    v, u = w.t(), w.view(-1)
    out = (
        (x @ v).tanh().sum() + (x.flatten() * u[:1]).sum() + (x.flatten()[:, None] * u).sin().sum()
    )
    v.grad_fn.register_hook(p.node_hook("t"))
    u.grad_fn.register_prehook(p.node_hook("view"))
    return out


@program
def a_hook_that_is_taken_off(p):
    w, x, _ = p.leaves
    v = w.t()
    handle = v.register_hook(p.hook("v"))
    out = (x @ v).tanh().sum()
    handle.remove()
    return out


@program
def hooks_of_several(p):
    w, x, y = p.leaves
    v, u = w.t(), w.view(6, 6)
    out = (x @ v).tanh().sum() + (y @ u).sum()
    torch.autograd.graph.register_multi_grad_hook((v, u), p.node_hook("both"))
    return out


@program
def after_accumulation(p):
    w, x, _ = p.leaves
    out = (x @ w.t()).tanh().sum() + (x @ w).sum()
    calls = p.calls
    w.register_post_accumulate_grad_hook(lambda t: calls.append(("w", t.grad.cpu().clone())))
    return out


@program
def parts_of_complex(p):
    w, x, _ = p.leaves
    c = torch.complex(w, w * 2)
    return p.ask(c.real) @ x[:6].t().contiguous() + (x[:6] @ c.imag.t()).tanh()


@program
def recomputed(p):
    w, x, _ = p.leaves

    def block(w, x):
        return (x @ w.t()).tanh() @ w

    return checkpoint(block, w, x, use_reentrant=False).square().sum()


def of_module(make, call=lambda m, x: m(x)):
    def run(p):
        w, x, _ = p.leaves
        torch.manual_seed(5)
        net = make().double()
        net.train()
        for k, (name, old) in enumerate(list(net.named_parameters())):
            holder, _, last = name.rpartition(".")
            device = p.leaves[k % 3].device
            new = old.detach().to(device)
            if isinstance(w, ManagedTensor):
                new = new.as_subclass(ManagedTensor)
            new = nn.Parameter(new)
            p.leaves.append(new)
            net.get_submodule(holder)._parameters[last] = new
        for name, old in list(net.named_buffers()):
            holder, _, last = name.rpartition(".")
            net.get_submodule(holder)._buffers[last] = old.to(w.device)
        return p.ask(call(net, x @ w.t()))

    return run


def twice_differentiable(net, x):
    with sdpa_kernel(SDPBackend.MATH):
        return net(x)


PROGRAMS |= {
    f"module: {name}": of_module(*made)
    for name, made in {
        "linear": (lambda: nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.LayerNorm(6)),),
        "batch norm": (lambda: nn.BatchNorm1d(6),),
        "convolution": (lambda: nn.Conv1d(1, 2, 3), lambda m, x: m(x.unsqueeze(1))),
        "attention": (
            lambda: nn.MultiheadAttention(6, 2, batch_first=True),
            lambda m, x: m(x[None], x[None], x[None])[0],
        ),
        "encoder": (
            lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True),
            lambda m, x: twice_differentiable(m, x[None]),
        ),
        "bilinear": (lambda: nn.Bilinear(6, 6, 4), lambda m, x: m(x, x)),
        "embedding": (lambda: nn.EmbeddingBag(6, 6), lambda m, x: m(x.argmax(1)[None]) + x),
    }.items()
}


DATA = [
    torch.randn(n, 6, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    for n in (6, 64, 32)
]  # the large ones draw the first to them


def plain_run(program, device):
    return Program([t.to(device).clone().requires_grad_(k == 0) for k, t in enumerate(DATA)])


def managed_run(program, places):
    leaves = []
    for k, (t, d) in enumerate(zip(DATA, places, strict=True)):
        there = t.clone().to(d).as_subclass(ManagedTensor).detach()
        leaves.append(there.requires_grad_(k == 0))
    return Program(leaves)


def equal(a, b):
    if isinstance(a, list):
        return len(a) == len(b) and all(itertools.starmap(equal, zip(a, b, strict=True)))
    if a is None or b is None:
        return a is b
    a, b = a.cpu(), b.cpu()
    return (a - b).abs().max() <= 1e-12 * max(1, a.abs().max())


def run_both(name, places):
    there = managed_run(name, places)
    out = PROGRAMS[name](there)
    here = plain_run(name, out.device)
    return here, PROGRAMS[name](here), there, out


def asked_of(p, out):
    """Gradients of all that the program asks for, alone and together, in a graph used again."""
    root = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    root = root.to(out.device)
    leaves = [t for t in p.leaves if t.requires_grad]
    asked = [t for t in p.asked if t.requires_grad and t is not out]
    found = []
    for inputs in [*([t] for t in asked), asked, leaves, [*asked, *leaves]]:
        for create in (False, True) if inputs else ():
            kinds = {"retain_graph": True, "create_graph": create, "allow_unused": True}
            found.append(torch.autograd.grad(out, inputs, root, **kinds))
    second = [g for g in found[-1] if g is not None and g.requires_grad]
    for t in asked:
        out.backward(root, inputs=[t], retain_graph=True)
        found.append([t.grad])
    out.backward(root, retain_graph=True)
    if second:
        sum(g.square().sum().cpu() for g in second).backward()
    found.append([t.grad for t in (*leaves, *asked) if t.is_leaf or t.retains_grad])
    assert all(t.grad is None or t.grad.device == t.device for t in (*leaves, *asked))
    return [list(f) for f in found]


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_program_finds(name, places):
    here, a, there, b = run_both(name, places)
    leaves = list(zip(here.leaves, there.leaves, strict=True))
    assert difference([a, *here.asked], [b, *there.asked], leaves) == KNOWN.get(name)
    for k, (x, y) in enumerate(zip(asked_of(here, a), asked_of(there, b), strict=True)):
        assert equal(x, y), (k, x, y)
    assert len(here.calls) == len(there.calls)
    for hook in {
        n for n, _ in here.calls
    }:  # which of two branches comes first is the engine's affair
        x, y = ([g for n, g in p.calls if n == hook] for p in (here, there))
        assert equal(x, y), hook


@pytest.mark.not_under_torture("it counts what is copied")
@pytest.mark.parametrize("late", [False, True])
def test_a_leaf_that_settled_by_its_views(late):
    """It moves while older graphs are alive, as it does without views, and they still answer."""
    w = torch.randn(6, 6, dtype=torch.float64)
    v = w.clone().as_subclass(ManagedTensor).detach().requires_grad_()
    x = torch.randn(64, 6, dtype=torch.float64)
    y = x.to(D1).as_subclass(ManagedTensor)
    olds = []
    for _ in range(4):
        v.grad = None
        with torch.no_grad():
            v.mul_(1)  # as an optimizer does: the copies from before serve no longer
        olds.append(torch.einsum("ij,kj->ik", y, v).tanh().sum())
        olds[-1].backward(retain_graph=True)
    assert v.device == y.device  # its uses were views of it, which composites made
    w.requires_grad_()
    expected = torch.einsum("ij,kj->ik", x, w).tanh().sum()
    walk = [difference([expected], [old], [(w, v)]) for old in olds]
    assert walk == [None] * 4
    (g,) = torch.autograd.grad(expected, w)
    for old in olds:
        node, view = old.grad_fn, None
        while node is not None and "AccumulateGrad" not in node.name():
            if node.name() == "ManagedViewBackward":
                view = node.next_functions[0][0]
            node = next((n for n, _ in node.next_functions if n is not None), None)
        seen = []
        if late and view is not None:
            view.register_prehook(lambda gradients, seen=seen: seen.append(gradients[0].device))
        (h,) = torch.autograd.grad(old, v, retain_graph=True)
        assert h.device == v.device
        assert torch.equal(g, h.cpu())
        assert len(seen) == (late and view is not None)


def test_the_walk_sees_each_kind_of_difference():
    w = torch.randn(4, 4, requires_grad=True)
    u = torch.randn(4, 4, requires_grad=True)

    def found(a, b, leaves=((w, w), (u, u))):
        return difference([a], [b], leaves)

    assert found(w.t() * u, w.t() * u) is None
    assert "instead of" in found(w.t() * u, w.view(4, 4) * u)
    assert "another leaf" in found(w * u, u * w)
    assert "metadata" in found(w[:2].sum(), w[:3].sum())
    assert "None" in found(w * u, w * u.detach())
    assert "another node" in found(
        w.exp() * (h := w.sin()) * h.cos(), w.exp() * w.sin() * w.sin().cos()
    )
    assert "retains_grad" in found(w * u, (lambda t: (t.retain_grad(), t)[1])(w * u))


def test_what_is_contracted_is_there():
    """Else the walk would compare nothing."""
    w = torch.randn(6, 6).as_subclass(ManagedTensor).detach().requires_grad_()
    x = torch.randn(64, 6).to(D1).as_subclass(ManagedTensor)
    seen, todo = set(), [(x @ w.t() + x @ w).grad_fn]
    while todo:
        node = todo.pop()
        seen.add(node.name())
        todo += [n for n, _ in node.next_functions if n is not None]
    assert set(OURS) <= seen
