"""Bytes that leave behind their last use, and first bytes that nobody waits for."""

import pytest
import torch
from support.apart import rand
from support.paths import PROGRAMS
from support.virtual_clock import FROM as DEVICE
from support.virtual_clock import ran

import managed
from managed import _C, ManagedTensor
from managed._simulated.presets import DEFAULT

pytestmark = pytest.mark.only_simulated("on the virtual clock")
MIB = 2**20
WORK = 200  # operators that make the device busy for longer than two of the copies
LARGE = 16 * MIB
COPY = (DEFAULT.host_latency_ns + LARGE / DEFAULT.host_bytes_per_ns) * 1e-9  # s, alone on its way

PROGRAM = """
    import torch, managed
    from managed import ManagedTensor, _C
    DEVICE, MIB, WORK, COPY = "sim:0", 2**20, {work}, {copy}
    managed.simulate(1, 66 * MIB)
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)  # a child of fork() has one

    def on(mib):
        return torch.rand(mib * MIB // 4).as_subclass(ManagedTensor).to(DEVICE)

    def work():
        for _ in range(WORK):
            scratch.sin_()

    def ran(begin):
        torch.sim.synchronize(DEVICE)
        return torch.sim.virtual_time("cpu") - begin

    def begin():
        torch.sim.synchronize(DEVICE)
        return torch.sim.virtual_time("cpu")

    scratch, small = on(4), on(1)
    start = begin()
    work()
    alone = ran(start)
    assert alone > 2.5 * COPY, (alone, COPY)
    idle = [on(16) for _ in range(3)]
    expected = [t.cpu() for t in idle]
    scratch.sin_(), small.sin_()
    new = on(16)  # the first that has to leave: from now on the device makes points
    assert _C.is_spilled(idle[0])
    del new
    for t, e in zip(idle, expected):
        t.neg_()  # so that to leave again takes a copy
        e.neg_()
    small.sin_()
"""


@pytest.fixture
def program(run_python):
    def run(code):
        text = PROGRAM.format(work=WORK, copy=COPY)
        return run_python(text + code)

    return run


def test_bytes_leave_beside_the_work_that_was_issued_since_their_last_use(program):
    program("""
    start = begin()
    work()
    new = scratch.repeat(4)
    assert _C.is_spilled(idle[0])
    took = ran(start)
    assert took < alone + COPY / 2, (took, alone, COPY)
    for t, e in zip(idle, expected):
        assert torch.equal(t.cpu(), e)
    """)


def test_they_leave_behind_their_last_use(program):
    program("""
    start = begin()
    work()
    for t in idle:
        t.add_(1)
    new = scratch.repeat(4)
    assert _C.is_spilled(idle[0])
    took = ran(start)
    assert took > alone + COPY, (took, alone, COPY)
    for t, e in zip(idle, expected):
        assert torch.equal(t.cpu(), e + 1)
    """)


def test_what_was_lent_leaves_behind_all_that_was_issued(program):
    """Operators of plain tensors over it were not seen."""
    program("""
    idle[0].untyped_storage()
    idle[1].sum(), idle[2].sum()
    start = begin()
    work()
    new = scratch.repeat(4)
    assert _C.is_spilled(idle[0])
    took = ran(start)
    assert took > alone + COPY, (took, alone, COPY)
    """)


@pytest.mark.parametrize("first", ["work", "use"])
def test_they_leave_behind_their_last_use_on_each_stream(program, first):
    """A point lies behind the work of all streams; nothing else tells them apart."""
    program(
        f"    first = {first!r}"
        + """
    start = begin()
    with torch.Stream(DEVICE):
        if first == "work":
            work()
        for t in idle:
            t.sum()
    for _ in range(20):
        small.sin_()
    if first == "use":
        work()
    new = scratch.repeat(4)
    assert _C.is_spilled(idle[0])
    took = ran(start)
    assert (took > alone + COPY) == (first == "work"), (took, alone, COPY)
    for t, e in zip(idle, expected):
        assert torch.equal(t.cpu(), e)
    """
    )


def test_what_has_just_begun_to_arrive_leaves_behind_its_arrival(program):
    """It has not been used, so a point that was made before says nothing of its bytes."""
    program("""
    batch = torch.rand(4 * MIB).as_subclass(ManagedTensor)
    _C.spill_all()
    for t in (*idle, scratch, small):
        t.cpu()  # waits for what leaves
    start = begin()
    there = batch.to(DEVICE, non_blocking=True)
    for _ in range(20):
        small.sin_()
    assert _C.spill_all() >= 1
    assert _C.is_spilled(there)
    assert torch.sim.elapsed() - start > 2 * COPY
    assert torch.equal(there.cpu(), batch)
    """)


def test_a_child_of_fork_knows_no_points(program):
    program("""
    import os
    work()
    pid = os.fork()
    for _ in range(3):
        scratch.repeat(4)
        for t, e in zip(idle, expected):
            assert torch.equal(t.cpu(), e)
            t.mul_(1)
        work()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    """)


# ---- first bytes


@pytest.fixture
def begin():
    def at():
        torch.sim.synchronize(DEVICE)
        return torch.sim.virtual_time("cpu")

    with torch.no_grad():
        yield at


def test_work_that_does_not_use_a_batch_does_not_wait_for_it(begin):
    """The next batch is asked for before the step that uses the last one."""
    other, batch = rand(DEVICE, 1024), torch.rand(LARGE // 4)
    start = begin()
    there = batch.as_subclass(ManagedTensor).to(DEVICE, non_blocking=True)
    other.sin_()
    assert ran(DEVICE, start) < COPY / 10
    result = there + 1
    assert ran(DEVICE, start) > COPY
    assert torch.equal(result.cpu(), batch + 1)


@pytest.mark.parametrize("then", ["read", "written", "dead", "away", "home by name", "copied"])
def test_first_bytes_that_are_on_their_way(begin, then):
    batch = torch.rand(2 * MIB)
    expected = batch.clone()
    there = batch.as_subclass(ManagedTensor).to(DEVICE, non_blocking=True)
    if then == "written":
        there.add_(1)
        expected += 1
    elif then == "dead":
        del there
        used = torch.sim.memory_allocated(DEVICE)
        there = torch.rand(2 * MIB, device=DEVICE)
        assert torch.sim.memory_allocated(DEVICE) == used + 8 * MIB
        return
    elif then == "away":
        assert _C.spill_all() >= 1
        assert _C.is_spilled(there)
    elif then == "home by name":
        there = there.to("sim:2")
    elif then == "copied":
        there = there.clone()
    assert torch.equal(there.cpu(), expected)
    assert torch.equal(batch, expected) == (then != "written")


@pytest.mark.parametrize("pin", [False, True])
def test_small_bytes_and_pinned_ones_are_waited_for_at_once(begin, pin):
    """Small ones have no handle; torch's own copies bring pinned ones."""
    batch = torch.rand(MIB if pin else 8)
    batch = batch.pin_memory() if pin else batch
    start = begin()
    there = batch.as_subclass(ManagedTensor).to(DEVICE, non_blocking=True)
    bytes_ns = batch.nbytes / DEFAULT.host_bytes_per_ns
    assert ran(DEVICE, start) >= (DEFAULT.host_latency_ns + bytes_ns) * 1e-9
    assert torch.equal(there.cpu(), batch)


def test_what_is_sent_in_a_backward_pass_is_waited_for_at_once(begin):
    """A result gets no handle there, and only a handle remembers the copy for later."""
    batch, sent = torch.rand(LARGE // 4), []
    with torch.enable_grad():
        w = rand(DEVICE, 1024).requires_grad_()
        loss = w.sum()
    w.register_hook(
        lambda g: sent.append(batch.as_subclass(ManagedTensor).to(DEVICE, non_blocking=True))
    )
    start = begin()
    loss.backward()
    assert ran(DEVICE, start) > COPY
    assert torch.equal(sent[0].cpu(), batch)


# ---- whose stream a block is freed on, and what comes after two copies


def test_the_room_of_what_came_is_free_although_more_is_on_its_way(begin):
    """The stream of the copies brings the next batch; who takes the room does not wait for that."""
    first, second = torch.rand(MIB), torch.rand(LARGE // 4)  # 4 and 16 MiB
    other = rand(DEVICE, 1024)
    managed.budget(DEVICE, torch.sim.memory_allocated(DEVICE) + 20 * MIB + MIB // 4)
    try:
        start = begin()
        there = first.as_subclass(ManagedTensor).to(DEVICE, non_blocking=True)
        then = second.as_subclass(ManagedTensor).to(DEVICE, non_blocking=True)
        there.sum()
        del there
        new = torch.empty(MIB, device=DEVICE).zero_()
        took = ran(DEVICE, start)
        assert took < COPY / 2, (took, COPY)
        assert torch.equal(then.cpu(), second)
        assert torch.sim.virtual_time("cpu") - start > COPY
    finally:
        managed.budget(DEVICE, None)
    del new, other


def test_what_comes_takes_the_room_of_what_left_beside_the_work(program):
    """The block was the program's stream's, which is busy for longer."""
    program("""
    batch = torch.rand(4 * MIB).as_subclass(ManagedTensor)
    start = begin()
    work()
    issued = torch.sim.virtual_time("cpu") - start
    there = batch.to(DEVICE, non_blocking=True)
    assert _C.is_spilled(idle[0])
    side = torch.Stream(DEVICE)
    with side:
        there[:1024].sum()
        event = torch.Event(DEVICE)
        event.record(side)
    event.synchronize()
    took = torch.sim.virtual_time("cpu") - start
    assert 2 * COPY < took - issued < 2.4 * COPY, (took, issued, COPY)
    assert took < alone - COPY, (took, alone)
    assert torch.equal(there.cpu(), batch)
    """)


def test_who_writes_what_crosses_waits_for_the_copy_ahead_of_need_too(run_python):
    """It waits for another stream's work as well, and the copy to the other device does not."""
    run_python(PROGRAMS / "copy_ahead_of_need.py")
