"""Classes that say something about themselves: registries, metaclasses, `cuda` of their own."""

import copy
import pickle
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import pytest
import torch
from support.devices import D0, D1, D2, D3
from torch import nn
from torch.nn.utils import parametrize

import managed
from managed import ManagedModule, ManagedTensor

T = TypeVar("T")

pytestmark = pytest.mark.usefixtures("level_devices")


def devices(module):
    return {str(p.device) for p in module.parameters()}


def body(module):
    """Four layers that are worth a device each."""
    for i in range(4):
        setattr(module, f"layer{i}", nn.Linear(16, 16))


class Registered(nn.Module):
    models = {}  # noqa: RUF012

    def __init_subclass__(cls, name, **kwargs):
        super().__init_subclass__(**kwargs)
        Registered.models[name] = cls

    def __init__(self):
        super().__init__()
        body(self)


class Named(Registered, name="named"):
    pass


class Collecting(type):
    """Wants an argument of each class, and keeps it."""

    classes = []  # noqa: RUF012

    def __new__(cls, name, bases, namespace, *, label):
        return super().__new__(cls, name, bases, namespace)

    def __init__(cls, name, bases, namespace, *, label):
        super().__init__(name, bases, namespace)
        Collecting.classes.append(label)


class Collected(nn.Module, metaclass=Collecting, label="collected"):
    def __init__(self):
        super().__init__()
        body(self)


class Shape(nn.Module, ABC):
    def __init__(self):
        super().__init__()
        body(self)

    @abstractmethod
    def area(self): ...


class Square(Shape):
    def area(self):
        return 1


class Slotted(nn.Module):
    __slots__ = ("width",)

    def __init__(self):
        super().__init__()
        self.width = 3
        body(self)


class Boxed(nn.Module, Generic[T]):
    def __init__(self):
        super().__init__()
        body(self)


CLASSES = [Named, Collected, Square, Slotted, Boxed[int]]


@pytest.mark.parametrize("kind", CLASSES, ids=str)
def test_every_class_becomes_managed(kind):
    known = dict(Registered.models), list(Collecting.classes)
    plain = kind()
    own = type(plain)
    net = ManagedModule.from_module(plain)
    assert net is plain
    assert isinstance(net, own)
    assert isinstance(net, ManagedModule)
    assert type(net).__name__ == own.__name__
    assert type(type(net)) is type(own)
    assert net.layer0.weight.__class__ is ManagedTensor
    assert len(devices(net.cuda(disperse=True))) == 4
    assert (Registered.models, Collecting.classes) == known
    for duplicate in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert type(duplicate) is type(net)
        assert torch.equal(duplicate.layer3.weight.cpu(), net.layer3.weight.cpu())
    assert (Registered.models, Collecting.classes) == known


def test_a_registry_does_not_hear_of_parametrized_managed_modules():
    net = Named()
    parametrize.register_parametrization(net.layer0, "weight", nn.Identity())
    known = dict(Registered.models)
    ManagedModule.from_module(net)
    parametrize.register_parametrization(net.layer1, "weight", nn.Identity())
    assert Registered.models == known
    assert isinstance(net.layer1, ManagedModule)


def test_abstract_classes_still_tell_their_own_from_others():
    net = ManagedModule.from_module(Square())
    managed_class = type(net)
    assert isinstance(net, Shape)
    assert not isinstance(Square(), managed_class)
    assert isinstance(Square(), Square)
    assert not issubclass(Square, managed_class)

    class Stranger(nn.Module):
        pass

    Square.register(Stranger)
    assert issubclass(Stranger, Square)
    assert not issubclass(Stranger, managed_class)


# ---- cuda, cpu, to


class Noting(nn.Module):
    """Keeps its device, as a LightningModule does, and a tensor that is no parameter."""

    def __init__(self):
        super().__init__()
        body(self)
        self.device = torch.device("cpu")
        self.table = torch.ones(3).as_subclass(ManagedTensor)
        self.calls = []

    def to(self, *args, **kwargs):
        device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        self.note("to", device)
        self.dtype = dtype
        return super().to(*args, **kwargs)

    def cuda(self, device=None):
        self.note("cuda", device)
        return super().cuda(device)

    def cpu(self):
        self.note("cpu", torch.device("cpu"))
        return super().cpu()

    def note(self, call, device):
        self.calls.append(call)
        self.device = device or self.device
        self.table = self.table.to(self.device)


def where(net):
    homes = {net.device, net.layer0.weight.device, net.table.device}
    return str(homes.pop()) if len(homes) == 1 else homes


def test_a_class_with_moves_of_its_own_gets_ours_and_is_told():
    net = ManagedModule.from_module(Noting())
    assert net.cuda(disperse=True) is net
    assert len(devices(net)) == 4
    assert (where(net), net.calls) == (D0, ["cuda"])
    assert net.cuda(2) is net
    assert (where(net), devices(net)) == (D2, {D2})
    net.to(D1, torch.float64)
    assert (where(net), devices(net), net.dtype) == (D1, {D1}, torch.float64)
    net.cpu()
    assert (where(net), devices(net)) == ("cpu", {"cpu"})
    net.calls.clear()
    net.to(torch.float32)
    assert (where(net), net.dtype, net.calls) == ("cpu", torch.float32, ["to"])
    assert net.layer0.weight.dtype is torch.float32


def test_a_manager_tells_it_too():
    net = ManagedModule.from_module(Noting())
    managed.device_manager.cuda(net, disperse=True)
    assert (where(net), len(devices(net))) == (D0, 4)
    managed.device_manager.send(net, D3)
    assert (where(net), devices(net)) == (D3, {D3})
    managed.device_manager.send(net, "cpu")
    assert (where(net), net.calls[-1]) == ("cpu", "cpu")


class Around(nn.Module):
    """Sends on what it is asked, and says nothing of a device."""

    def __init__(self):
        super().__init__()
        self.inner = Noting()
        self.asked = 0

    def to(self, device):
        self.inner.to(device)
        self.device = device
        return self

    def cuda(self):
        self.asked += 1
        self.inner.cuda(0)
        return self


def test_what_it_asks_of_modules_moves_nothing():
    net = ManagedModule.from_module(Around())
    net.cuda(disperse=True)
    assert (len(devices(net)), net.asked) == (4, 1)
    net.to(D3)
    assert (devices(net), net.device) == ({D3}, torch.device(D3))


class Direct(Noting):
    """Names torch's method, as classes do whose bases are in no order for super()."""

    def cuda(self, device=None):
        self.note("cuda", device)
        return nn.Module.cuda(self, device)


def test_what_it_asks_of_torch_moves_nothing():
    net = ManagedModule.from_module(Direct())
    net.cuda(disperse=True)
    assert len(devices(net)) == 4
    assert net.calls == ["cuda"]


class Stubborn(Noting):
    def cuda(self, device=None):
        raise RuntimeError("this model stays")


def test_an_error_of_its_own_comes_out_and_ends_the_telling():
    net, other = ManagedModule.from_module(Stubborn()), ManagedModule.from_module(Noting())
    with pytest.raises(RuntimeError, match="this model stays"):
        net.cuda(1)
    assert devices(other.cuda(1)) == {D1}


def test_a_class_that_inherits_both_moves_as_its_order_says():
    class Net(ManagedModule, Noting):
        pass

    net = Net()
    net.cuda(disperse=True)
    assert (len(devices(net)), net.calls) == (4, [])


def test_a_class_above_ours_keeps_its_say():
    class Net(ManagedModule):
        calls = 0

        def __init__(self):
            super().__init__()
            body(self)

        def cuda(self, *args, **kwargs):
            self.calls += 1
            return super().cuda(*args, **kwargs)

    net = Net().cuda(disperse=True)
    assert (net.calls, len(devices(net))) == (1, 4)
