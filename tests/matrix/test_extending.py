"""Extending torch

Custom operators, modes, and code that looks at every call.
"""

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from managed import ManagedTensor

from .common import Place, managed_on, same


@pytest.fixture(scope="module")
def operators():
    """Operators that insist on one device, as kernels do."""

    @torch.library.custom_op("matrix_test::blend", mutates_args=())
    def blend(a: torch.Tensor, b: torch.Tensor, w: list[torch.Tensor]) -> torch.Tensor:
        assert len({t.device for t in (a, b, *w)}) == 1
        return a * w[0] + b * w[1]

    @blend.register_fake
    def _(a, b, w):
        return torch.empty_like(a)

    def save(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:2], *inputs[2])

    def backward(ctx, g):
        a, b, v, w = ctx.saved_tensors
        return g * v, g * w, [g * a, g * b]

    blend.register_autograd(backward, setup_context=save)

    @torch.library.register_vmap(blend)
    def _(info, dims, a, b, w):
        a, b = (t if d is None else t.movedim(d, 0) for t, d in zip((a, b), dims[:2], strict=True))
        return blend(a, b, w), 0

    @torch.library.custom_op("matrix_test::accumulate", mutates_args=("into", "parts"))
    def accumulate(into: torch.Tensor, parts: list[torch.Tensor], by: torch.Tensor) -> torch.Tensor:
        assert len({t.device for t in (into, by, *parts)}) == 1
        into.add_(by)
        for part in parts:
            part.mul_(by)
        return into * 2

    return blend, accumulate


@pytest.mark.row("Custom operators", note="torch.library, register_autograd, register_vmap, lists")
def test_custom_operator(place, operators):
    blend, _ = operators
    tensors = [torch.randn(4, requires_grad=True) for _ in range(4)]
    there = place(*tensors)
    outs = []
    for a, b, v, w in (tensors, there):
        outs.append(blend(a, b, [v, w]))
        outs[-1].sum().backward()
    same(*outs)
    place.same_gradients(tensors, there)


@pytest.mark.row("Custom operators")
def test_custom_operator_under_vmap(place, operators):
    blend, _ = operators
    a, b, v, w = torch.randn(3, 4), torch.randn(4), torch.randn(4), torch.randn(4)

    def run(a, b, v, w):
        return torch.vmap(lambda a: blend(a, b, [v, w]))(a)

    same(run(a, b, v, w), run(*place(a, b, v, w)))


@pytest.mark.row(
    "Custom operators that write", note="also into lists; the written tensor stays home"
)
def test_mutating_operator(place, operators):
    _, accumulate = operators
    tensors = [torch.randn(4) for _ in range(4)]
    there = place(*tensors)
    homes = [t.device for t in there]
    outs = [accumulate(into, parts, by) for into, *parts, by in (tensors, there)]
    same(*outs)
    same(tensors, list(there))
    assert [t.device for t in there] == homes


@pytest.mark.row("Custom operators")
def test_library_kernels_by_device(place):
    library = torch.library.Library("matrix_kernels", "FRAGMENT")
    library.define("twice(Tensor a, Tensor b) -> Tensor")
    calls = []
    for key in ("CPU", "PrivateUse1"):
        library.impl("twice", lambda a, b, key=key: (calls.append(key), 2 * (a + b))[1], key)
    a, b = torch.randn(3), torch.randn(3)
    same(2 * (a + b), torch.ops.matrix_kernels.twice(*place(a, b)))
    assert calls == ["PrivateUse1"]
    library._destroy()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.row("torch.library.opcheck", note="of operands on the CPU")
def test_opcheck(operators):
    a, b, v, w = (managed_on(torch.randn(4, requires_grad=True), "cpu") for _ in range(4))
    assert set(torch.library.opcheck(operators[0], (a, b, [v, w])).values()) == {"SUCCESS"}


@pytest.mark.row("TorchFunctionMode", note="sees every call once, and may change it")
def test_torch_function_mode(place):
    class Count(TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    a, b = torch.randn(3), torch.randn(3)
    x, y = place(a, b)
    with Count() as here:
        expected = torch.tanh(a + b).sum()
    with Count() as there:
        actual = torch.tanh(x + y).sum()
    same(expected, actual)
    assert here.names == there.names


@pytest.mark.row("TorchDispatchMode", note="sees aligned operands; what it returns is managed")
def test_torch_dispatch_mode(place):
    class Watch(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = {}

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            devices = {a.device for a in args if isinstance(a, torch.Tensor)}
            self.seen.setdefault(func.overloadpacket.__name__, []).append(devices)
            return func(*args, **(kwargs or {}))

    a, b = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    there = place(a, b)
    with Watch() as watch:
        out = there[0] @ there[1]
        out.sum().backward()
    same(a @ b, out)
    (a @ b).sum().backward()
    place.same_gradients((a, b), there)
    assert len(watch.seen["mm"]) == 3
    assert all(len(devices) == 1 for devices in watch.seen["mm"])


@pytest.mark.row(
    "TorchDispatchMode that combines managed tensors of several devices by itself",
    "refused: RuntimeError",
    note="inside __torch_dispatch__ nothing is aligned",
)
def test_torch_dispatch_mode_of_its_own():
    x, y = Place("mixed")(torch.randn(3), torch.randn(3))

    class Adds(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {})) + y

    with Adds(), pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.sin(x)


@pytest.mark.row("FlopCounterMode")
def test_flop_counter(place):
    x, w = place(torch.randn(4, 5), torch.randn(5, 6, requires_grad=True))
    with FlopCounterMode(display=False) as counter:
        (x @ w).sum().backward()
    assert counter.get_total_flops() == 2 * 2 * 4 * 5 * 6


@pytest.mark.row("einsum", note="with and without a path")
def test_einsum(place):
    a, b, c = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5, 2)
    formula = "ij,jk,kl->il"
    same(torch.einsum(formula, a, b, c), torch.einsum(formula, *place(a, b, c)))
    enabled = torch.backends.opt_einsum.enabled
    torch.backends.opt_einsum.enabled = False
    try:
        same(torch.einsum(formula, a, b, c), torch.einsum(formula, *place(a, b, c)))
    finally:
        torch.backends.opt_einsum.enabled = enabled


@pytest.mark.row("Module hooks", note="forward, pre-forward, state_dict and global hooks")
def test_module_hooks(place):
    net, x = torch.nn.Linear(3, 2), torch.randn(4, 3)
    there, xs = place.module(net), place(x)
    seen = []
    for n in (net, there):
        n.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        n.register_forward_hook(lambda m, args, out: out + 1)
        n.register_state_dict_pre_hook(lambda m, prefix, keep: seen.append(prefix))
    same(net(x), there(xs))
    same(dict(net.state_dict()), dict(there.state_dict()))
    assert len(seen) == 2
    assert isinstance(there.state_dict()["weight"], ManagedTensor)
