"""Operators inside the __torch_dispatch__ of a wrapper that holds managed tensors."""

import pytest
import torch
from support.devices import D0, D1, D2
from support.pressure import N, nothing_left, on, spill  # noqa: F401
from torch import nn
from torch.utils._pytree import tree_map_only

import managed
from managed import _C, ManagedModule, ManagedTensor


class Pair(torch.Tensor):
    """The sum of two tensors, which only an operator adds up."""

    @staticmethod
    def __new__(cls, a, b):
        how = {"dtype": a.dtype, "device": a.device, "requires_grad": a.requires_grad}
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, **how)

    def __init__(self, a, b):
        self.a, self.b = a, b

    @classmethod
    def __torch_dispatch__(cls, f, types, args=(), kwargs=None):
        if f is torch.ops.aten.copy_.default and isinstance(args[0], cls):
            args[0].a.copy_(args[1])
            args[0].b.zero_()
            return args[0]
        if f is torch.ops.aten.detach.default:
            return cls(args[0].a.detach(), args[0].b.detach())
        return f(
            *tree_map_only(Pair, cls.total, args), **tree_map_only(Pair, cls.total, kwargs or {})
        )

    def total(self):
        return self.a + self.b


class Heir(Pair):
    """One whose __torch_dispatch__ is its parent's."""


class Calls(Pair):
    @classmethod
    def __torch_dispatch__(cls, f, types, args=(), kwargs=None):
        return super().__torch_dispatch__(f, types, args, kwargs)


class ByFunction(Pair):
    @staticmethod
    def __torch_dispatch__(f, types, args=(), kwargs=None):
        return Pair.__torch_dispatch__.__func__(ByFunction, f, types, args, kwargs or {})


def halves(here, *devices):
    return [on(here / 2, d) for d in devices]


OPERATORS = {
    "reads": lambda w, x: w * 2,
    "reads beside a managed one": lambda w, x: x + w,
    "lists": lambda w, x: torch.cat([x, w]),
    "is written": lambda w, x: w.copy_(x * 3).total(),
    "writes": lambda w, x: x.clone().add_(w),
    "composite": lambda w, x: torch.nn.functional.mse_loss(w * 1, x),
}


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
@pytest.mark.parametrize("kind", [Pair, Heir, Calls, ByFunction])
def test_what_a_wrapper_holds_comes_home(operator, kind):
    torch.manual_seed(0)
    here, beside = torch.randn(N), torch.randn(N)
    want = operator(kind(here / 2, here / 2), beside)
    a, b, x = *halves(here, D0, D0), on(beside)
    w = kind(a, b)
    spill(a, b, x)
    with managed.debug.torture(seed=0):
        got = operator(w, x)
    assert isinstance(got, ManagedTensor)
    assert torch.equal(got.cpu(), want)


def test_what_it_holds_may_stand_apart():
    here = torch.randn(N)
    for devices in ((D1, D2), (D2, "cpu")):
        w = Pair(*halves(here, *devices))
        assert torch.equal((w * 2).cpu(), here * 2)


def test_one_inside_another():
    here = torch.randn(N)
    a, b, c = halves(here, D0, D0, D0)
    w = Pair(Pair(a, b), c)
    spill(a, b, c)
    assert torch.equal((w + 1).cpu(), here / 2 + here / 2 + here / 2 + 1)


def test_plain_ones_stay_plain():
    w = Pair(torch.ones(3), torch.ones(3))
    result = w * 2
    assert not isinstance(result, ManagedTensor)
    assert result.tolist() == [4, 4, 4]
    with pytest.raises(RuntimeError, match="size"):
        w + torch.ones(4)


def test_states_of_an_optimizer_under_a_budget():
    """They are written and read in each step, and have to leave in between."""

    def train(put):
        torch.manual_seed(0)
        model, x = (
            put(nn.Sequential(*(nn.Linear(128, 128, bias=False) for _ in range(6)))),
            torch.randn(4, 128),
        )
        states = [Pair(torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]
        for _ in range(4):
            model.zero_grad()
            model(x).square().mean().backward()
            with torch.no_grad():
                for p, s in zip(model.parameters(), states, strict=True):
                    s.copy_(s * 0.9 + p.grad)
                    p.sub_(s, alpha=0.01)
        return [p.detach().cpu() for p in model.parameters()]

    want = train(lambda m: m)
    device = torch.get_device_module(D0)
    before = managed.stats()["spill"]
    with managed.budget(D0, device.memory_allocated(0) + 10 * 128 * 128 * 4):
        got = train(lambda m: ManagedModule.from_module(m).to(D0))
    assert managed.stats()["spill"] > before
    assert all(map(torch.equal, want, got))


def test_it_is_wrapped_once_and_torchs_own_are_not():
    from torch._subclasses.functional_tensor import FunctionalTensor

    Pair(torch.ones(1), torch.ones(1))
    first = vars(Pair)["__torch_dispatch__"]
    Pair(torch.ones(1), torch.ones(1))
    assert vars(Pair)["__torch_dispatch__"] is first
    assert "__torch_dispatch__" not in vars(Heir)
    assert type(vars(FunctionalTensor)["__torch_dispatch__"]) is not type(first)
    assert Pair.__torch_dispatch__.__func__ is first.__func__, "as programs and torch ask for it"
    with pytest.raises(TypeError, match="3 arguments"):
        _C.call_hooked()
