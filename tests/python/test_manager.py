"""DeviceManager: its arguments, send, find_device and cuda."""

import collections
import threading
import time
import types

import pytest
import torch
from support.devices import CAPACITY, D0, D1, D2, D3, DEVICE_TYPE, TOTAL, device_name
from support.pressure import at_rest
from torch import nn

import managed
from managed import DeviceManager, ManagedTensor, device_manager
from managed.errors import OutOfMemoryError, PinConflictError

MiB = 2**20


def sized(mib, device="cpu"):
    return torch.empty(mib * MiB, dtype=torch.uint8, device=device)


@pytest.fixture(autouse=True)
def nothing_waits_to_be_free():
    at_rest()


@pytest.fixture
def impatient():
    """Waits at most 50 ms."""
    return DeviceManager(retry_limit=5, wait_time=0.01)


# ---- arguments and properties


def test_defaults():
    manager = DeviceManager()
    assert manager.comm_interface is time
    assert manager.reserved == 0.1
    assert manager.retry_limit == 10
    assert manager.wait_time == 0.1
    assert manager.default_level == 20
    assert manager.cpu_device == torch.device("cpu")
    assert manager.cuda_devices == [torch.device(DEVICE_TYPE, i) for i in range(4)]
    assert manager.devices == [torch.device("cpu"), *manager.cuda_devices]
    assert repr(manager) == "DeviceManager(reserved=0.1, retry_limit=10, wait_time=0.1)"


def test_arguments_are_kept():
    clock = types.SimpleNamespace(sleep=lambda seconds: None)
    manager = DeviceManager(clock, [1, "cuda:3"], 0.25, 3, 0.5)
    assert manager.comm_interface is clock
    assert manager.cuda_devices == [torch.device(DEVICE_TYPE, 1), torch.device(DEVICE_TYPE, 3)]
    assert (manager.reserved, manager.retry_limit, manager.wait_time) == (0.25, 3, 0.5)


def test_properties_can_be_set():
    manager = DeviceManager()
    manager.reserved, manager.retry_limit, manager.wait_time = 0, 0, 0
    manager.default_level = "WARNING"
    manager.cuda_devices = [torch.device(DEVICE_TYPE, 2)]
    assert (manager.reserved, manager.retry_limit, manager.wait_time) == (0.0, 0, 0.0)
    assert manager.default_level == 30
    assert manager.cuda_devices == [torch.device(DEVICE_TYPE, 2)]
    manager.cuda_devices = None
    assert len(manager.cuda_devices) == 4


@pytest.mark.parametrize("name", ["cpu_device", "devices"])
def test_read_only_properties(name):
    with pytest.raises(AttributeError):
        setattr(DeviceManager(), name, [])


BAD = [
    ("reserved", 1.0, ValueError, "from 0 to below 1"),
    ("reserved", -0.1, ValueError, "from 0 to below 1"),
    ("reserved", float("nan"), ValueError, "from 0 to below 1"),
    ("reserved", "much", TypeError, "reserved is a number"),
    ("retry_limit", -1, ValueError, "0 or more"),
    ("retry_limit", 2**80, ValueError, "0 or more"),
    ("retry_limit", 1.5, TypeError, "retry_limit is an int"),
    ("retry_limit", True, TypeError, "retry_limit is an int"),
    ("wait_time", -1, ValueError, "0 or more"),
    ("wait_time", float("inf"), ValueError, "finite"),
    ("wait_time", None, TypeError, "wait_time is a number"),
    ("comm_interface", 3, ValueError, "has no sleep"),
    ("cuda_devices", [], ValueError, "is empty"),
    ("cuda_devices", ["cpu"], ValueError, "accelerators with their index"),
    ("cuda_devices", ["cuda"], ValueError, "accelerators with their index"),
    ("cuda_devices", [9], ValueError, "there is no device"),
    ("cuda_devices", ["gpu"], ValueError, "names no device"),
    ("cuda_devices", 3, TypeError, "list of devices"),
]


@pytest.mark.parametrize(("name", "value", "error", "text"), BAD)
def test_bad_values_change_nothing(name, value, error, text):
    with pytest.raises(error, match=text):
        DeviceManager(**{name: value})
    manager = DeviceManager()
    before = getattr(manager, name)
    with pytest.raises(error, match=text):
        setattr(manager, name, value)
    assert getattr(manager, name) == before


@pytest.mark.parametrize("level", ["LOUD", -1, 2**40, None, True, 1.5])
def test_bad_levels(level):
    manager = DeviceManager()
    with pytest.raises(ValueError, match="no logging level"):
        manager.default_level = level
    assert manager.default_level == 20


@pytest.mark.parametrize("name", [name for name, value, *_ in BAD if value is not None][::3])
def test_properties_cannot_be_deleted(name):
    with pytest.raises(AttributeError, match="cannot be deleted"):
        delattr(DeviceManager(), name)


def test_unknown_arguments():
    with pytest.raises(TypeError):
        DeviceManager(nothing_such=1)


def test_log(caplog):
    manager = DeviceManager()
    with caplog.at_level("DEBUG", "managed"):
        manager.log("100 % of it")
        manager.log("quietly", level="DEBUG")
        manager.default_level = 40
        manager.log(7)
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (20, "100 % of it"),
        (10, "quietly"),
        (40, "7"),
    ]


# ---- find_device


def test_disperse_finds_the_least_in_use():
    held = [sized(10 * (i + 1), device_name(i)) for i in (0, 1, 3)]
    assert device_manager.find_device(MiB, disperse=True) == torch.device(D2)
    del held


def test_packing_finds_the_fullest_that_fits():
    held = [sized(100, D1), sized(200, D2)]
    assert device_manager.find_device(20 * MiB) == torch.device(D2)
    assert device_manager.find_device(100 * MiB) == torch.device(D1)
    assert device_manager.find_device(200 * MiB) == torch.device(D0)
    del held


def test_what_fits_nowhere_is_for_the_host():
    assert device_manager.find_device(CAPACITY) == torch.device("cpu")
    assert device_manager.find_device(2**62, disperse=True) == torch.device("cpu")


def test_reserved_is_counted_once():
    limit = int(CAPACITY - 0.25 * TOTAL)
    manager = DeviceManager(reserved=0.25)
    assert manager.find_device(limit).type == DEVICE_TYPE
    assert manager.find_device(limit + 1) == torch.device("cpu")


def test_find_device_reserves_nothing_and_repeats():
    assert len({device_manager.find_device(200 * MiB, disperse=True) for _ in range(10)}) == 1
    assert managed.stats()["devices"][D0]["reserved"] == 0


def test_find_device_stays_within_cuda_devices():
    manager = DeviceManager(cuda_devices=[3])
    assert manager.find_device(1) == manager.find_device(1, disperse=True) == torch.device(D3)
    held = sized(220, D3)
    assert manager.find_device(20 * MiB) == torch.device("cpu")
    del held


def test_sizes_may_be_finite_floats():
    assert device_manager.find_device(1e6).type == DEVICE_TYPE


@pytest.mark.parametrize("size", [-1, -0.5, float("inf"), float("nan"), 2**63, 1e30])
def test_sizes_that_are_none(size):
    with pytest.raises(ValueError, match="space_estimate"):
        device_manager.find_device(size)


@pytest.mark.parametrize("size", ["1", None, [1]])
def test_sizes_of_the_wrong_kind(size):
    with pytest.raises(TypeError, match="space_estimate is a number of bytes"):
        device_manager.find_device(size)


# ---- send


def test_send_a_tensor():
    plain = torch.arange(5.0)
    sent = device_manager.send(plain, D3)
    assert sent.device == torch.device(D3)
    assert sent.__class__ is ManagedTensor
    assert plain.__class__ is torch.Tensor
    assert torch.equal(sent.cpu(), plain)
    assert device_manager.send(sent, 3) is sent
    assert device_manager.send(sent, "cpu").device.type == "cpu"


def test_send_without_a_device_goes_where_find_device_says():
    held = sized(50, D2)
    assert device_manager.send(torch.ones(4)).device == torch.device(D2)
    assert device_manager.send(torch.ones(4), "cuda").device == torch.device(D2)
    assert device_manager.send(sized(255)).device == torch.device("cpu")
    del held


def test_send_a_nest_gives_the_same_structure():
    Pair = collections.namedtuple("Pair", "x y")
    linear = nn.Linear(2, 2)
    nest = {"a": [torch.ones(2), (torch.zeros(3), 7)], "p": Pair(torch.ones(1), "s"), "m": linear}
    sent = device_manager.send(nest, D1)
    assert list(sent) == ["a", "p", "m"]
    assert isinstance(sent["a"][1], tuple)
    assert sent["a"][1][1] == 7
    assert isinstance(sent["p"], Pair)
    assert sent["p"].y == "s"
    assert sent["m"] is linear
    tensors = [sent["a"][0], sent["a"][1][0], sent["p"].x, linear.weight]
    assert {str(t.device) for t in tensors} == {D1}
    assert device_manager.send([], D1) == []


@pytest.mark.parametrize("thing", [3, "text", None, object()])
def test_send_something_else(thing):
    if thing is None:
        with pytest.raises(TypeError, match="not NoneType"):
            device_manager.send(thing)
        return
    with pytest.raises(TypeError, match="a tensor, a module or a nest of them"):
        device_manager.send(thing, D0)


@pytest.mark.parametrize("device", [device_name(7), "gpu", -1])
def test_send_to_a_device_that_does_not_exist(device):
    with pytest.raises(ValueError, match="device"):
        device_manager.send(torch.ones(1), device)


@pytest.mark.parametrize("size", [-2, float("inf"), float("nan")])
def test_send_with_a_bad_estimate(size):
    with pytest.raises(ValueError, match="space_estimate"):
        device_manager.send(torch.ones(1), D0, size)


def test_sizes_that_add_up_to_more_than_a_number_holds():
    """Of tensors and modules alike, before anything is sent."""
    half, before = 2**62, managed.HEURISTIC_FUNCTION
    tensors, modules = (
        [sized(1), sized(1)],
        [nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)],
    )
    try:
        managed.HEURISTIC_FUNCTION = lambda size: half
        for nest in (tensors, modules, [tensors[0], modules[0]]):
            with pytest.raises((OverflowError, ValueError)):
                device_manager.send(nest, D0)
    finally:
        managed.HEURISTIC_FUNCTION = before
    assert {p.device.type for m in modules for p in m.parameters()} == {"cpu"}


def test_send_a_pinned_tensor():
    pinned = torch.ones(2).as_subclass(ManagedTensor).cuda(0).pin()
    with pytest.raises(PinConflictError, match=r"unpin\(\)"):
        device_manager.send([torch.ones(1), pinned], D1)
    assert device_manager.send(pinned, D0) is pinned
    pinned.unpin()


# ---- waiting


def test_what_could_never_fit_is_refused_at_once():
    managed.stats(reset=True)
    with pytest.raises(OutOfMemoryError, match=rf"{D1} out of memory\..*so many never fit"):
        device_manager.send(sized(300), D1)
    assert managed.stats()["waited"] == 0


def test_no_room_in_time_leaves_everything_as_it_was(impatient):
    held = sized(200, D1)
    before = managed.stats()["devices"][D1]
    with pytest.raises(torch.OutOfMemoryError) as caught:
        impatient.send([torch.ones(3), sized(100)], D1)
    assert " out of memory." in str(caught.value)
    assert f"56.00 MiB of {TOTAL // MiB}.00 MiB are free" in str(caught.value)
    assert "within 0.05 s" in str(caught.value)
    after = managed.stats()["devices"][D1]
    assert after["reserved"] == 0
    assert after["used"] == before["used"]
    del held


def test_every_reservation_is_released_and_every_wait_counted(impatient):
    managed.stats(reset=True)
    held = sized(200, D1)
    with pytest.raises(OutOfMemoryError):
        impatient.send(sized(100), D1)
    impatient.send(sized(1), D1)
    impatient.find_device(MiB)
    counted = managed.stats()
    assert counted["waited"] == 1
    assert counted["waited_ns"] >= 50_000_000
    assert counted["reserve"] == counted["release"] == 2
    assert counted["reserve_bytes"] == counted["release_bytes"]
    del held


def test_the_estimate_decides_when_it_is_given(impatient):
    held = sized(200, D1)
    with pytest.raises(OutOfMemoryError):
        impatient.send(torch.ones(1), D1, 100 * MiB)
    assert impatient.send(torch.ones(1), D1, 0).device.index == 1
    del held


def test_a_wait_ends_the_moment_room_appears():
    """Not when the time to wait, here a minute, is over."""
    held = [sized(200, D1)]
    patient = DeviceManager(retry_limit=1, wait_time=60.0)
    timer = threading.Timer(0.1, held.clear)
    timer.start()
    start = time.monotonic()
    sent = patient.send(sized(100), D1)
    waited = time.monotonic() - start
    timer.join()
    assert sent.device.index == 1
    assert 0.08 < waited < 30.0


def test_a_wait_lets_other_python_threads_run():
    """Room appears when another thread has worked."""
    held, ticks = [sized(200, D1)], []

    def work():
        ticks.extend(i for i in range(100_000))
        held.clear()

    patient = DeviceManager(retry_limit=1, wait_time=60.0)
    worker = threading.Timer(0.02, work)
    worker.start()
    assert patient.send(sized(100), D1).device.index == 1
    worker.join()
    assert len(ticks) == 100_000


def test_comm_interface_sleeps_when_it_is_the_users():
    naps, held = [], [sized(200, D1)]

    def sleep(seconds):
        naps.append(seconds)
        if len(naps) == 3:
            held.clear()

    manager = DeviceManager(types.SimpleNamespace(sleep=sleep), retry_limit=7, wait_time=0.125)
    assert manager.send(sized(100), D1).device.index == 1
    assert naps == [0.125] * 3


def test_comm_interface_sleeps_retry_limit_times():
    naps, held = [], sized(200, D1)
    manager = DeviceManager(types.SimpleNamespace(sleep=naps.append), retry_limit=4, wait_time=0.5)
    with pytest.raises(OutOfMemoryError):
        manager.send(sized(100), D1)
    assert naps == [0.5] * 4
    del held


def test_what_sleep_raises_surfaces_and_gives_the_place_back():
    def sleep(seconds):
        raise InterruptedError("enough")

    held = sized(200, D1)
    manager = DeviceManager(types.SimpleNamespace(sleep=sleep))
    with pytest.raises(InterruptedError, match="enough"):
        manager.send(sized(100), D1)
    del held
    assert device_manager.send(sized(200), D1).device.index == 1


def test_threads_never_take_the_same_bytes():
    """Eight threads bring 100 MiB each to four devices of 256 MiB: two fit on each."""
    found, barrier = [], threading.Barrier(8)
    patient = DeviceManager(retry_limit=600)  # a slow machine copies for more than the usual second

    def bring():
        barrier.wait()
        found.append(patient.cuda(sized(100), disperse=True))

    threads = [threading.Thread(target=bring) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert collections.Counter(t.device.index for t in found) == dict.fromkeys(range(4), 2)


# ---- cuda


def test_cuda_places_each_tensor_of_a_nest():
    placed = device_manager.cuda([torch.ones(1000) for _ in range(4)], disperse=True)
    assert sorted(t.device.index for t in placed) == [0, 1, 2, 3]
    assert all(t.__class__ is ManagedTensor for t in placed)
    with pytest.raises(TypeError, match="a tensor, a module or a nest of them"):
        device_manager.cuda(3)


def test_cuda_leaves_on_the_host_what_fits_nowhere(caplog):
    with caplog.at_level("INFO", "managed"):
        stayed = device_manager.cuda(sized(255))
    assert stayed.device.type == "cpu"
    assert "fit on no accelerator" in caplog.text


def test_another_default_manager():
    old, mine = managed.device_manager, DeviceManager(cuda_devices=[2])
    managed.device_manager = mine
    try:
        assert managed.device_manager is mine
        assert torch.ones(2).as_subclass(ManagedTensor).cuda().device.index == 2
        assert managed.ManagedModule.from_module(nn.Linear(2, 2)).cuda().weight.device.index == 2
        with pytest.raises(TypeError, match="device_manager is a DeviceManager"):
            managed.device_manager = 3
        assert managed.device_manager is mine
    finally:
        managed.device_manager = old
