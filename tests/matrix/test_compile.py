"""torch.compile, export and tracing

Compiled and traced programs take managed tensors and give what plain ones give.
"""

import copy

import pytest
import torch
from support.devices import D1, D3
from support.pressure import PRESSURES, moved, pressed
from support.slices import slice_of
from torch import nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from managed import ManagedModule, ManagedTensor

from .common import Place, managed_on, same

BACKENDS = ("eager", "aot_eager", "inductor")
# What torch and its parts say of themselves while they compile.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.* is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit.* is deprecated:FutureWarning"),
    pytest.mark.filterwarnings(
        "ignore:.torch.jit.* is not supported in Python 3.14:DeprecationWarning"
    ),
    pytest.mark.filterwarnings(
        "ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"
    ),
]


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def body(x, w, b):
    return torch.tanh(x @ w + b).pow(2), (x * 2).sum()


def leaves():
    return [torch.randn(s, requires_grad=True) for s in ((5, 4), (4, 3), (3,))]


def dealt(place, operands):
    """Managed copies without gradients, on the same devices each time."""
    return Place(place.name)(*(t.detach() for t in operands))


def steady(function, calls=4):
    """Calls until the second call is over, then forbids recompilation."""
    for call in range(calls):
        with torch._dynamo.config.patch(error_on_recompile=call >= 2):
            out = function()
    return out


def placed(where):
    """On one device of that name, or "mixed"."""
    place = Place("mixed")
    if where != "mixed":
        place.device = lambda: where
    return place


@pytest.mark.row("torch.compile, backend eager", note="whole graph; no recompilation")
@pytest.mark.row("torch.compile, backend aot_eager", note="whole graph; no recompilation")
@pytest.mark.row(
    "torch.compile, backend inductor",
    note="a graph of several devices, or on simulated ones, runs operator by operator",
)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("where", slice_of([D1, "mixed", "cpu"], 2))
def test_compile(backend, where):
    operands, place = leaves(), placed(where)
    there = place(*operands)
    compiled = torch.compile(body, backend=backend, fullgraph=True)

    def step(operands, function):
        for t in operands:
            t.grad = None
        outs = function(*operands)
        sum(o.sum() for o in outs).backward()
        return [o.detach() for o in outs]

    actual = steady(lambda: step(there, compiled))
    # Generated code may round differently from the operators: it is compared with itself.
    expected = step(operands, compiled if (backend, where) == ("inductor", "cpu") else body)
    same(expected, actual)
    place.same_gradients(operands, there)


@pytest.mark.row("torch.compile, backend inductor", note="training a module with an optimizer")
@pytest.mark.parametrize("where", slice_of([D1, "mixed", "cpu"], 2))
def test_compiled_training(where):
    net, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(5, 4)
    place = placed(where)
    there, xs = place.module(net), place(x)
    optimizers = [torch.optim.AdamW(n.parameters(), 1e-2) for n in (net, there)]
    modules = [torch.compile(n, fullgraph=True) for n in (net, there)]

    def step(which, x):
        optimizers[which].zero_grad()
        modules[which](x).pow(2).sum().backward()
        optimizers[which].step()

    steady(lambda: step(0, x))
    steady(lambda: step(1, xs))
    for p, q in zip(net.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(q.cpu(), p) if where != "cpu" else same(p, q)
    assert isinstance(modules[1](xs), ManagedTensor)


@pytest.mark.row("torch.compile, backend inductor, under memory pressure")
@pytest.mark.parametrize("pressure", PRESSURES)
@pytest.mark.parametrize("where", [D1, "mixed"])
def test_compiled_training_under_pressure(where, pressure):
    """It compiles while storages leave, and trains bit by bit as with room."""
    layers = (m for _ in range(6) for m in (nn.Linear(16, 16), nn.Tanh()))
    net, batch = nn.Sequential(*layers), torch.randn(5, 16)

    def training():
        torch._dynamo.reset()
        place = placed(where)
        there, x = place.module(net), place(batch)
        optimizer, compiled = torch.optim.AdamW(there.parameters()), torch.compile(there)
        losses = []

        def step():
            optimizer.zero_grad()
            losses.append(compiled(x).pow(2).sum())
            losses[-1].backward()
            optimizer.step()

        steady(step)
        gradients = [p.grad for p in there.parameters()]
        return [t.detach().cpu() for t in (*losses, *there.parameters(), *gradients)]

    expected = training()
    with moved() as m:
        same(expected, pressed(pressure, training))
    assert m["restore"] > 3


@pytest.mark.row("torch.compile, dynamic shapes and graph breaks")
@pytest.mark.parametrize("backend", BACKENDS)
def test_dynamic_shapes(backend):
    place = Place("one")

    def broken(x):
        y = x * 2
        torch._dynamo.graph_break()
        return torch.tanh(y).sum(-1)

    compiled = torch.compile(broken, backend=backend, dynamic=True)
    for rows in (2, 3, 7):
        x = torch.randn(rows, 4)
        same(broken(x), compiled(place(x)))


# Dynamo asks whether an input that is no leaf has a gradient.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.row("torch.compile of parts of a module", note="each on its device, or over several")
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_parts(backend):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x).relu() + x

    net, x = nn.Sequential(*(Block() for _ in range(3))), torch.randn(2, 4)
    there, place = ManagedModule.from_module(copy.deepcopy(net)), Place("one")
    for i, part in enumerate(there):
        part.cuda(i)
        part.compile(backend=backend)
    net(x).pow(2).sum().backward()

    def step():
        there.zero_grad()
        there(managed_on(x, D3)).pow(2).sum().backward()

    steady(step)
    place.same_gradients(net, there)


@pytest.mark.row("torch.compile, a backend of one's own", note="gets the graph as it is")
def test_own_backend(place):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    operands = leaves()
    there = place(*operands)
    actual = torch.compile(body, backend=backend, fullgraph=True)(*there)
    same([t.detach() for t in body(*operands)], [t.detach() for t in actual])
    assert len(graphs) == 1


@pytest.mark.row("torch.compile of plain tensors", note="untouched, also if their devices differ")
def test_plain_compile():
    x, w = torch.randn(2, 3), torch.randn(3, 4)
    compiled = torch.compile(torch.matmul)
    same(compiled(x, w), compiled(*(t.clone() for t in (x, w))), managed=False)
    there = Place("mixed")(x, w)
    torch.compile(torch.matmul)(*there)
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match=r"(?i)same device|mismatch|different devices"):
        torch.compile(torch.matmul)(x.to(D1), w)


@pytest.mark.row("torch.export")
@pytest.mark.parametrize("strict", [False, True], ids=["not strict", "strict"])
@pytest.mark.parametrize("where", ["cpu", D1, "mixed"])
def test_export(where, strict):
    net, x = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU()).eval(), torch.randn(5, 4)
    place = placed(where)
    there, xs = place.module(net), place(x)
    rows = torch.export.Dim("rows")
    program = torch.export.export(there, (xs,), dynamic_shapes=({0: rows},), strict=strict)
    same(net(x).detach(), program.module()(xs).detach())
    longer = torch.randn(9, 4)
    same(net(longer).detach(), program.module()(place(longer)).detach())
    program.run_decompositions()


@pytest.mark.row("FakeTensorMode", note="fake tensors of managed ones, and beside managed ones")
def test_fake_tensors(place):
    a, b = place(torch.randn(4, 3), torch.randn(3, 2))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(t) for t in (a, b)]
        for x, y in (fakes, (fakes[0], b), (a, fakes[1])):
            out = x @ y
            assert isinstance(out, FakeTensor)
            assert not isinstance(out, ManagedTensor)
            assert (out.shape, out.device) == ((4, 2), a.device)


@pytest.mark.row("make_fx", note="real, fake and symbolic")
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(place, mode):
    graph = make_fx(body, tracing_mode=mode)(*dealt(place, leaves()))
    operands = [t.detach() for t in leaves()]  # others: nothing may be baked into the graph
    same(body(*operands), graph(*dealt(place, operands)))


@pytest.mark.row("torch.fx.symbolic_trace")
def test_symbolic_trace(place):
    net, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.randn(2, 4)
    there = place.module(net)
    graph = torch.fx.symbolic_trace(there)
    same(net(x).detach(), graph(place(x)).detach())


@pytest.mark.row("torch.jit.trace")
def test_jit_trace(place):
    traced = torch.jit.trace(body, dealt(place, leaves()))
    for _ in range(3):
        operands = [t.detach() for t in leaves()]
        same(body(*operands), traced(*dealt(place, operands)))


@pytest.mark.row("torch.jit.trace")
def test_jit_trace_of_a_module(place):
    net, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.randn(2, 4)
    there, xs = place.module(net), place(x)
    traced = torch.jit.trace(there, xs)
    for _ in range(3):
        x = torch.randn(2, 4)
        same(net(x).detach(), traced(managed_on(x, xs.device)).detach())


@pytest.mark.row("torch.jit.script", note="training with operands apart runs it as it is written")
def test_jit_script(place):
    operands, there = leaves(), None
    there = place(*operands)
    scripted = torch.jit.script(body)
    for _ in range(3):
        same([t.detach() for t in body(*operands)], [t.detach() for t in scripted(*there)])
    net, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.randn(2, 4)
    module = torch.jit.script(place.module(net))
    for _ in range(3):
        same(net(x).detach(), module(place(x)).detach())
