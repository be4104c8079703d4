"""disperse=True spreads work: bytes in use for the speed of a device, with room as a limit."""

import gc
import json
from contextlib import ExitStack

import pytest
import torch
from support.devices import D0, D1, D2, D3, device_name
from support.paths import PROGRAMS
from torch import nn

import managed
from managed import ManagedModule, ManagedTensor, device_manager

MiB = 2**20

# The systems of `examples/pde_fault.py` for 37 patches: 23 MiB in all, over five unequal devices.
SYSTEMS = PROGRAMS / "dispersed_systems.py"
# fmt: off
SIZES = [
    1666040, 1445048, 1393368, 1244904, 958592, 887512, 813096, 801552, 742312, 730616, 720016,
    693136, 674120, 637968, 612840, 605224, 593272, 591552, 545672, 541112, 529480, 521672,
    508712, 501400, 475200, 475032, 466088, 465784, 437536, 421360, 418704, 402528, 394552,
    388616, 371328, 351736, 305320,
]
# fmt: on


def test_37_systems_over_unequal_devices(run_python):
    for name, held in json.loads(run_python(SYSTEMS, input=SIZES)).items():
        assert sum(held) == sum(SIZES), name
        assert max(held) <= 1.25 * sum(held) / 5, (name, held)
        assert max(held) - min(held) <= max(SIZES), (name, held)


# Objects of any size on devices of any size. In a process of its own, since what other tests left
# on a device would count for one side of the comparison and not for the other.
OBJECTS = PROGRAMS / "dispersed_objects.py"


def test_where_room_never_binds_nobody_has_more_than_one_object_more(run_python):
    for seed, (sizes, held) in json.loads(run_python(OBJECTS)).items():
        for n, bytes_ in enumerate(held, 1):
            assert sum(bytes_) == sum(sizes[:n]), seed
            assert max(bytes_) - min(bytes_) <= max(sizes), (seed, bytes_)


def held_on(kept):
    held = dict.fromkeys((device_name(i) for i in range(4)), 0)
    for t in kept:
        held[str(t.device)] += t.nbytes
    return held


def test_room_is_a_limit():
    with managed.budget(D1, "4MiB"), managed.budget(D3, 0):
        kept = [
            torch.empty(MiB, dtype=torch.uint8).as_subclass(ManagedTensor).cuda(disperse=True)
            for _ in range(22)
        ]
        held = {device: bytes_ // MiB for device, bytes_ in held_on(kept).items()}
    assert held[D3] == 0
    assert 2 <= held[D1] <= 4  # all that has room beside what is kept in reserve
    assert abs(held[D0] - held[D2]) <= 1
    assert sum(held.values()) == 22


def test_plans_count_what_is_in_use():
    busy = torch.empty(3 * MiB, dtype=torch.uint8).as_subclass(ManagedTensor).cuda(1)
    net = ManagedModule.from_module(nn.Sequential(*[nn.Linear(512, 512) for _ in range(9)]))
    for how in (True, "parameters"):
        net.cuda(disperse=how)
        held = held_on([*net.parameters(), busy])
        assert max(held.values()) - min(held.values()) <= 1.1 * MiB, (how, held)


# ---- a model that is larger than any device


WIDTH = 512  # 1 MiB a layer


def plain_net(layers=12):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(layers)])


def train(net, optimizer, x, steps=3):
    losses = []
    for _ in range(steps):
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().cpu())
    return [*losses, *(p.detach().cpu() for p in net.parameters())]


@pytest.fixture
def small():
    """Four devices on none of which 12 MiB have room; the third has most."""
    gc.collect()
    for i, mib in enumerate((8, 9, 10, 9)):
        managed.budget(device_name(i), mib * MiB)
    yield D2
    for i in range(4):
        managed.budget(device_name(i), None)


def places(net):
    return {str(t.device) for t in [*net.parameters(), *net.buffers()]}


@pytest.mark.parametrize("how", ["cuda", "to", "manager"])
def test_a_model_larger_than_any_device_trains_on_the_roomiest(small, caplog, how):
    x = torch.randn(16, WIDTH)
    plain = plain_net()
    expected = train(plain, torch.optim.AdamW(plain.parameters(), foreach=False), x)
    net = ManagedModule.from_module(plain_net())
    with caplog.at_level("INFO", "managed"):
        if how == "manager":
            device_manager.cuda(net)
        else:
            net.cuda() if how == "cuda" else net.to("cuda")
    assert places(net) == {small}
    assert f"fits on no accelerator now: it goes to {D2}, which spills" in caplog.text
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    got = train(net, optimizer, x.as_subclass(ManagedTensor))
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert places(net) == {small}


@pytest.mark.only_simulated("a budget of 4 MiB is two segments of CUDA's allocator")
@pytest.mark.parametrize("disperse", ["layers", "parameters"])
def test_a_model_larger_than_all_devices_together_trains_on_all_of_them(caplog, disperse):
    gc.collect()
    x = torch.randn(16, WIDTH)
    plain = plain_net(24)
    expected = train(plain, torch.optim.AdamW(plain.parameters(), foreach=False), x)
    net = ManagedModule.from_module(plain_net(24))
    mib = [4, 4, 7, 5]
    total = sum(p.nbytes for p in net.parameters())
    assert total > sum(mib) * MiB
    with ExitStack() as stack, caplog.at_level("INFO", "managed"):
        for i, budget in enumerate(mib):
            stack.enter_context(managed.budget(device_name(i), budget * MiB))
        net.cuda(disperse=disperse)
        assert "has no room on its devices now: they spill" in caplog.text
        held = [sum(p.nbytes for p in net.parameters() if p.device.index == i) for i in range(4)]
        largest = max(p.nbytes for p in net.parameters())
        for bytes_, budget in zip(held, mib, strict=True):
            assert abs(bytes_ - total * budget / sum(mib)) <= 2 * largest
        optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
        got = train(net, optimizer, x.as_subclass(ManagedTensor))
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_an_empty_model_larger_than_any_device(small):
    with torch.device("meta"):
        net = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(12)])
    net = ManagedModule.from_module(net).to_empty(device="cuda")
    assert places(net) == {small}


def test_tensors_and_find_device_keep_the_cpu(small):
    x = torch.empty(12 * MiB, dtype=torch.uint8).as_subclass(ManagedTensor)
    assert x.cuda().device.type == x.cuda(disperse=True).device.type == "cpu"
    assert device_manager.find_device(12 * MiB) == torch.device("cpu")


def test_one_tensor_that_fits_nowhere_leaves_all_where_it_was(small):
    net = ManagedModule.from_module(nn.Sequential(nn.Linear(8, 8), nn.Linear(2048, 2048)))
    with pytest.raises(torch.OutOfMemoryError):
        net.cuda()
    assert places(net) == {"cpu"}
    assert net[0](torch.ones(8)).device.type == "cpu"


@pytest.mark.only_simulated("its allocations and copies fail when they are asked to")
@pytest.mark.parametrize("kind", ["fail_allocation", "fail_copy"])
def test_all_of_a_larger_model_moves_or_nothing(small, kind):
    expected = [p.detach().clone() for p in plain_net().parameters()]
    for n in range(1, 400):
        net = ManagedModule.from_module(plain_net())
        error = None
        with managed.debug.torture(**{kind: n}) as torture:
            try:
                net.cuda()
            except RuntimeError as raised:
                error = raised
        assert places(net) == ({"cpu"} if error else {small}), (n, error)
        assert all(torch.equal(p.cpu(), e) for p, e in zip(net.parameters(), expected, strict=True))
        if not torture.failures:
            assert n > 12
            return
    pytest.fail("it never came to an end")
