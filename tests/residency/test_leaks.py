"""10,000 repetitions leave objects, bytes and memory where they began."""

import gc
import resource
import weakref

import pytest
import torch
from support.devices import D1, D2, D3, device_name
from support.pressure import at_rest
from torch import nn

import managed
from managed import _C, DeviceManager, ManagedModule, ManagedTensor, device_manager

REPETITIONS = 10_000


def wrap_run_drop():
    x = torch.ones(16).as_subclass(ManagedTensor)
    y = x.cuda(1) + torch.ones(16)
    y.pin().unpin()
    y.new_tensor([1.0])
    x.to(D2, torch.float16)


def train_a_step():
    w = torch.ones(4).as_subclass(ManagedTensor).detach().requires_grad_()
    (w.cuda(1) * torch.ones(4, device=D2)).sum().backward()


def failing_calls():
    x = torch.ones(2).as_subclass(ManagedTensor)
    for call in (
        lambda: x.cuda("gpu"),
        lambda: x.cuda(9),
        lambda: x.to("cuda:1", nothing_such=1),
        lambda: device_manager.find_device(-1),
        lambda: device_manager.send([x, 3], device_name(9)),
        lambda: DeviceManager(reserved=2),
        lambda: device_manager.send(torch.empty(1), D1, 2**40),
        lambda: torch.ones(1).pin,
    ):
        with pytest.raises((ValueError, TypeError, RuntimeError, AttributeError)):
            call()


def nests_and_reservations():
    device_manager.send({"a": [torch.ones(3)], "b": (torch.ones(2), "text")}, D1)
    device_manager.cuda([torch.ones(3)], disperse=True)
    device_manager.find_device(100)
    _C.reserve(device_manager, D3, 100)
    _C.rooms(device_manager)
    _C.plan_layers([1, 2, 3], None, [10, 10])
    _C.plan_stages([1, 2, 3], [1, 2, 3], [1, 1, 1], [1, 1], [10, 10], [2, 1], [1.0])
    _C.plan_spilled_stages([1, 2, 3], [1, 2, 3], [1, 1, 1], [1, 1], [1, 1], [2, 1], [1.0])


def knobs_and_reports():
    function = managed.HEURISTIC_FUNCTION
    managed.HEURISTIC_FUNCTION = lambda size: size + 1
    torch.ones(2).as_subclass(ManagedTensor).cuda()
    managed.HEURISTIC_FUNCTION = function
    managed.stats()
    managed.explain(torch.ones(1).as_subclass(ManagedTensor).cuda(2))


def modules():
    net = ManagedModule.from_module(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    net.cuda(1).pin().unpin().cpu()
    net.cuda(disperse=True)


CASES = [
    (wrap_run_drop, 1),
    (train_a_step, 2),
    (failing_calls, 20),
    (nests_and_reservations, 5),
    (knobs_and_reports, 20),
    (modules, 50),
]


def state():
    at_rest()
    devices = managed.stats()["devices"]
    return len(gc.get_objects()), {k: (d["used"], d["reserved"]) for k, d in devices.items()}


def resident():
    """Peak resident memory in KiB; it can only grow, so growth after warming up is a leak."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.not_sanitized("it keeps what was freed")
@pytest.mark.parametrize(("work", "part"), CASES, ids=[w.__name__ for w, _ in CASES])
def test_repetitions_leave_nothing(work, part):
    for _ in range(200):
        work()
    objects, devices = state()
    memory = resident()
    for _ in range(REPETITIONS // part):
        work()
    grown = resident() - memory  # before state(), which needs some megabytes
    after, devices_after = state()
    assert devices_after == devices
    assert abs(after - objects) < 50
    assert grown < 12 * 1024  # the audit of the suite keeps up to 9 MiB of what it has seen


def test_tensors_die_with_their_last_name():
    x = torch.ones(4).as_subclass(ManagedTensor).cuda(1)
    gone = weakref.ref(x)
    del x
    assert gone() is None


def test_the_made_class_dies_with_its_modules():
    class Local(nn.Module):
        pass

    gone = weakref.ref(type(ManagedModule.from_module(Local())))
    original = weakref.ref(Local)
    del Local
    gc.collect()
    assert gone() is None
    assert original() is None


def test_a_heuristic_that_is_replaced_dies():
    def function(size):
        return size

    before = managed.HEURISTIC_FUNCTION
    managed.HEURISTIC_FUNCTION = function
    gone = weakref.ref(function)
    del function
    managed.HEURISTIC_FUNCTION = before
    assert gone() is None
