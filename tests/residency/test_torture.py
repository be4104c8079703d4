"""Everything that nobody uses leaves before every operator, and no bit of any result changes."""

import itertools

import pytest
import torch
from support import torture_programs_math  # noqa: F401
from support.compare import difference
from support.devices import D0, D1, D2
from support.pressure import leaves_nothing, moved
from support.scattering import scatter
from support.slices import slice_of
from support.torture_programs import PROGRAMS
from torch import nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

import managed.debug
from managed import _C, ManagedModule, ManagedTensor

# torch says the one of its own forward-mode rules, the other once in a process.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning"),
]

SEEDS = (0, 1, 2)
FEW = 8  # programs that `make test` runs in each way
# Gradients from several devices that meet at one tensor are added up as they arrive: three and more
# give other bits from run to run, with and without torture.
IN_ANOTHER_ORDER = ("llama", "t5", "linear_algebra", "complex_numbers", "sorting_and_searching")


@pytest.fixture(scope="module")
def expected():
    """Results of plain programs on a simulated device: its random numbers are its own."""
    known = {}

    def of(name):
        if name not in known:
            known[name] = [t.cpu() for t in run(name, plain)]
        return known[name]

    return of


def plain(x):
    """On the device, with no manager; module.to() would not keep tied weights tied."""
    if not isinstance(x, nn.Module):
        return x.to(D1)
    return scatter(x, lambda: D1, finish=lambda t: t)


class Placed:
    """Gives tensors and modules their places: all on one device, or dealt over several."""

    def __init__(self, *devices):
        self.devices = itertools.cycle(devices)

    def __call__(self, x):
        if not isinstance(x, nn.Module):
            return x.detach().as_subclass(ManagedTensor).to(next(self.devices))
        there = ManagedModule.from_module(x)
        for t in (*there.parameters(), *there.buffers()):
            _C.move(t, next(self.devices))
        return there


def run(name, put):
    torch.manual_seed(7)
    found = PROGRAMS[name](put)
    return [t.detach() for t in found]


def check(expected, actual):
    found = difference(expected, actual, form=False)
    assert found is None, found


@pytest.mark.parametrize("name", slice_of(PROGRAMS, FEW))
def test_everything_leaves(name, expected):
    wanted = expected(name)
    with leaves_nothing():
        with managed.debug.torture(), moved() as m:
            actual = run(name, Placed(D1))
        check(wanted, [t.cpu() for t in actual])
        del actual
    assert m["restore"] > 3


@pytest.mark.parametrize("seed", slice_of(SEEDS))
@pytest.mark.parametrize("name", slice_of(PROGRAMS, FEW))
def test_some_leave(name, seed, expected):
    wanted = expected(name)
    with managed.debug.torture(odds=3, seed=seed):
        actual = run(name, Placed(D1))
    check(wanted, [t.cpu() for t in actual])


@pytest.mark.parametrize("name", slice_of(PROGRAMS, FEW))
def test_everything_leaves_all_the_time(name, expected):
    wanted = expected(name)
    with leaves_nothing():
        with managed.debug.torture(hammer=True):
            actual = run(name, Placed(D1))
        check(wanted, [t.cpu() for t in actual])
        del actual


@pytest.mark.parametrize(
    "name",
    slice_of([n for n in PROGRAMS if "generate" not in n and n not in IN_ANOTHER_ORDER], FEW),
)
def test_everything_leaves_on_several_devices(name, expected):
    """As without torture, bit by bit: over devices some sums are in another order than on one."""
    devices = D0, "cpu", D1, D2
    wanted = run(name, Placed(*devices))
    with managed.debug.torture():
        actual = run(name, Placed(*devices))
    check([t.cpu() for t in wanted], [t.cpu() for t in actual])


class Before(TorchFunctionMode):
    """Everything leaves before each call from Python, also what the call uses."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        _C.spill_all()
        return function(*args, **(kwargs or {}))


# With such a mode torch's own attention takes its slow way, whose sums are in another order.
@pytest.mark.parametrize(
    "name", slice_of([n for n in PROGRAMS if n != "attention_in_one_kernel"], FEW)
)
def test_operands_leave_too(name, expected):
    wanted = expected(name)
    with managed.debug.torture(odds=2**32 - 1), Before():  # small storages take part
        actual = run(name, Placed(D1))
    check(wanted, [t.cpu() for t in actual])


def test_forward_mode():
    here = torch.randn(8)
    x = Placed(D1)(here)
    for function in (torch.sin, lambda t: t * t.tanh(), lambda t: t.view(2, 4) @ t.view(4, 2)):
        with forward_ad.dual_level():
            expected = forward_ad.unpack_dual(function(forward_ad.make_dual(here, here * 2)))
        with managed.debug.torture(), forward_ad.dual_level():
            actual = forward_ad.unpack_dual(function(forward_ad.make_dual(x * 1, x * 2)))
        check([t.cpu() for t in expected], [t.cpu() for t in actual])
