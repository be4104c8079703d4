"""Copies that nobody waits for, on virtual GPUs: what comes after them, wait by wait.

Programs as in test_virtual_runtime.py: kernels do nothing, copies are as late as they may be and
real, and the checker tells of two accesses without an order. What leaves and comes back by a plan
does so in programs that repeat a step of copies until it is learned.
"""

import pytest
from support.virtual_gpu import found_libraries, needs_virtual_gpu, runs_program  # noqa: F401

pytestmark = needs_virtual_gpu


@pytest.mark.parametrize("then", ["written", "dead", "dropped", "on the host", "on a peer"])
def test_a_copy_ahead_of_need_reads_its_block_until_it_ends(run, then):
    """A spare is given up for want of room on the host (but for "dropped") while its copy may still
    read the block. Then somebody else has the block, or writes it."""
    run(
        f"""
        then = {then!r}
        tensors, operators = repeated()
        until_spare(operators)
        managed.LEARN_STEPS = False
        home = [t for t in tensors if not C.is_spilled(t)]
        if then != "dropped":
            others = give_up_spares()  # others' copies come after those that were given up
        torch.empty(1, device="cuda:2")  # which could take no guest before
        late = torch.full((2 * MIB,), 5, dtype=torch.int32).pin_memory()
        if then == "written":
            for t in home:
                t.copy_(late, non_blocking=True)
        elif then == "dead":
            tensors.clear()
            home.clear()
            operators.close()
        elif then == "on a peer":
            pass  # for the first of `new`
        else:
            C.spill_all()  # to the host
        if then != "written":
            new = [torch.empty(2 * MIB, dtype=torch.int32, device=CUDA) for _ in range(4)]
            for t in new:
                t.copy_(late, non_blocking=True)
        if then == "on a peer":
            assert C.residency("cuda:2")["guests"] == 32 * MIB
        report = races()
        assert not report, report
        """,
        devices=3,
        VIRTUAL_GPU_LINKS="0-2",
    )


def test_what_was_just_made_leaves_behind_what_made_it(run):
    """The device is short of room: there are points, and all lie before it."""
    run("""
        x, y, late, work, leave = ahead()
        expected = y.cpu()
        z = y.clone()
        C.spill_all()
        assert C.is_spilled(z)
        report = races()
        assert not report, report
        assert same(z, expected)
    """)


def test_what_comes_leaves_again_behind_the_copy_that_brings_it(run):
    """Unused, and the host has no copy any more: no point that was noted lies behind its coming."""
    run(
        """
        tensors, operators = repeated()
        next(operators)  # the next operand comes
        others = give_up_spares()
        before = managed.stats()["drop"]
        assert C.spill_all() >= 3 and managed.stats()["drop"] == before, "all is copied"
        report = races()
        assert not report, report
        """,
        devices=2,
    )


@pytest.mark.parametrize("home_on", ["it", "another"])
def test_a_foreign_stream_comes_after_what_brings_its_operands(run, home_on):
    """Copies do not know of streams that are not torch's, so these wait when they are used."""
    run(f"""
        x = made(8)
        expected = x.cpu()
        here, there = (torch.zeros_like(expected).pin_memory() for _ in range(2))
        foreign = stream_of_another_library()
        with torch.cuda.stream(foreign):
            x.add_(0)
        foreign.synchronize()
        assert C.spill_all() == 1
        if {home_on!r} == "another":
            there.copy_(x, non_blocking=True)
        with torch.cuda.stream(foreign):
            here.copy_(x, non_blocking=True)
        foreign.synchronize()
        assert torch.equal(here, expected) and not races()
    """)


LOOKS = pytest.mark.parametrize("looks", [False, True])  # then torch has the block at once


@LOOKS
def test_memory_that_a_foreign_stream_had_comes_back_to_it_after_the_copy(run, looks):
    """The block came home on that stream, so its memory is that stream's when it has left."""
    run(f"""
        foreign, x, expected = left_from_a_foreign_stream()
        if {looks}:
            torch.cuda.memory_allocated()
        late = torch.full_like(expected, 5).pin_memory()
        with torch.cuda.stream(foreign):
            new = [torch.empty(2 * MIB, dtype=torch.int32, device=CUDA) for _ in range(3)]
            for t in new:
                t.copy_(late, non_blocking=True)
        torch.cuda.synchronize()
        assert same(x, expected) and not races()
    """)


@LOOKS
@pytest.mark.parametrize("then", ["away", "dead"])
@pytest.mark.parametrize("stream", ["torch.cuda.Stream()", "stream_of_another_library()"])
def test_memory_comes_back_to_a_stream_that_no_managed_operator_used(run, stream, then, looks):
    """Plain operators had it there, so the allocator gives it to that stream again."""
    run(f"""
        made(1)  # from now on allocations are seen
        n = 2 * MIB
        main, side = torch.cuda.current_stream(), {stream}
        module = torch.nn.Module()
        with torch.cuda.stream(side):
            module.w = torch.nn.Parameter(torch.empty(n, device=CUDA))
        main.wait_stream(side)
        module = managed.ManagedModule.from_module(module)
        expected = torch.arange(n, dtype=torch.float32).pin_memory()
        host, late = torch.zeros(n).pin_memory(), torch.full((n,), 5.0).pin_memory()
        with torch.no_grad():
            module.w.copy_(expected, non_blocking=True)
        side.wait_stream(main)
        if {then!r} == "away":
            assert C.spill_all() == 1
        else:
            host.copy_(module.w.detach(), non_blocking=True)
            del module.w
        if {looks}:
            torch.cuda.memory_allocated()
        with torch.cuda.stream(side):
            for t in [torch.empty(n, device=CUDA) for _ in range(3)]:
                t.copy_(late, non_blocking=True)
        torch.cuda.synchronize()
        found = module.w.detach().cpu() if {then!r} == "away" else host
        assert torch.equal(found, expected) and not races()
    """)


@LOOKS
@pytest.mark.parametrize("current", [True, False])
def test_memory_without_a_tensor_comes_after_the_copy_that_had_it(run, current, looks):
    """Other libraries take it from torch's allocator for a stream that they name."""
    run(f"""
        import contextlib
        foreign, x, expected = left_from_a_foreign_stream()
        if {looks}:
            torch.cuda.memory_allocated()
        late = torch.full_like(expected, 5).pin_memory()
        with torch.cuda.stream(foreign) if {current} else contextlib.nullcontext():
            for _ in range(3):
                p = torch.cuda.caching_allocator_alloc(8 * MIB, stream=foreign)
                copied = gpu.cudaMemcpyAsync(
                    *map(ctypes.c_void_p, (p, late.data_ptr())),
                    ctypes.c_size_t(8 * MIB), 1, ctypes.c_void_p(foreign.cuda_stream),
                )
                assert copied == 0
        torch.cuda.synchronize()
        assert same(x, expected) and not races()
    """)


def test_a_stream_that_is_new_comes_after_what_has_begun(run):
    """Its program had no reason to wait: the bytes were complete before they left."""
    run("""
        x = made(8)
        expected = x.cpu()
        here, there = (torch.zeros_like(expected).pin_memory() for _ in range(2))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        assert C.spill_all() == 1
        here.copy_(x, non_blocking=True)
        with torch.cuda.stream(side):
            there.copy_(x, non_blocking=True)
        side.synchronize()
        assert torch.equal(there, expected) and not races()
    """)


def test_a_block_that_is_dropped_waits_for_the_streams_that_read_it(run):
    """Nothing is copied: the host's copy is good."""
    run("""
        x = made(8)
        expected = x.cpu()
        C.spill_all()
        same(x, expected)
        host = torch.zeros_like(expected).pin_memory()
        late = torch.full_like(expected, 5).pin_memory()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            host.copy_(x, non_blocking=True)
        calls = Calls()
        assert C.spill_all() == 1 and calls["MemcpyAsync"] == 0
        others = [torch.empty(2 * MIB, dtype=torch.int32, device=CUDA) for _ in range(3)]
        for y in others:
            y.copy_(late, non_blocking=True)
        torch.cuda.synchronize()
        assert torch.equal(host, expected) and not races()
    """)


def test_what_is_away_is_saved_when_its_copy_has_ended(run):
    run("""
        import io
        x = made(8)
        expected = x.cpu()
        file = io.BytesIO()
        assert C.spill_all() == 1
        torch.save(x, file)
        assert C.is_spilled(x)
        file.seek(0)
        assert torch.equal(torch.load(file, weights_only=False).cpu(), expected) and not races()
    """)


def test_what_is_away_is_deep_copied_before_the_copy_is_used(run):
    """Straight from where it is, into memory that no stream was told to wait for."""
    run("""
        import copy
        x = made(8)
        expected = x.cpu()
        there = torch.zeros_like(expected).pin_memory()
        assert C.spill_all() == 1
        found = copy.deepcopy(x)
        assert C.is_spilled(x) and not C.is_spilled(found)
        there.copy_(found, non_blocking=True)
        torch.cuda.synchronize()
        assert torch.equal(there, expected) and not races()
    """)


@pytest.mark.parametrize("then", ["saved", "dead", "home", "sent on"])
def test_a_guest_is_used_when_its_copy_has_ended(run, then):
    run(
        f"""
        import io
        then = {then!r}
        torch.empty(1, device="cuda:1")
        managed.budget(CUDA, 22 * MIB)
        x, y = made(8), made(8)
        expected = x.cpu()
        y.cpu()
        z = empty(8)
        assert C.is_spilled(x) and C.residency("cuda:1")["guests"] >= 8 * MIB
        late = torch.full_like(expected, 5).pin_memory()
        if then == "saved":
            file = io.BytesIO()
            torch.save(x, file)
            file.seek(0)
            found = torch.load(file, weights_only=False).cpu()
        elif then == "sent on":
            managed.budget("cuda:1", 2 * MIB)
            assert C.residency("cuda:1")["guests"] == 0
            managed.budget("cuda:1", None)
        elif then == "dead":
            del x
        if then in ("home", "sent on"):
            found = torch.empty_like(expected).pin_memory()
            found.copy_(x, non_blocking=True)
        for _ in range(2):
            torch.empty(2 * MIB, dtype=torch.int32, device="cuda:1").copy_(late, non_blocking=True)
        torch.cuda.synchronize()
        assert then == "dead" or torch.equal(found, expected)
        report = races()
        assert not report, report
        """,
        devices=2,
        VIRTUAL_GPU_LINKS="all",
    )


def test_a_guest_dies_while_it_is_brought(run):
    """As by another thread. Who moves it is its last owner, and gives both blocks back."""
    run(
        """
        torch.empty(1, device="cuda:1")
        managed.budget(CUDA, 22 * MIB)
        tensors = [made(8)]
        beside = torch.empty(8 * MIB, dtype=torch.uint8, device=CUDA)
        late = torch.full((2 * MIB,), 5, dtype=torch.int32).pin_memory()
        dies = Before("cudaMemcpyAsync", 1, tensors.clear)
        y = empty(8)
        assert dies.done and managed.stats()["spill"] == 1
        assert C.residency("cuda:1")["guests"] == 0
        for _ in range(2):
            torch.empty(2 * MIB, dtype=torch.int32, device="cuda:1").copy_(late, non_blocking=True)
        report = races()
        assert not report, report
        """,
        devices=2,
        VIRTUAL_GPU_LINKS="all",
    )


@pytest.mark.parametrize("when", ["before a copy", "behind an operator"])
def test_tensors_die_while_a_plan_moves_them(run, when):
    """On their way out and home, while copies of them are made ahead of need, or when what brings
    them has begun. `away` keeps the host's memory in use, or it would be given back, and that waits
    for what reads it."""
    run(f"""
        late = torch.full((2 * MIB,), 5, dtype=torch.int32).pin_memory()
        away = made(8)
        assert C.spill_all() == 1
        before_a_copy = {when == "before a copy"}
        moved = []
        for n in [1, 2, 3, *(copies_beside_a_spare() if before_a_copy else [])]:
            tensors, operators = repeated()

            def die():
                begun.update(managed.stats())
                tensors.clear()

            begun = {{}}
            if before_a_copy:
                died = Before("cudaMemcpyAsync", n, die)
                until(lambda: died.done, operators)
            else:
                for _ in range(n):
                    begun = managed.stats()
                    next(operators)
                tensors.clear()
            operators.close()
            ended = managed.stats()
            moved.append([k for k in ("spill", "restore", "spare") if ended[k] > begun[k]])
            for t in [torch.empty(2 * MIB, dtype=torch.int32, device=CUDA) for _ in range(4)]:
                t.copy_(late, non_blocking=True)
            del t
            report = races()
            assert not report, (n, report)
        if before_a_copy:  # which brings bytes home is the one behind what leaves
            assert ["restore"] in moved and ["spill", "restore"] in moved, moved
            assert any("spare" in kinds for kinds in moved), moved
        else:
            assert moved.count(["spill", "restore"]) == 2, moved
    """)


def test_who_waits_for_a_copy_to_begin_writes_after_it(run):
    """Another thread makes it, ahead of need, and the bytes stay where they are. The one that
    writes them is a compiled graph, which takes no turn: it comes while the copy is made."""
    run("""
        import threading, time
        late = torch.full((2 * MIB,), 5, dtype=torch.int32).pin_memory()
        for n in copies_beside_a_spare():
            tensors, operators = repeated()
            home, writers = [], []

            def begin_to_write():
                for t in home:
                    if C.is_spilled(t):
                        call = lambda: t.copy_(late, non_blocking=True)
                        writers.append(
                            threading.Thread(target=C.call_lent, args=([t], (0,), call, ()))
                        )
                        writers[-1].start()
                        return time.sleep(0.1)  # until it waits

            begun = Before("cudaMemcpyAsync", n, begin_to_write)

            def has_begun():
                home[:] = [t for t in tensors if not C.is_spilled(t)]
                return begun.done

            until(has_begun, operators)
            for t in writers:
                t.join()
            report = races()
            assert not report, (n, report)
            home.clear()
            operators.close()
    """)


def test_a_stream_that_is_recorded_waits_for_nothing_so_the_thread_does(run):
    run("""
        x = made(8)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            x.add_(0)
        assert C.spill_all() == 1
        calls = Calls()
        with recorded(side):
            x.add_(0)
        assert calls["EventSynchronize"] == 1 and not races()
    """)


BACK_AT_ONCE = """
    x, other, y, small = made(8), made(8), made(8, "cuda:1"), made(4, "cuda:1")
    expected, values = x.cpu(), y.cpu()
    y.pin(), small.pin()
    assert C.spill_all() == 2
    managed.budget("cpu", 0)  # so that no copy is kept when bytes come home
    there = torch.zeros_like(expected).pin_memory()
    there.copy_(x, non_blocking=True)
    managed.budget("cpu", 1 << 34)
    x.pin()
    managed.stats(reset=True)
"""


def test_memory_of_the_host_is_written_when_it_has_been_read(run):
    """Another device's bytes go where the copy that brings x home still reads."""
    run(
        BACK_AT_ONCE
        + """
    y.unpin()
    assert C.spill_all() == 1 and C.host_memory()["kept"] == 0
    torch.cuda.synchronize()
    assert torch.equal(there, expected) and same(y, values) and not races()
    assert managed.stats()["host_waits"] == 0
    """,
        devices=2,
    )


def test_memory_of_the_host_that_a_copy_reads_is_kept(run):
    """Although it is more than was ever needed: nobody waits to give it back."""
    run(
        BACK_AT_ONCE
        + """
    small.unpin()
    assert C.spill_all() == 1 and C.host_memory()["kept"] == 8 * MIB
    assert managed.stats()["host_waits"] == 0
    torch.cuda.synchronize()
    assert torch.equal(there, expected) and not races()
    """,
        devices=2,
    )


def test_memory_of_the_host_goes_back_when_its_copy_has_ended(run):
    """Nothing is away any more, so nothing is kept."""
    run("""
        x = made(8)
        expected = x.cpu()
        C.spill_all()
        there = torch.zeros_like(expected).pin_memory()
        there.copy_(x, non_blocking=True)
        before = pinned()
        del x
        assert pinned() == before - 8 * MIB
        torch.cuda.synchronize()
        assert torch.equal(there, expected) and not races()
    """)


def test_memory_of_the_host_that_several_copies_read(run):
    """One to the device that an operator runs on, then one home, then the memory goes back."""
    run(
        """
        x, y = made(8), made(16, "cuda:1").view(2, -1)
        expected = x.cpu()
        here, there = (torch.zeros_like(expected).pin_memory() for _ in range(2))
        y.pin()
        assert C.spill_all() == 1
        managed.budget("cpu", 0)  # so that no copy is kept when bytes come home
        z = y.select_scatter(x, 0, 1)
        assert C.is_spilled(x)
        with torch.cuda.device(1):
            there.copy_(z[1], non_blocking=True)
        here.copy_(x, non_blocking=True)
        assert C.host_memory()["used"] == C.host_memory()["kept"] == 0
        for device in (0, 1):
            torch.cuda.synchronize(device)
        assert torch.equal(here, expected) and torch.equal(there, expected) and not races()
        """,
        devices=2,
    )


def test_a_file_of_the_old_kind_is_read_before_its_tensors_are_used(run):
    run("""
        import io
        x = made(8)
        expected = x.cpu()
        file = io.BytesIO()
        torch.save(x, file, _use_new_zipfile_serialization=False)
        managed.budget(CUDA, 64 * MIB)
        file.seek(0)
        found = torch.load(file, weights_only=False)
        assert C.is_managed(found)
        there = torch.zeros_like(expected).pin_memory()
        there.copy_(found, non_blocking=True)
        torch.cuda.synchronize()
        assert torch.equal(there, expected) and not races()
    """)


@pytest.mark.parametrize("refused", [1, 2, 3])
def test_bytes_whose_way_home_is_refused_stay_where_they_are(run, refused):
    """At the third order the copy is under way: the block that it fills serves others after it."""
    run(f"""
        x = made(8)
        expected = x.cpu()
        assert C.spill_all() == 1
        gpu.vgpu_fail(b"cudaStreamWaitEvent", {refused}, 1)
        try:
            x.add_(0)
        except RuntimeError as e:
            assert "invalid argument" in str(e), e
        else:
            raise AssertionError("nobody was told")
        assert C.is_spilled(x)
        late = torch.full_like(expected, 5).pin_memory()
        others = [torch.empty(2 * MIB, dtype=torch.int32, device=CUDA) for _ in range(3)]
        for t in others:
            t.copy_(late, non_blocking=True)
        torch.cuda.synchronize()
        assert all(torch.equal(t.cpu(), late) for t in others)
        assert same(x, expected) and not races()
    """)


def test_when_uses_ended_is_told_when_they_have(run):
    run("""
        x = made(8)
        late = torch.zeros(2 * MIB, dtype=torch.int32).pin_memory()
        C.begin_uses()
        late.copy_(x, non_blocking=True)
        late.copy_(x, non_blocking=True)  # an operation of the device after the first
        del x
        (first, second, dropped) = C.end_uses()
        assert {u[1] for u in (first, second, dropped)} == {8 * MIB}
        assert (first[3], second[3], dropped[3]) == (1, 1, 3)
        assert first[4] == 0 and dropped[4] == second[4] and round(second[4]) == 300_000
    """)


@pytest.mark.parametrize("stream", ["current_stream", "Stream"])
def test_what_leaves_comes_after_its_last_use_and_not_after_later_work(run, stream):
    """A copy that has not run yet reads its source when it runs. Points lie behind all streams."""
    run(f"""
        x, y, late, work, leave = ahead()
        x.add_(0)
        work()
        with torch.cuda.stream(torch.cuda.{stream}()):
            x.copy_(late, non_blocking=True)
        work()
        work()
        assert (leave() == 1).all()
        late.fill_(2)
        torch.cuda.synchronize()
        assert (y == 2).all(), "the last of the work was still to be done"
        assert not races()
    """)


def test_what_a_plain_tensor_wrote_leaves_after_that(run):
    """Nobody saw when, so points that were made since prove nothing."""
    run("""
        x, y, late, work, leave = ahead()
        plain = torch.empty(0, dtype=torch.int32, device=CUDA).set_(x.untyped_storage())
        work()
        plain.copy_(late, non_blocking=True)
        del plain
        work()
        assert (leave() == 1).all()
        assert not races()
    """)


def test_nobody_waits_for_bytes_of_ordinary_memory_of_the_host(run):
    """CUDA would copy them behind all that the stream has to do, and the caller would wait."""
    run("""
        late = torch.empty(2 * MIB, dtype=torch.int32).pin_memory()
        y, z = made(8), made(8)
        original = torch.arange(2 * MIB, dtype=torch.int32)
        x = original.clone().as_subclass(ManagedTensor)
        there = torch.zeros_like(original).pin_memory()
        for turn in range(8):
            late.fill_(turn)
            z.copy_(late, non_blocking=True)
            x.copy_(original + turn)
            calls = Calls()
            x + y  # kernels do nothing here
            sent = x.to(CUDA, non_blocking=True)
            assert calls.waits() == 0 and calls["MemcpyAsync"] == 2
            x.fill_(-1)
            late.fill_(turn + 100)
            there.copy_(sent, non_blocking=True)
            torch.cuda.synchronize()
            assert torch.equal(there, original + turn)
            assert (z.cpu() == turn + 100).all(), "it was still to be done then"
            assert not races()
    """)


def test_memory_by_which_bytes_go_to_the_device_is_bounded(run):
    """A copy of more than 32 MiB goes torch's way, and so do those for which no buffer is free."""
    run("""
        before = pinned()
        x = torch.arange(5 * MIB).as_subclass(ManagedTensor)  # 40 MiB
        assert torch.equal(x.to(CUDA, non_blocking=True).cpu(), x)
        assert pinned() == before
        x = torch.arange(MIB).as_subclass(ManagedTensor)  # 8 MiB
        sent = [x.to(CUDA, non_blocking=True) for _ in range(20)]
        assert pinned() - before == 128 * MIB
        assert all(torch.equal(t.cpu(), x) for t in sent)
        del sent
        for _ in range(20):
            torch.cuda.synchronize()
            calls = Calls()
            x.to(CUDA, non_blocking=True)
            assert calls.waits() == 0
        assert pinned() - before == 128 * MIB
        assert not races()
    """)


def test_no_memory_by_which_bytes_could_go_is_no_error(run):
    run("""
        before = pinned()
        x = torch.arange(MIB).as_subclass(ManagedTensor)
        gpu.vgpu_fail(b"cudaHostAlloc", 1, 2)
        assert torch.equal(x.to(CUDA, non_blocking=True).cpu(), x)
        assert pinned() == before
        assert torch.equal(x.to(CUDA, non_blocking=True).cpu(), x)
        assert pinned() > before
        assert not races()
    """)


@pytest.mark.parametrize("refused", [1, 2])
def test_a_copy_from_the_host_that_nothing_can_come_after(run, refused):
    """At the second order the copy is under way: the block that it fills serves others after it."""
    run(f"""
        x = torch.arange(MIB).as_subclass(ManagedTensor)
        gpu.vgpu_fail(b"cudaStreamWaitEvent", {refused}, 1)
        try:
            x.to(CUDA, non_blocking=True)
        except RuntimeError as e:
            assert "invalid argument" in str(e), e
        else:
            raise AssertionError("nobody was told")
        late = torch.full((MIB,), 5).pin_memory()
        others = [torch.empty(MIB, dtype=torch.int64, device=CUDA) for _ in range(3)]
        for t in others:
            t.copy_(late, non_blocking=True)
        torch.cuda.synchronize()
        assert all(torch.equal(t.cpu(), late) for t in others)
        assert torch.equal(x.to(CUDA, non_blocking=True).cpu(), x)
        assert not races()
    """)


def test_what_leaves_is_waited_for_when_its_room_is_taken(run):
    """Until then the stream does other work, and the copy is as late as it may be."""
    run("""
        x = made(8)
        expected = x.cpu()
        other = torch.empty(MIB, dtype=torch.int32, device=CUDA)
        late = torch.full((2 * MIB,), 5, dtype=torch.int32).pin_memory()
        before = gpu.vgpu_pending()
        assert C.spill_all() == 1
        other.copy_(late[:MIB], non_blocking=True)
        torch.cuda.current_stream().synchronize()
        assert gpu.vgpu_pending() > before, "the copy was waited for"
        assert torch.cuda.memory_allocated() == 4 * MIB  # who looks gives the block back
        new = torch.empty(2 * MIB, dtype=torch.int32, device=CUDA)
        new.copy_(late, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        assert gpu.vgpu_pending() == before, "its block was written before it had left"
        assert same(x, expected) and not races()
    """)


@pytest.mark.parametrize(
    "then", ["room", "failure", "empty_cache", "memory_stats", "budget", "less"]
)
def test_room_that_is_needed_is_taken_from_what_leaves(run, then):
    """Two blocks are kept for copies that have not ended, and there is no room for a third."""
    run(f"""
        then = {then!r}
        torch.empty(1, device=CUDA)
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(0)
        managed.budget(CUDA, 42 * MIB)
        x, y = made(20), made(20)
        expected = [t.cpu() for t in (x, y)]
        late = torch.full((5 * MIB,), 5, dtype=torch.int32).pin_memory()
        assert C.spill_all() == 2
        if then == "empty_cache":
            torch.cuda.empty_cache()
            assert torch.cuda.mem_get_info(0)[0] >= free - 2 * MIB
        elif then == "memory_stats":
            assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == 0
        elif then == "less":
            x.add_(0), y.add_(0)
            managed.budget(CUDA, 22 * MIB)
            assert torch.cuda.memory_reserved() <= 22 * MIB, "torch would serve it from its cache"
            managed.budget(CUDA, 42 * MIB)
        elif then == "budget":
            managed.budget(CUDA, None)
            assert managed.stats()["devices"]["cuda:0"]["free"] >= 40 * MIB
        elif then == "failure":
            try:
                torch.empty(100 * MIB, dtype=torch.uint8, device=CUDA)
            except torch.OutOfMemoryError:
                pass
            else:
                raise AssertionError("there was room")
        new = [torch.empty(5 * MIB, dtype=torch.int32, device=CUDA) for _ in range(2)]
        for t in new:
            t.copy_(late, non_blocking=True)
        torch.cuda.synchronize()
        del new, t
        assert same(x, expected[0]) and same(y, expected[1]) and not races()
    """)


def test_what_comes_takes_the_block_of_what_leaves(run):
    """Behind the copy that reads it, and nobody is asked for a block."""
    run("""
        x, y = made(8), made(8)
        expected = [t.cpu() for t in (x, y)]
        requests = lambda: torch.cuda.memory_stats()["allocation.all.allocated"]
        C.spill_all()
        y.add_(0)
        for leaves, comes in ((y, x), (x, y), (y, x)):
            before = requests()
            assert C.spill_all() == 1
            comes.add_(0)
            assert requests() == before
            assert C.is_spilled(leaves) and not C.is_spilled(comes)
        assert same(x, expected[0]) and same(y, expected[1]) and not races()
    """)


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("what", ["pointer", "storage"])
def test_who_gets_hold_of_bytes_writes_them_after_the_copy_that_has_them(run, what, away):
    """A pointer on a stream that managed cannot order, a storage on one that is current then. The
    copy is one ahead of need, or brings the bytes home."""
    run(f"""
        tensors, operators = repeated()
        late = torch.full((2 * MIB,), -1, dtype=torch.int32).pin_memory()
        strange, main = stream_of_another_library(), torch.cuda.current_stream()
        until_spare(operators)
        managed.LEARN_STEPS = False
        those = [t for t in tensors if C.is_spilled(t) == {away}]
        strange.wait_stream(main)
        if {what!r} == "pointer":
            held = [t.data_ptr() for t in those]
        else:
            empty = torch.empty(0, dtype=torch.int32, device=CUDA)
            with torch.cuda.stream(strange):
                held = [empty.clone().set_(t.untyped_storage()) for t in those]
        for h in held:
            if {what!r} == "pointer":
                to, source, stream = h, late.data_ptr(), strange.cuda_stream
                pointers = [ctypes.c_void_p(p) for p in (to, source, stream)]
                gpu.cudaMemcpyAsync(*pointers[:2], ctypes.c_size_t(8 * MIB), 1, pointers[2])
            else:
                with torch.cuda.stream(strange):
                    h.copy_(late, non_blocking=True)
        main.wait_stream(strange)
        assert all((t.cpu() == -1).all() for t in those)
        assert not races()
    """)


def test_an_operand_from_the_host_in_a_backward_pass_may_have_memory_of_another_stream(run):
    """It has the block of what has just left; the stream that had it may write there afterwards."""
    run("""
        seen = torch.zeros(2 * MIB, dtype=torch.int32).pin_memory()
        late = torch.full_like(seen, 5).pin_memory()
        source = torch.full((2 * MIB,), 7, dtype=torch.int32).as_subclass(ManagedTensor)

        def use():
            sent = source.to(CUDA, non_blocking=True)
            seen.copy_(sent, non_blocking=True)

        main, side = torch.cuda.current_stream(), torch.cuda.Stream()
        with torch.cuda.stream(side):
            x = made(8)
        main.wait_stream(side)
        loss = in_a_backward_pass(use)
        torch.cuda.synchronize()
        assert C.spill_all() == 1
        loss.backward()
        with torch.cuda.stream(side):
            for t in [torch.empty(2 * MIB, dtype=torch.int32, device=CUDA) for _ in range(3)]:
                t.copy_(late, non_blocking=True)
        torch.cuda.synchronize()
        assert (seen == 7).all()
        assert not races()
        end()
    """)


def test_a_stream_that_is_new_in_a_backward_pass_comes_after_what_is_sent_there(run):
    """Into the block of what has just left. There is no handle, by which a use would be seen."""
    run("""
        seen = torch.zeros(MIB, dtype=torch.int32).pin_memory()
        source = torch.full((2 * MIB,), 7, dtype=torch.int32).as_subclass(ManagedTensor)
        new = torch.cuda.Stream()

        def use():
            with torch.cuda.stream(new):
                sent = source.to(CUDA, non_blocking=True)
                part = sent[:MIB]  # two have the storage: it gets no handle now
                seen.copy_(part, non_blocking=True)
                new.synchronize()

        x = made(8)
        loss = in_a_backward_pass(use)
        torch.cuda.synchronize()
        assert C.spill_all() == 1
        loss.backward()
        assert (seen == 7).all()
        assert not races()
        end()
    """)


@pytest.mark.parametrize("ordered", ["before", "after"])
def test_what_was_written_before_managed_knew_it_leaves_with_what_was_written(run, ordered):
    """On a stream that managed has not seen; the program orders its own work before it reads."""
    run(f"""
        x, y, late, work, leave = ahead()
        values = torch.full((4 * MIB,), 7.0).pin_memory()
        main, side = torch.cuda.current_stream(), stream_of_another_library()
        module = torch.nn.Module()
        module.w = torch.nn.Parameter(torch.empty(4 * MIB, device=CUDA))
        side.wait_stream(main)
        with torch.cuda.stream(side), torch.no_grad():
            module.w.copy_(values, non_blocking=True)
        module = managed.ManagedModule.from_module(module)
        work()
        if {ordered!r} == "before":
            main.wait_stream(side)
        new = [empty(16), empty(16), empty(16)]
        assert C.is_spilled(module.w)
        del new
        main.wait_stream(side)
        assert (module.w.detach().cpu() == 7).all()
        assert not races()
    """)


STREAMS = ["torch.cuda.current_stream()", "torch.cuda.Stream()", "stream_of_another_library()"]


@pytest.mark.parametrize("stream", STREAMS)
def test_a_block_whose_last_use_comes_after_its_copy_serves_what_comes_after_that(run, stream):
    """Its bytes were copied ahead of need and then read again, and the tensor is dead."""
    run(f"""
        tensors, operators = repeated()
        late = torch.zeros(2 * MIB, dtype=torch.int32).pin_memory()
        for _ in range(60):
            spares = managed.stats()["spare"]
            next(operators)
            if managed.stats()["spare"] == spares:
                continue
            home = next((t for t in reversed(tensors) if not C.is_spilled(t)), None)
            main, other = torch.cuda.current_stream(), {stream}
            other.wait_stream(main)
            with torch.cuda.stream(other):
                late.copy_(home, non_blocking=True)
            main.wait_stream(other)
        torch.cuda.synchronize()
        assert not races()
    """)


def test_a_block_that_a_foreign_stream_reads_serves_no_copy(run):
    """Its bytes were copied ahead of need, so it waits in the list; no point lies behind such a
    stream, and what comes would take the block behind the copy alone."""
    run("""
        tensors, operators = repeated()
        foreign, main = stream_of_another_library(), torch.cuda.current_stream()
        late = torch.zeros(2 * MIB, dtype=torch.int32).pin_memory()
        until_spare(operators)
        operators.close()
        managed.LEARN_STEPS = False
        torch.cuda.memory_allocated()  # gives back what else is in the list
        away = next(t for t in tensors if C.is_spilled(t))
        home = [t for t in tensors if not C.is_spilled(t)]
        tensors.clear()
        foreign.wait_stream(main)
        with torch.cuda.stream(foreign):
            for t in home:
                late.copy_(t, non_blocking=True)
        main.wait_stream(foreign)
        del t, home
        away.add_(0)
        torch.cuda.synchronize()
        assert not races()
    """)


def test_a_plan_waits_for_the_times_of_its_step(run):
    """The device is far behind the host then: an operator runs when its result is needed. Unknown
    times are estimated from the bytes of the step, for which a card takes 0.15 ms."""
    run(
        """
        tensors, operators = repeated()
        told = C.step_state(1)
        assert told["operators"] == 12 and told["ideal"] == 12 * 500_000, told
        """,
        VIRTUAL_GPU_OPERATION_NS=500_000,
    )


@pytest.mark.parametrize(("operator", "kernels"), [("t.add_(1)", 2), ("t.add_(1), t + 1", 3)])
def test_times_of_operators_are_those_of_the_device(run, operator, kernels):
    """A kernel of 2 ms, which is long for its bytes. What brings its operand home, or makes room
    for its result, takes 2 ms a copy and is no part of it."""
    run(
        f"""
        managed.budget(CUDA, 62 * MIB)
        tensors = [made(8) for _ in range(8)]
        for _ in range(12):
            for t in tensors:
                {operator}
                assert gpu.vgpu_kernel_begin(None, b"a kernel that takes 2 ms") == 0
                gpu.vgpu_kernel_end()
        told = C.step_state(1)
        assert told["follows"], told
        assert told["ideal"] == 8 * {kernels} * 2_000_000, told
        """,
        VIRTUAL_GPU_OPERATION_NS=2_000_000,
    )
