"""Operands that cross between virtual GPUs beside what runs there: who comes after the copy.

Programs as in test_virtual_copies.py.
"""

import pytest
from support.virtual_gpu import found_libraries, needs_virtual_gpu, runs_program  # noqa: F401

pytestmark = needs_virtual_gpu

CROSSES = """
        import functools
        x, y = made(8), made(16, "cuda:1")
        late = torch.full((2 * MIB,), 5, dtype=torch.int32).pin_memory()
        expected = x.cpu()
        torch.cuda.synchronize("cuda:1")
        before = gpu.vgpu_pending()

        def cross(operator=torch.add):
            \"\"\"To an operator on cuda:1; kernels do nothing. The address that x gets there.\"\"\"
            crossed = managed.stats()["copy"]
            operator(y.view(2, -1), x)
            assert managed.stats()["copy"] == crossed + 1
            return block_on(1)

        def block_on(device):
            \"\"\"The address of the one of 8 MiB that is in use there.\"\"\"
            torch.cuda.memory_stats(device)  # a block that is set aside goes back
            there = [s for s in torch.cuda.memory_snapshot() if s["device"] == device]
            found, = [b["address"] for s in there for b in s["blocks"]
                      if b["size"] == 8 * MIB and b["state"] == "active_allocated"]
            return found

        def write_at(address):
            \"\"\"As a kernel of somebody else does.\"\"\"
            to, source = (ctypes.c_void_p(a) for a in (address, late.data_ptr()))
            assert gpu.cudaMemcpyAsync(to, source, ctypes.c_size_t(8 * MIB), 1, None) == 0

        def values_at(address):
            \"\"\"When all has ended. The copy may be gone, but nobody has had its block.\"\"\"
            for i in range(2):
                torch.cuda.synchronize(i)
            bytes_there = bytearray(ctypes.string_at(address, 8 * MIB))
            return torch.frombuffer(bytes_there, dtype=torch.int32)
"""


def test_a_device_goes_on_while_its_bytes_cross(run):
    """Who writes them waits for the copy; other work on the device that they leave does not."""
    run(
        f"""{CROSSES}
        calls = Calls()
        there = cross()
        assert calls.waits() == 0
        other = torch.empty(MIB, dtype=torch.int32, device=CUDA)
        other.copy_(late[:MIB], non_blocking=True)
        torch.cuda.current_stream(0).synchronize()
        assert gpu.vgpu_pending() > before, "it waited for the copy"
        x.copy_(late, non_blocking=True)
        assert torch.equal(values_at(there), expected), "it was written before it had been read"
        assert not races()
        """,
        devices=2,
    )


@pytest.mark.parametrize("then", ["dead", "away", "plain", "a pointer"])
def test_what_has_crossed_is_gone_or_written_after_the_copy(run, then):
    run(
        f"""{CROSSES}
        then = {then!r}
        there = cross()
        if then == "dead":
            del x
        elif then == "away":
            assert C.spill_all() >= 1
        elif then == "plain":
            plain = torch.empty(0, dtype=torch.int32, device=CUDA).set_(x.untyped_storage())
            plain.copy_(late, non_blocking=True)
        else:
            write_at(x.data_ptr())
        if then in ("dead", "away"):
            new = [torch.empty(2 * MIB, dtype=torch.int32, device=CUDA) for _ in range(2)]
            for t in new:
                t.copy_(late, non_blocking=True)
        assert torch.equal(values_at(there), expected)
        assert not races()
        """,
        devices=2,
    )


def test_a_thread_copies_an_operand_while_another_lends_it(run):
    """It has not been told yet that they are lent; who lends them finds the copy then."""
    run(
        f"""{CROSSES}
        import threading
        saved = x.__reduce_ex__(2)[1][0]._untyped_storage  # nobody uses it yet
        z = made(16, "cuda:2")
        cross()
        copies = managed.stats()["copy"]

        def act():
            thread.start()
            thread.join(0.5)
            began.append(managed.stats()["copy"] - copies)

        began = []
        thread = threading.Thread(target=lambda: z.view(2, -1) + x)
        before = Before("cudaStreamWaitEvent", 1, act)  # who lends comes after the first copy
        saved.copy_(late.untyped_storage(), non_blocking=True)
        assert before.done and began == [1]
        thread.join()
        for i in range(3):
            torch.cuda.synchronize(i)
        report = races()
        assert not report, report
        """,
        devices=3,
    )


@pytest.mark.parametrize("how", ["plain", "a pointer"])
def test_what_may_be_written_unseen_crosses_behind_all_that_the_stream_does(run, how):
    """On the stream itself: whoever writes the bytes there comes after the copy."""
    run(
        f"""{CROSSES}
        if {how!r} == "plain":
            plain = torch.empty(0, dtype=torch.int32, device=CUDA).set_(x.untyped_storage())
            write = functools.partial(plain.copy_, late, non_blocking=True)
        else:
            write = functools.partial(write_at, x.data_ptr())
        y.view(2, -1) + x
        write()
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        report = races()
        assert not report, report
        """,
        devices=2,
    )


@pytest.mark.parametrize("which", ["operand", "guest"])
@pytest.mark.parametrize("fails", ["", "cudaDeviceEnablePeerAccess:1:60"])
def test_devices_that_reach_each_other_are_told_to(run, which, fails):
    """The driver copies through the host until then. A device may have no room for a peer."""
    run(
        f"""
        enabled = lambda: gpu.vgpu_count(b"cudaDeviceEnablePeerAccess")
        x = made(8)
        expected = x.cpu()
        torch.empty(1, device="cuda:1")
        assert enabled() == 0
        for _ in range(2):
            if {which!r} == "guest":
                x.add_(0)
                managed.budget(CUDA, 2 * MIB)
                assert C.residency("cuda:1")["guests"] == 8 * MIB
                managed.budget(CUDA, None)
            else:
                y = made(16, "cuda:1")
                y.view(2, -1) + x
        assert enabled() == (2 if {which!r} == "guest" else 1), "there and back, once each"
        assert same(x, expected)
        assert not races()
        """,
        devices=2,
        VIRTUAL_GPU_LINKS="0-1",
        VIRTUAL_GPU_FAIL=fails,
    )


@pytest.mark.parametrize(
    ("refused", "lent"), [(1, False), (2, False), (3, False), (3, True), (4, True)]
)
def test_an_operand_that_nothing_can_come_after(run, refused, lent):
    """From the third order on its copy is under way: the block that it fills serves others then."""
    run(
        f"""{CROSSES}
        if {lent}:
            plain = torch.empty(0, dtype=torch.int32, device=CUDA).set_(x.untyped_storage())

        @torch.library.custom_op("test::reads", mutates_args=())
        def reads(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros(1, device="cuda:1")

        gpu.vgpu_fail(b"cudaStreamWaitEvent", {refused}, 1)
        try:
            reads(y, x)
        except RuntimeError as e:
            assert "invalid argument" in str(e), e
        else:
            raise AssertionError("nobody was told")
        others = [torch.empty_like(late, device="cuda:1") for _ in range(3)]
        for t in others:
            t.copy_(late, non_blocking=True)
        torch.cuda.synchronize(1)
        assert all(torch.equal(t.cpu(), late) for t in others)
        reads(y, x)
        assert same(x, expected)
        report = races()
        assert not report, report
        """,
        devices=2,
    )


def test_an_operand_crosses_into_a_graph_as_torch_copies_it(run):
    """A copy of our own could not be recorded."""
    run(
        f"""{CROSSES}
        graph, streams = torch.cuda.CUDAGraph(), [torch.cuda.Stream(i) for i in range(2)]
        with torch.cuda.stream(streams[0]), torch.cuda.device(1):
            with torch.cuda.graph(graph, stream=streams[1]):
                y.view(2, -1) + x
        calls = Calls()
        for _ in range(2):
            graph.replay()
            torch.cuda.synchronize(1)
        assert calls["GraphLaunch"] == 2
        assert not races()
        """,
        devices=2,
    )


def test_what_came_home_for_an_operator_crosses_when_it_is_there(run):
    """The operator has not ended, so its use is not noted, and the operand's points are old."""
    run(
        f"""{CROSSES}
        @torch.library.custom_op("test::inside", mutates_args=())
        def inside(x: torch.Tensor) -> torch.Tensor:
            global there
            there = cross()
            return torch.zeros(1)

        managed.budget(CUDA, 52 * MIB)
        small, tensors = made(1), [made(16) for _ in range(3)]
        assert C.is_spilled(x)
        for _ in range(40):
            small.add_(0)
        for i in range(2):
            torch.cuda.synchronize(i)
        inside(x)
        assert torch.equal(values_at(there), expected)
        assert not races()
        """,
        devices=2,
    )


def test_a_custom_operator_that_writes_what_has_crossed_inside_it(run):
    """As a kernel does. That it writes was said before it began."""
    run(
        f"""{CROSSES}
        address = block_on(0)

        @torch.library.custom_op("test::writes", mutates_args=["x"])
        def writes(x: torch.Tensor) -> None:
            global there
            there = cross()
            write_at(address)

        writes(x)
        assert torch.equal(values_at(there), expected)
        assert not races()
        """,
        devices=2,
    )


def test_a_mode_that_writes_what_is_pinned_after_it_has_crossed(run):
    """Below the hook, which what is pinned allows."""
    run(
        f"""{CROSSES}
        from torch.utils._python_dispatch import TorchDispatchMode

        class Writes(TorchDispatchMode):
            def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
                x.copy_(late, non_blocking=True)
                return operator(*args, **(kwargs or {{}}))

        x.pin()
        there = cross(torch.Tensor.add_)
        with Writes():
            torch.ones(1)
        assert torch.equal(values_at(there), expected)
        assert not races()
        """,
        devices=2,
    )


@pytest.mark.parametrize("used", ["never", "before"])
def test_operands_that_die_do_not_pile_up(run, used):
    """Their blocks wait for their copies; of more than a 32nd of the device the streams do."""
    run(
        f"""
        source, y = made(1), made(2, "cuda:1").pin()
        before = torch.cuda.memory_reserved(0)
        managed.stats(reset=True)
        for _ in range(500):
            x = source.clone()
            y.view(2, -1) + x
            if {used!r} == "before":
                for i in range(2):
                    torch.cuda.synchronize(i)  # the copy has ended when x dies
            del x
        assert managed.stats()["copy"] == 500
        grew = torch.cuda.memory_reserved(0) - before
        assert grew <= (64 * MIB if {used!r} == "never" else 20 * MIB), grew / MIB
        assert not races()
        """,
        devices=2,
    )


@pytest.mark.parametrize("inside", [True, False])
def test_an_operand_that_crosses_in_a_backward_pass_may_have_memory_of_another_stream(run, inside):
    """Its block is that of what has just left; it gets no handle there."""
    run(
        f"""
        n = 2 * MIB
        other = torch.cuda.Stream(1)
        with torch.cuda.stream(other):
            away = made(8, "cuda:1")
        w, g = made(8), made(16, "cuda:1").pin()
        for i in range(2):
            torch.cuda.synchronize(i)
        seen = torch.zeros(n, dtype=torch.int32).pin_memory()
        late = torch.full_like(seen, 5).pin_memory()
        expected = w.cpu()

        @torch.library.custom_op("test::read", mutates_args=())
        def read(g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            seen.copy_(w, non_blocking=True)
            return torch.zeros(1, device="cuda:1")

        def use():
            crossed = managed.stats()["copy"]
            read(g, w)
            assert managed.stats()["copy"] == crossed + 2  # there, and to `seen`
            w.add_(0)  # the kept copy is given up

        C.spill_all()
        w.add_(0)
        assert C.is_spilled(away) and not C.is_spilled(w)
        if {inside}:
            in_a_backward_pass(use, "cuda:1").backward()
        else:
            use()
        with torch.cuda.stream(other):
            for t in [torch.empty(n, dtype=torch.int32, device="cuda:1") for _ in range(3)]:
                t.copy_(late, non_blocking=True)
        for i in range(2):
            torch.cuda.synchronize(i)
        assert torch.equal(seen, expected)
        assert not races()
        end()
        """,
        devices=2,
    )


@pytest.mark.parametrize("what", ["a guest", "an operand"])
def test_a_stream_that_is_new_comes_after_what_a_peer_copies(run, what):
    """The copy is in a stream of the peer. All only read the bytes: the program orders nothing."""
    run(
        f"""{CROSSES}
        seen = torch.zeros_like(late).pin_memory()
        if {what!r} == "a guest":
            managed.budget(CUDA, 2 * MIB)
            assert C.residency("cuda:1")["guests"] == 8 * MIB
            managed.budget(CUDA, None)
            x.add_(0)
            device = 0
        else:
            cross()
            device = 1
        new = torch.cuda.Stream(device)
        with torch.cuda.stream(new):
            if {what!r} == "a guest":
                seen.copy_(x, non_blocking=True)
            else:
                @torch.library.custom_op("test::reads", mutates_args=())
                def reads(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
                    seen.copy_(x, non_blocking=True)
                    return torch.zeros(1, device="cuda:1")
                reads(y, x)
        new.synchronize()
        assert torch.equal(seen, expected)
        assert not races()
        """,
        devices=2,
        VIRTUAL_GPU_LINKS="0-1",
    )


def test_a_stream_that_is_new_comes_after_what_moved_there(run):
    """No copy of an operand's is its own there: it uses what another stream has moved."""
    run(
        f"""{CROSSES}
        seen = torch.zeros_like(late).pin_memory()
        module = torch.nn.Module()
        module.register_buffer("x", x)
        module = managed.ManagedModule.from_module(module)
        del x
        module.to("cuda:1")
        new = torch.cuda.Stream(1)
        with torch.cuda.stream(new):
            seen.copy_(module.x, non_blocking=True)
        new.synchronize()
        assert torch.equal(seen, expected)
        assert not races()
        """,
        devices=2,
    )


def test_a_foreign_stream_makes_nobody_wait_for_an_operand(run):
    run(
        f"""{CROSSES}
        foreign = stream_of_another_library()
        with torch.cuda.stream(foreign):
            x.add_(0)
        torch.cuda.synchronize(0)
        x.copy_(late, non_blocking=True)
        calls = Calls()
        there = cross()
        assert calls.waits() == 0
        assert (values_at(there) == 5).all()
        assert not races()
        """,
        devices=2,
    )


def test_an_operand_crosses_while_another_stream_is_recorded(run):
    run(
        f"""{CROSSES}
        side = torch.cuda.Stream(0)
        with torch.cuda.stream(side):
            x.add_(0)
        torch.cuda.synchronize(0)
        with recorded(side):
            there = cross()
        assert torch.equal(values_at(there), expected)
        assert not races()
        """,
        devices=2,
    )


def test_two_threads_need_an_operand_elsewhere(run):
    """The handle has the copy that the device began last, whoever of them is quicker."""
    run(
        f"""{CROSSES}
        import threading
        z = made(16, "cuda:2")
        calls = Calls()
        cross()  # a rehearsal; the last event that it records is the end of the copy
        events = calls["EventRecord"]
        x.add_(0)
        found = []

        def needs_it_too():
            z.view(2, -1) + x
            found.append(True)

        def act():
            other.start()
            other.join(0.5)

        other = threading.Thread(target=needs_it_too)
        before = Before("cudaEventRecord", events, act)
        y.view(2, -1) + x
        other.join()
        assert before.done and found
        x.copy_(late, non_blocking=True)
        for i in range(3):
            torch.cuda.synchronize(i)
        report = races()
        assert not report, report
        """,
        devices=3,
    )


@pytest.mark.parametrize("how", ["a pointer", "plain"])
def test_a_thread_gets_hold_of_an_operand_while_room_is_made_for_its_copy(run, how):
    """It finds no copy yet, and the copy begins after that: streams are told then."""
    run(
        f"""{CROSSES}
        import threading
        managed.budget("cuda:1", 36 * MIB)
        y.pin()
        fill = [made(8, "cuda:1") for _ in range(2)]
        assert [C.is_spilled(t) for t in fill] == [True, False]
        for i in range(2):
            torch.cuda.synchronize(i)
        held = []

        def other():
            if {how!r} == "plain":
                plain = torch.empty(0, dtype=torch.int32, device=CUDA).set_(x.untyped_storage())
                held.append(functools.partial(plain.copy_, late, non_blocking=True))
            else:
                held.append(functools.partial(write_at, x.data_ptr()))

        def act():
            thread.start()
            thread.join(0.5)

        thread = threading.Thread(target=other)
        before = Before("cudaMemcpyAsync", 1, act)  # of what leaves cuda:1
        y.view(2, -1).add_(x)
        thread.join()
        assert before.done
        held[0]()
        report = races()
        assert not report, report
        """,
        devices=2,
    )


def test_an_operand_does_not_wait_for_another_that_goes_elsewhere(run):
    """They are in streams of their own, and what they come from shares nothing."""
    run(
        f"""{CROSSES}
        x2, z = made(8), made(16, "cuda:2")
        sides = [torch.cuda.Stream(0) for _ in range(2)]
        for side in sides:
            with torch.cuda.stream(side):
                x.add_(0)
                x2.add_(0)
        work = torch.empty(16 * MIB, dtype=torch.int32).pin_memory()
        there = torch.empty_like(work, device="cuda:1", pin_memory=False)
        for i in range(3):
            torch.cuda.synchronize(i)
        there.copy_(work, non_blocking=True)
        with torch.cuda.device(1):
            worked = torch.cuda.Event()
            worked.record()
        with torch.cuda.stream(sides[0]):
            torch.add(y.view(2, -1), x)
        with torch.cuda.stream(sides[1]):
            torch.add(z.view(2, -1), x2)
        torch.cuda.current_stream(2).synchronize()
        assert not worked.query()
        assert not races()
        """,
        devices=3,
    )


def test_who_looks_at_the_storage_of_an_operand_waits_for_nobody(run):
    """The streams of the program come after the copy instead."""
    run(
        f"""{CROSSES}
        there = cross()
        calls = Calls()
        for _ in range(3):
            assert x.untyped_storage().nbytes() == 8 * MIB
        assert calls.waits() == 0
        plain = torch.empty(0, dtype=torch.int32, device=CUDA).set_(x.untyped_storage())
        plain.copy_(late, non_blocking=True)
        assert torch.equal(values_at(there), expected)
        assert not races()
        """,
        devices=2,
    )


def test_an_operand_does_not_wait_for_all_that_its_target_was_given(run):
    """The second of a size has a block that was set aside when the first crossed."""
    run(
        """
        first, second, y = made(2), made(2), made(16, "cuda:1")
        late = torch.full((MIB // 2,), 5, dtype=torch.int32).pin_memory()
        work = torch.empty(32 * MIB, dtype=torch.int32).pin_memory()
        there = torch.empty_like(work, device="cuda:2", pin_memory=False)

        def busy():
            there.copy_(work, non_blocking=True)
            done = torch.cuda.Event()
            done.record(torch.cuda.current_stream(2))
            torch.cuda.current_stream(1).wait_event(done)
            return done

        def crosses_before(done, x):
            torch.add(y.view(8, -1), x)
            x.copy_(late, non_blocking=True)  # waits for the copy
            torch.cuda.current_stream(0).synchronize()
            return not done.query()

        for i in range(3):
            torch.cuda.synchronize(i)
        assert not crosses_before(busy(), first)  # its block is new
        for i in range(3):
            torch.cuda.synchronize(i)
        assert crosses_before(busy(), second)
        assert torch.equal(first.cpu(), late)
        assert not races()
        """,
        devices=3,
    )


def test_blocks_that_are_set_aside_are_room_for_the_program(run):
    run(
        """
        y = made(16, "cuda:1")
        work = torch.empty(16 * MIB, dtype=torch.int32).pin_memory()
        there = torch.empty_like(work, device="cuda:1", pin_memory=False)
        before = torch.cuda.memory_allocated(1)
        for kib in range(64, 64 + 20 * 32, 32):  # of more sizes than are kept
            x = made(1)[: kib * 256].clone()
            there.copy_(work, non_blocking=True)
            torch.add(y.view(-1)[: kib * 256 * 2].view(2, -1), x)
            del x
        torch.cuda.synchronize(1)
        assert torch.cuda.memory_allocated(1) == before
        free = torch.cuda.mem_get_info(1)[0]
        torch.cuda.empty_cache()
        large = torch.empty(free - 4 * MIB, dtype=torch.uint8, device="cuda:1")
        assert not races()
        """,
        devices=2,
    )
