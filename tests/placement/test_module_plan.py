"""How a module is spread: against a brute-force optimum, with ties, pins, budgets and threads."""

import itertools
import threading
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import D0, D1, D2, D3, DEVICE_TYPE, device_name
from torch import nn

import managed
from managed import _C, DeviceManager, ManagedModule, device_manager
from managed._modules import walk

MiB = 2**20


def best_plan(sizes, borders, rooms):
    """The least heaviest load, then the fewest border bytes, of all contiguous plans that fit.

    Layers keep their order and devices theirs; a device may stay empty.
    """
    plans = itertools.combinations_with_replacement(range(len(rooms)), len(sizes))
    loads = [(plan, loads_of(plan, sizes)) for plan in plans]
    fitting = [plan for plan, load in loads if all(load[d] <= rooms[d] for d in load)]
    return min((value_of(plan, sizes, borders) for plan in fitting), default=None)


def loads_of(plan, sizes):
    load = Counter()
    for device, size in zip(plan, sizes, strict=True):
        load[device] += size
    return load


def value_of(plan, sizes, borders):
    crossing = sum(b for b, (x, y) in zip(borders, itertools.pairwise(plan), strict=True) if x != y)
    return max(loads_of(plan, sizes).values()), crossing


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=1, max_size=7),
    st.lists(st.integers(1, 120), min_size=1, max_size=3),
)
def test_plans_are_the_best_there_are(layers, rooms):
    sizes, borders = [s for s, _ in layers], [b for _, b in layers][:-1]
    plan = _C.plan_layers(sizes, borders, rooms)
    best = best_plan(sizes, borders, rooms)
    if best is None:
        assert plan is None
        return
    assert plan == sorted(plan)
    assert value_of(plan, sizes, borders) == best
    assert all(size <= rooms[d] for d, size in loads_of(plan, sizes).items())


def test_plans_of_nothing():
    assert _C.plan_layers([], None, [1]) == []
    assert _C.plan_layers([1], None, []) is None
    assert _C.plan_layers([5], None, [4]) is None


def test_equal_layers_are_spread_to_within_one():
    for layers in range(1, 13):
        plan = _C.plan_layers([100] * layers, None, [10**6] * 4)
        counts = [plan.count(d) for d in range(4)]
        assert max(counts) - min(counts) <= 1
        assert plan == sorted(plan)


# ---- whole modules


def places(net):
    return [str(layer.weight.device) for layer in net]


def chain(layers, width=64):
    return ManagedModule.from_module(
        nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
    )


@pytest.mark.usefixtures("level_devices")
def test_equal_layers_of_a_module():
    net = chain(8)
    net.cuda(disperse=True)
    assert places(net) == [device_name(i // 2) for i in range(8)]
    assert all(m.bias.device == m.weight.device for m in net)
    x = torch.ones(2, 64)
    assert torch.equal(net(x).cpu(), net.cpu()(x))


def test_a_plan_repeats_and_fewer_layers_than_devices_work():
    for layers in (1, 2, 3):
        net = chain(layers)
        found = places(net.cuda(disperse=True))
        assert len(set(found)) == layers
        assert places(net.cuda(disperse=True)) == found
        assert places(net.cpu().cuda(disperse=True)) == found


def test_a_tied_tensor_counts_once_and_stays_with_its_first_user():
    net = chain(4)
    net[3].weight = net[0].weight
    net.cuda(disperse=True)
    assert net[3].weight is net[0].weight
    assert net[3].weight.device == net[0].bias.device
    held = Counter(t.device for t in {id(t): t for t in net.parameters()}.values())
    assert sum(held.values()) == 7


def test_own_tensors_of_inner_modules_are_layers_too():
    class Model(ManagedModule):
        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.ones(1, 64))
            self.body = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
            self.register_buffer("scale", torch.ones(64))

    net = Model().cuda(disperse=True)
    assert net.token.device == net.scale.device
    assert all(t.device.type == DEVICE_TYPE for t in [*net.parameters(), *net.buffers()])


def test_only_the_managers_devices_are_used():
    manager = DeviceManager(cuda_devices=[1, 3])
    net = manager.cuda(chain(4), disperse=True)
    assert places(net) == [D1, D1, D3, D3]


def test_a_budget_makes_a_device_take_less():
    with managed.budget(D0, "1MiB"), managed.budget(D2, 0):
        net = chain(6, width=512).cuda(disperse=True)  # 1 MiB and a little each
        assert set(places(net)) == {D1, D3}


def test_a_pinned_tensor_that_a_plan_would_move_stops_it():
    net = chain(4)
    net[0].weight.pin()
    with pytest.raises(managed.errors.PinConflictError, match=r"Linear\.weight is pinned to cpu"):
        net.cuda(disperse=True)
    assert places(net) == ["cpu"] * 4
    net[0].weight.unpin()


def test_no_reservation_is_left():
    chain(4).cuda(disperse=True)
    chain(2).cuda()
    assert all(d["reserved"] == 0 for d in managed.stats()["devices"].values())


@pytest.mark.parametrize("disperse", [False, True])
def test_room_is_held_while_a_module_moves(monkeypatch, disperse):
    net, held, carry = chain(4), [], walk.carry

    def looking(targets, reason):
        held.append(sum(d["reserved"] for d in managed.stats()["devices"].values()))
        carry(targets, reason)

    monkeypatch.setattr(walk, "carry", looking)
    net.cuda(disperse=disperse)
    assert held == [walk.room(walk.slots([net]))]
    assert all(place != "cpu" for place in places(net))


def test_threads_that_spread_modules_get_room_for_all():
    """Four threads bring 4 x 40 MiB each to four devices of 256 MiB: 640 of 921 usable MiB."""
    nets, barrier = [], threading.Barrier(4)

    def bring():
        net = ManagedModule.from_module(nn.Sequential())
        for _ in range(4):
            layer = nn.Module()
            layer.weight = nn.Parameter(torch.empty(40 * MiB, dtype=torch.uint8), False)
            net.append(layer)
        barrier.wait()
        nets.append(device_manager.cuda(net, disperse=True))

    threads = [threading.Thread(target=bring) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = Counter(str(layer.weight.device) for net in nets for layer in net)
    assert sum(found.values()) == 16
    assert "cpu" not in found
    assert max(found.values()) <= 5
