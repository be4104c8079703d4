"""Other allocators of a device: what they keep is asked for before a tensor leaves."""

import contextlib
import ctypes
import os
import threading
import time
import warnings

import pytest
import torch
from support.devices import CAPACITY, D0, D1, ON_CUDA, device_module
from support.keeper import (
    Keeper,
    closes_keepers,  # noqa: F401
    driver_free,
    raw_alloc,
    raw_free,
)
from support.paths import TESTS
from support.pressure import MiB, moved, nothing_left, on  # noqa: F401

import managed
from managed import holders

pytestmark = pytest.mark.not_under_torture("it counts what leaves")

BLOCK = 12 * MiB  # CUDA's allocator takes no more than this for it
ASLEEP = 30  # seconds, of a holder that does not answer
WAITED = 1.5  # seconds: a request waits for one once, for a second


@pytest.fixture
def keeper():
    """A library that keeps nearly 60 % of a device."""
    held = Keeper().keep(BLOCK * (CAPACITY * 6 // 10 // BLOCK), CAPACITY * 6 // 10 // BLOCK)
    yield held
    with contextlib.suppress(ValueError):
        holders.remove(held)
    held.close()


def idle(nbytes):
    """Managed tensors of so many bytes that nobody uses."""
    return [on(torch.full((BLOCK // 4,), float(i))) for i in range(nbytes // BLOCK)]


def plain(nbytes):
    return [torch.zeros(BLOCK // 4, device=D0) for _ in range(nbytes // BLOCK)]


def in_time(run):
    """Whether one of three runs takes no longer than it may; the machine may be busy."""

    def seconds():
        begin = time.monotonic()
        run()
        return time.monotonic() - begin

    return any(seconds() < WAITED for _ in range(3))


PART = CAPACITY * 3 // 10 // BLOCK * BLOCK


def shortage():
    """Tensors take nearly 30 % of the device, and then as much again."""
    there = idle(PART)
    with moved() as found:
        plain(PART)
    assert all(
        torch.equal(x.cpu(), torch.full_like(x, float(i)).cpu()) for i, x in enumerate(there)
    )
    return found


def test_what_a_holder_keeps_comes_before_tensors(keeper):
    holders.add(keeper, name="frames")
    cached, missing = keeper.cached, PART + PART + keeper.cached - CAPACITY
    assert shortage().bytes("spill") == 0
    assert missing <= cached - keeper.cached <= missing + BLOCK
    row = holders.report(D0)["frames"]
    assert row.cached == keeper.cached
    assert row.given == cached - keeper.cached
    assert row.asks == len(keeper.asked) > 0
    assert row.asked == sum(keeper.asked)


def test_without_a_holder_what_is_missing_leaves(keeper):
    found = shortage()
    assert found.bytes("spill") >= PART + PART + keeper.cached - CAPACITY
    assert keeper.asked == []


def test_no_holder_is_asked_while_there_is_room(keeper):
    holders.add(keeper)
    net = torch.nn.Linear(64, 64).to(D0)
    net = managed.ManagedModule.from_module(net)
    for _ in range(3):
        net(torch.randn(8, 64, device=D0)).sum().backward()
    assert (keeper.reports, keeper.asked) == (0, [])
    assert holders.report(D0)["Keeper"].asks == 0


def test_no_holder_is_asked_for_what_a_budget_forbids(keeper):
    """What other libraries free does not help where a budget is all that torch may have."""
    holders.add(keeper)
    there = idle(PART)
    with managed.budget(D0, PART + BLOCK), moved() as found:
        plain(PART)
    assert found.bytes("spill") > 0
    assert (keeper.reports, keeper.asked) == (0, [])
    del there


def test_a_holder_may_keep_some(keeper):
    kept = keeper.cached - 2 * BLOCK
    holders.add(keeper, keep=kept)
    assert shortage().bytes("spill") > 0
    assert 0 < sum(keeper.asked) <= 2 * BLOCK
    assert keeper.cached == kept


def test_one_that_rests_is_asked_before_a_request_fails():
    """It had nothing for a long time. Now it has what is missing, and nothing can leave."""
    held = Keeper()
    holders.add(held, name="frames")
    taken = [held.alloc(BLOCK) for _ in range(12)]
    for _ in range(3):
        shortage()
    for address in taken:
        held.free(address)
    reports = held.reports
    x = torch.zeros(12 * BLOCK // 4, device=D0)
    assert held.reports == reports + 1
    assert held.cached <= CAPACITY - 12 * BLOCK
    del x
    holders.remove(held)
    held.close()


def test_the_one_with_most_is_asked_first(keeper):
    small = Keeper().keep(BLOCK, 1)
    holders.add(small, name="small")
    holders.add(keeper, name="large")
    assert shortage().bytes("spill") == 0
    assert keeper.asked
    assert small.asked == []
    holders.remove(small)
    small.close()


def test_a_dead_holder_is_forgotten(keeper):
    holders.add(Keeper())  # nothing else refers to it
    assert "Keeper" not in holders.report(D0)
    holders.add(Keeper())
    shortage()
    assert "Keeper" not in managed.stats()["devices"][D0]["holders"]
    holders.add(keeper)
    assert list(holders.report(D0)) == ["torch", "Keeper", "others"]


def test_an_object_without_weak_references_stays():
    class Slots:
        __slots__ = ()

        def __gpu_memory_report__(self, device):
            return {"live": 0, "cached": 0}

        def __gpu_memory_reclaim__(self, device, nbytes):
            return 0

    held = Slots()
    holders.add(held)
    assert "Slots" in holders.report(D0)
    with pytest.raises(ValueError, match="is a holder already"):
        holders.add(held)
    holders.remove(held)
    with pytest.raises(ValueError, match="is no holder"):
        holders.remove(held)


# ---- holders that do not do what they should


def counts(found):
    return {k: v for k, v in found.items() if k != "links"}


class Raises(Keeper):
    def __gpu_memory_reclaim__(self, device, nbytes):
        raise RuntimeError("no")


class Lies(Keeper):
    def __gpu_memory_reclaim__(self, device, nbytes):
        return 2**40


class Sleeps(Keeper):
    def __init__(self):
        super().__init__()
        self.awake = threading.Event()

    def __gpu_memory_reclaim__(self, device, nbytes):
        self.awake.wait(ASLEEP)
        return 0


class SleepsInReports(Sleeps):
    def __gpu_memory_report__(self, device):
        self.awake.wait(ASLEEP)
        return {"live": 0, "cached": 2**40}


class ReportsNothing(Keeper):
    def __gpu_memory_report__(self, device):
        return {"live": 0, "cached": 0}


class UsesTorch(Keeper):
    """Needs memory itself, on the device that is full."""

    def __gpu_memory_reclaim__(self, device, nbytes):
        self.asked.append(nbytes)
        for _ in range(4):
            torch.ones(BLOCK // 4, device=device).sum().item()
        return 0


@pytest.mark.parametrize("kind", [Raises, Lies, Sleeps, SleepsInReports, ReportsNothing, UsesTorch])
def test_a_request_ends_as_without_such_a_holder(kind, keeper):
    wanted = shortage()

    def run():
        unwilling = kind()
        unwilling.kept, keeper.kept = keeper.kept, {}
        holders.add(unwilling)
        try:
            found = shortage()
        finally:
            if isinstance(unwilling, Sleeps):
                unwilling.awake.set()
            keeper.kept, unwilling.kept = unwilling.kept, {}
            holders.remove(unwilling)
        assert found["spill_bytes"] >= wanted["spill_bytes"]
        if kind is not UsesTorch:
            assert counts(found) == counts(wanted)

    assert in_time(run)


def test_what_a_holder_frees_counts_and_the_rest_leaves(keeper):
    class FreesLess(Keeper):
        def __gpu_memory_reclaim__(self, device, nbytes):
            super().__gpu_memory_reclaim__(device, nbytes // 2)
            return nbytes

    wanted, n = shortage(), len(keeper.kept)
    keeper.close()
    less = FreesLess().keep(BLOCK * n, 4 * n)
    holders.add(less)
    found, freed = shortage(), BLOCK * n - less.cached
    assert freed == holders.report(D0)["FreesLess"].given
    assert freed > 0
    assert wanted["spill_bytes"] > found["spill_bytes"] >= wanted["spill_bytes"] - freed > 0


def test_a_holder_dies_while_it_is_asked(keeper):
    class Dies(Keeper):
        def __gpu_memory_reclaim__(self, device, nbytes):
            only.clear()
            return 0

    wanted = shortage()
    only = [Dies()]
    only[0].kept, keeper.kept = keeper.kept, {}
    holders.add(only[0])
    assert counts(shortage()) == counts(wanted)
    assert not only
    assert "Dies" not in holders.report(D0)


def test_threads_that_need_room_at_once_both_get_it(keeper):
    """The second waits for the first one's call of the holder, and then calls it."""

    class Slow(Keeper):
        def __gpu_memory_reclaim__(self, device, nbytes):
            time.sleep(0.1)
            return super().__gpu_memory_reclaim__(device, nbytes)

    slow = Slow()
    slow.kept, keeper.kept = keeper.kept, {}
    slow.keep(8 * 11 * MiB, 8)
    holders.add(slow)
    got, start = [], threading.Barrier(2)

    def need():
        start.wait()
        got.append(torch.zeros(3 * BLOCK // 4, device=D0))

    threads = [threading.Thread(target=need) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(got) == 2
    assert len(slow.asked) >= 2
    del got[:]


def test_a_report_that_is_late_is_not_waited_for_again_at_once():
    class Late(Keeper):
        def __gpu_memory_report__(self, device):
            self.reports += 1
            time.sleep(0.2)
            raise RuntimeError("no")

    late = Late().keep(BLOCK, 1)
    holders.add(late)
    for _ in range(3):
        shortage()
    assert late.reports <= 5  # of 18 shortages
    holders.remove(late)
    late.close()


def test_a_report_that_the_program_asks_for_has_a_deadline():
    def run():
        locked = Keeper()
        holders.add(locked)
        with locked.lock:
            assert "Keeper" in holders.report(D0)
        holders.remove(locked)

    assert in_time(run)


def test_a_holder_whose_lock_the_thread_has_is_not_waited_for_long(keeper):
    wanted = shortage()

    def run():
        locked = Keeper()
        locked.kept, keeper.kept = keeper.kept, {}
        holders.add(locked)
        with locked.lock:
            found = shortage()
        holders.remove(locked)
        keeper.kept, locked.kept = locked.kept, {}
        assert counts(found) == counts(wanted)

    assert in_time(run)


@pytest.mark.parametrize("report", [None, {}, {"live": 1}, {"live": 0, "cached": -1}, "much"])
def test_a_report_that_is_none_warns_once_and_counts_as_empty(report):
    class Holder:
        asked = 0

        def __gpu_memory_report__(self, device):
            return report

        def __gpu_memory_reclaim__(self, device, nbytes):
            self.asked += 1
            return 0

    held = Holder()
    holders.add(held)
    with pytest.warns(UserWarning, match="the holder counts as empty"):
        assert holders.report(D0)["Holder"] == (0, 0, 0, 0, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        holders.report(D0)
    assert held.asked == 0
    holders.remove(held)


def test_what_is_no_holder_is_refused():
    class OnlyReports:
        def __gpu_memory_report__(self, device):
            return {}

    with pytest.raises(TypeError, match="it has no __gpu_memory_reclaim__"):
        holders.add(OnlyReports())
    with pytest.raises(TypeError, match="it has no __gpu_memory_report__"):
        holders.add(3)
    held, second = Keeper(), Keeper()
    holders.add(held, name="x")
    with pytest.raises(ValueError, match='there is a holder named "x"'):
        holders.add(second, name="x")
    with pytest.raises(ValueError, match="1 to 31 bytes"):
        holders.add(second, name="x" * 32)
    with pytest.raises(ValueError, match="1 to 31 bytes"):
        holders.add(second, name="")
    with pytest.raises(ValueError, match="is no size"):
        holders.add(second, keep="much")
    holders.remove(held)
    with pytest.raises(ValueError, match="there is no device"):
        holders.report("cuda:99" if ON_CUDA else "sim:99")


def test_there_is_room_for_32_holders():
    many = [Keeper() for _ in range(32)]
    for i, held in enumerate(many):
        holders.add(held, name=f"holder {i}")
    with pytest.raises(ValueError, match="there are 32 holders already"):
        holders.add(Keeper(), name="one more")
    assert len(holders.report(D0)) == 34
    for held in many:
        holders.remove(held)


# ---- structs of libraries in C

REPORT = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.POINTER(ctypes.c_int64),
)
RECLAIM = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64)
NAME = b"managed.memory_holder"


class Struct(ctypes.Structure):
    _fields_ = (
        ("abi", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("flags", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("report", REPORT),
        ("reclaim", RECLAIM),
    )


_new, _get = ctypes.pythonapi.PyCapsule_New, ctypes.pythonapi.PyCapsule_GetPointer
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_get.restype, _get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


@pytest.mark.parametrize("needs_gil", [0, 1])
def test_a_capsule_is_a_holder(keeper, needs_gil):
    def report(context, device, live, cached):
        live[0], cached[0] = keeper.__gpu_memory_report__(device.decode()).values()
        return 0

    def reclaim(context, device, nbytes):
        return keeper.__gpu_memory_reclaim__(device.decode(), nbytes)

    struct = Struct(
        1, ctypes.sizeof(Struct), b"in C", needs_gil, None, REPORT(report), RECLAIM(reclaim)
    )
    capsule = _new(ctypes.addressof(struct), NAME, None)
    holders.add(capsule)
    with pytest.raises(ValueError, match="is a holder already"):
        holders.add(capsule)
    assert shortage().bytes("spill") == 0
    row = holders.report(D0)["in C"]
    holders.remove(capsule)
    assert row.given >= row.asked == sum(keeper.asked) > 0


def test_a_capsule_without_what_it_needs_is_refused(keeper):
    functions = REPORT(lambda *_: -1), RECLAIM(lambda *_: -1)
    size = ctypes.sizeof(Struct)
    for struct in (
        Struct(1, size, None, 0, None, *functions),
        Struct(1, size, b"x", 0, None, REPORT(), functions[1]),
    ):
        with pytest.raises(ValueError, match="has no name, no report or no reclaim"):
            holders.add(_new(ctypes.addressof(struct), NAME, None))
    with pytest.raises(ValueError, match="managed's own capsule"):
        holders.add(holders.capsule())
    for name in ("torch", "torch's pools", "others"):
        with pytest.raises(ValueError, match="is a row of reports already"):
            holders.add(keeper, name=name)


def test_two_capsules_of_one_struct_are_one_holder():
    struct = Struct(
        1, ctypes.sizeof(Struct), b"in C", 0, None, REPORT(lambda *_: -1), RECLAIM(lambda *_: -1)
    )
    first, second = (_new(ctypes.addressof(struct), NAME, None) for _ in range(2))
    holders.add(first)
    with pytest.raises(ValueError, match="is a holder already"):
        holders.add(second, name="again")
    holders.remove(second)
    with pytest.raises(ValueError, match="is no holder"):
        holders.remove(first)


@pytest.mark.parametrize(("abi", "size"), [(2, ctypes.sizeof(Struct)), (1, 40)])
def test_a_capsule_of_another_header_is_refused(abi, size):
    struct = Struct(abi, size, b"old", 0, None, REPORT(lambda *_: -1), RECLAIM(lambda *_: -1))
    capsule = _new(ctypes.addressof(struct), NAME, None)
    with pytest.raises(ValueError, match=f"of abi {abi} and {size} bytes.* takes abi 1 and 48"):
        holders.add(capsule)


def test_a_library_in_c_asks_managed(keeper):
    there = idle(PART)
    ours = Struct.from_address(_get(holders.capsule(), NAME))
    assert (ours.abi, ours.size, ours.flags) == (1, ctypes.sizeof(Struct), 0)
    live, cached = ctypes.c_int64(), ctypes.c_int64()
    assert ours.report(None, D0.encode(), live, cached) == 0
    assert live.value >= PART
    before = driver_free()
    assert ours.reclaim(None, D0.encode(), 2 * BLOCK) == driver_free() - before >= 2 * BLOCK
    assert ours.reclaim(None, b"nothing:7", 1) == -1
    assert ours.report(None, b"nothing:7", live, cached) == -1
    assert all(x.sum().item() == i * x.numel() for i, x in enumerate(there))


# ---- one allocator for both


def trained(beside):
    """Losses and weights of a training on one device; beside(step) is called before each step."""
    torch.manual_seed(3)
    net = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(16)))
    net = managed.ManagedModule.from_module(net).to(D0)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, foreach=False)
    x, losses = torch.randn(16, 512), []
    for step in range(3):
        beside(step)
        loss = net(x.to(D0)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in net.parameters()]


def test_a_training_has_the_same_bits_beside_a_library_of_our_allocator():
    """The library needs so much between two steps that weights and their states must leave."""
    taken = []

    def need(step):
        while taken:
            device_module.caching_allocator_delete(taken.pop())
        with torch.get_device_module(D0).device(0):
            taken.extend(device_module.caching_allocator_alloc(BLOCK) for _ in range(17 + step))

    with moved() as found:
        losses, weights = trained(need)
    while taken:
        device_module.caching_allocator_delete(taken.pop())
    assert found.bytes("spill") > 0
    wanted = trained(lambda step: None)
    assert losses == wanted[0]
    assert all(torch.equal(a, b) for a, b in zip(weights, wanted[1], strict=True))


# ---- room for others


def test_bytes_are_given_back_and_come_back():
    there = idle(PART)
    before = driver_free()
    with moved() as found:
        gained = managed.give_back(D0, "24MiB")
    assert driver_free() - before == gained >= 24 * MiB
    assert gained == 24 * MiB or ON_CUDA
    assert found.bytes("spill") >= 24 * MiB
    assert all(x.sum().item() == i * x.numel() for i, x in enumerate(there))


def test_what_cannot_leave_is_not_given_back():
    there = idle(4 * BLOCK)
    for x in there:
        x.pin()
    device_module.empty_cache()
    assert managed.give_back(D0, None) == 0
    assert managed.give_back(D0, 0) == 0


def test_give_back_asks_no_holder(keeper):
    holders.add(keeper)
    there = idle(4 * BLOCK)
    assert managed.give_back(D0, "100%") >= 4 * BLOCK
    assert (keeper.reports, keeper.asked) == (0, [])
    del there


@pytest.mark.parametrize(
    ("device", "size", "error", "told"),
    [
        (D0, "much", ValueError, "is no size"),
        (D0, -1, ValueError, "is no size"),
        (D0, 2**50, ValueError, "is more than that"),
        (D0, 1.5, TypeError, "a size is an int or a string"),
        ("cpu", 1, ValueError, "one accelerator"),
        (D0[:-1] + "99", 1, ValueError, "there is no device"),
    ],
)
def test_give_back_has_the_errors_of_a_budget(device, size, error, told):
    with pytest.raises(error, match=told):
        managed.give_back(device, size)


def test_the_report_is_all_of_the_device(keeper):
    holders.add(keeper, name="frames")
    live = keeper.alloc(BLOCK)
    strange = raw_alloc(BLOCK)
    there = idle(2 * BLOCK)
    report = holders.report(D0)
    free, total = device_module.mem_get_info(0)
    assert sum(row.live + row.cached for row in report.values()) == total - free
    assert report["frames"].live == BLOCK
    assert report["frames"].cached == keeper.cached
    assert report["torch"].live >= 2 * BLOCK
    assert report["others"].live >= BLOCK
    text = repr(report).splitlines()
    assert text[0].split() == ["MiB", "of", D0, "live", "cached", "asked", "given"]
    assert [line.split()[0] for line in text[1:]] == ["torch", "frames", "others"]
    assert holders.report(D1)["frames"] == (0, 0, 0, 0, 0)
    keeper.free(live)
    raw_free(strange)
    del there


def test_an_error_names_holders_and_what_they_gave(keeper):
    holders.add(keeper, name="frames", keep=keeper.cached - BLOCK)
    one = on(torch.ones(1))
    with pytest.raises(torch.OutOfMemoryError) as caught:
        one.repeat(CAPACITY // 4 - 2**18)
    told = next(line for line in str(caught.value).splitlines() if "frames" in line)
    del caught  # its frames have the tensors
    assert "0 bytes live, 132 MiB cached; asked for " in told
    assert told.endswith("gave 12 MiB")


def test_stats_tell_of_holders(keeper):
    holders.add(keeper, name="frames")
    shortage()
    told = managed.stats()
    given = told["devices"][D0]["holders"]["frames"]
    assert given["cached"] == keeper.cached  # as reported, less what it gave then
    assert given == holders.report(D0)["frames"]._asdict()
    assert f"frames on {D0}" in repr(told)
    assert "frames" in told._repr_html_()


# ---- threads, processes

PATH = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])

ASKED = """
    import os, threading, time, torch, managed
    from support.keeper import Keeper
    from support.pressure import on
    torch.set_num_threads(1)  # OpenMP's threads do not outlive fork()
    managed.simulate(1, "64MiB")

    class Sleeps(Keeper):
        def __gpu_memory_reclaim__(self, device, nbytes):
            began.set()
            time.sleep(30)

    began = threading.Event()
    sleeper = Sleeps().keep(2**20, 1)
    managed.holders.add(sleeper)
    there = on(torch.ones(8 * 2**20), "sim:0")
    # Not an operator: torch's bindings end the process if a daemon thread comes back so late.
    ask = torch.sim.caching_allocator_alloc
    thread = threading.Thread(target=ask, args=(2**25, 0), daemon=True)
    thread.start()
    began.wait()
"""


@pytest.mark.skipif(ON_CUDA, reason="the program simulates devices")
def test_a_child_forks_while_a_holder_is_asked(run_python):
    out = run_python(
        ASKED
        + """
    child = os.fork()
    if not child:
        x = torch.ones(8 * 2**20, device="sim:0")  # the holder is asked anew: it sleeps
        del x
        print(there.sum().item(), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
    os._exit(0)
    """,
        PYTHONPATH=PATH,
    )
    assert out == "8388608.0\n"


@pytest.mark.skipif(ON_CUDA, reason="the program simulates devices")
def test_the_interpreter_ends_while_a_holder_is_asked(run_python):
    begin = time.monotonic()
    run_python(ASKED, PYTHONPATH=PATH)
    assert time.monotonic() - begin < 20
