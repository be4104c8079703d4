"""CUDA's half of spilling with torch's own allocator on a runtime that has no device.

Torch's CUDA build runs here over tests/fake_cuda/cudart.c: its allocator, streams, copies and the
hook are the real ones, kernels do nothing. What needs a device's time is in tests/gpu.
"""

import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent / "fake_cuda"
SITE = Path(torch.__file__).resolve().parents[1]


def _reason():
    if torch.version.cuda is None:
        return "needs a torch that is built with CUDA"
    if torch.cuda.is_available():
        return "there is a real device: make gpu"
    return None


pytestmark = pytest.mark.skipif(_reason() is not None, reason=str(_reason()))


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    """The runtime, compiled for this torch's CUDA, which also stands for the driver's library."""
    folder = tmp_path_factory.mktemp("cudart")
    include = next(
        f for f in SITE.glob("nvidia/cu*/include") if (f / "crt/host_config.h").is_file()
    )
    library = folder / "libfakecudart.so"
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command = [shutil.which("gcc"), *flags, "-pthread", "-isystem", include, HERE / "cudart.c"]
    subprocess.run([*command, "-o", library], check=True)
    (folder / "libcuda.so.1").symlink_to(library)
    return library


@pytest.fixture
def run(run_python, runtime, tmp_path):
    def run(code, **environment):
        start = f"import sys; sys.path.insert(0, {str(HERE)!r})\nfrom programs import *\n"
        return run_python(
            start + textwrap.dedent(code),
            LD_PRELOAD=runtime,
            LD_LIBRARY_PATH=runtime.parent,
            FAKE_CUDA_LOG=tmp_path / "log",
            **environment,
        )

    return run


def test_bytes_leave_and_come_back(run):
    run("""
        x = made(64)
        expected = x.cpu()
        view = x[5:]
        assert C.spill_all() == 1
        assert C.is_spilled(x)
        assert torch.cuda.memory_allocated() == 0
        assert same(view, expected[5:])
        assert not C.is_spilled(x)
        assert C.host_memory()["used"] == 64 * MIB, "a clean copy stays"
        log()
        assert C.spill_all() == 1
        assert not any(line.startswith("copy") for line in log()), "and what is clean is dropped"
        assert same(x, expected)
    """)


def test_room_is_made_inside_the_allocator(run):
    """1 GiB of device for 3 GiB of tensors; the driver is never full beyond it, nothing is lost."""
    run("""
        tensors = [made(100) for _ in range(30)]
        expected = [t.cpu() for t in tensors]
        for _ in range(2):
            for t, e in zip(tensors, expected):
                assert same(t, e)
        stats = managed.stats()
        assert stats["spill"] >= 20 and stats["restore"] >= 20
    """)


@pytest.mark.parametrize(
    "settings", ["", "max_split_size_mb:64", "garbage_collection_threshold:0.8"]
)
def test_the_budget_is_the_allocators_limit(run, settings):
    run(
        """
        managed.budget(CUDA, 320 * MIB)
        tensors = [made(50) for _ in range(20)]
        expected = [t.cpu() for t in tensors]
        for t, e in zip(tensors, expected):
            assert same(t, e)
            assert torch.cuda.memory_reserved() <= 320 * MIB
        managed.budget(CUDA, 200 * MIB)
        assert torch.cuda.memory_allocated() <= 200 * MIB, "what is beyond it leaves at once"
        managed.budget(CUDA, None)
        large = torch.empty(700 * MIB, dtype=torch.uint8, device=CUDA)
        """,
        PYTORCH_ALLOC_CONF=settings,
    )


def test_small_tensors_in_shared_segments(run):
    run("""
        managed.budget(CUDA, 64 * MIB)
        tensors = [made(1) for _ in range(200)]
        expected = [t.cpu() for t in tensors]
        for t, e in zip(tensors, expected):
            assert same(t, e)
    """)


def test_out_of_memory_leaves_all_whole(run):
    run("""
        managed.budget(CUDA, 256 * MIB)
        held = [made(64).pin() for _ in range(3)]
        expected = [t.cpu() for t in held]
        try:
            torch.cat(held)
        except managed.OutOfMemoryError as e:
            assert " out of memory." in str(e) and "pinned" in str(e), e
        else:
            raise AssertionError("there was room")
        assert held[0][:MIB].clone().shape == (MIB,)
        for t, e in zip(held, expected):
            assert not C.is_spilled(t) and same(t, e)
            t.unpin()
        try:
            torch.empty(300 * MIB, dtype=torch.uint8, device=CUDA)
        except torch.OutOfMemoryError as e:
            assert "CUDA out of memory" in str(e)
        else:
            raise AssertionError("there was room")
    """)


def test_the_front_forgets_no_function(run):
    """Each virtual function of torch's allocator; a class without any of its own lacks them all."""
    run("""
        from managed import _cuda
        functions, forgotten = _cuda.forgotten(False)
        assert functions > 45 and not forgotten, (functions, forgotten)
        assert _cuda.forgotten(True) == (functions, list(range(functions)))
    """)


def test_a_full_device_spills_nothing(run):
    """1000 MiB of 1024, and one more: it takes the place of one."""
    run("""
        tensors = [empty(100) for _ in range(10)]
        assert managed.stats()["spill"] == 0
        tensors.append(empty(20))
        assert managed.stats()["spill"] == 0
        tensors.append(empty(90))
        assert managed.stats()["spill"] == 1
    """)


def test_a_result_larger_than_all_else_finds_room_at_once(run):
    """What leaves is what is missing, and no more; nobody is told of a refusal."""
    run("""
        idle = [made(100) for _ in range(6)]
        expected = [t.cpu() for t in idle]
        torch.cuda.empty_cache()
        large = torch.empty(614 * MIB, dtype=torch.uint8, device=CUDA)
        assert sum(map(C.is_spilled, idle)) == 2
        assert torch.cuda.memory_stats()["num_ooms"] == 0
        del large
        for t, e in zip(idle, expected):
            assert same(t, e)
    """)


def test_a_refused_request_changes_nothing(run):
    run(
        """
        idle = [empty(100) for _ in range(5)]
        try:
            torch.empty(1200 * MIB, dtype=torch.uint8, device=CUDA)
        except torch.OutOfMemoryError as e:
            assert "CUDA out of memory" in str(e)
        else:
            raise AssertionError("there was room")
        some = [empty(100), empty(200), empty(10)]
        assert managed.stats()["spill"] == 0
        """,
        stderr="",  # newer versions of torch tell there of the refusal as well
    )


def test_room_is_made_on_a_peer(run):
    run(
        """
        torch.empty(1, device="cuda:1")
        C.set_host_limit(0)
        idle = [made(100) for _ in range(8)]
        expected = [t.cpu() for t in idle]
        large = torch.empty(600 * MIB, dtype=torch.uint8, device=CUDA)
        assert C.residency("cuda:1")["guests"] >= 400 * MIB
        del large
        for t, e in zip(idle, expected):
            assert same(t, e)
        """,
        FAKE_CUDA_DEVICES=2,
    )


def test_one_device_of_four_has_a_context(run):
    run(
        """
        x, y = made(64), made(64)
        x + y
        x + torch.ones(16 * MIB, dtype=torch.int32).as_subclass(managed.ManagedTensor)
        managed.budget(CUDA, 256 * MIB)
        more = [made(64) for _ in range(6)]
        C.spill_all()
        same(x, y)
        managed.explain(x)
        managed.stats()
        assert contexts() == [0], contexts()
        """,
        FAKE_CUDA_DEVICES=4,
    )


def test_room_is_what_one_request_can_have(run):
    """Not what a pool of the program's keeps, and not pieces of segments that are in use."""
    run(
        """
        from managed import _cuda
        first = empty(1)
        assert _cuda.room(0) == 1022 * MIB, "a piece of a small segment is in use"
        x = torch.empty(100 * MIB, dtype=torch.uint8, device=CUDA)
        assert _cuda.room(0) == 922 * MIB
        del x
        assert _cuda.room(0) == 1022 * MIB, "torch gives it back before it fails"
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            inside = torch.empty(400 * MIB, dtype=torch.uint8, device=CUDA)
        del inside
        assert _cuda.room(0) == 622 * MIB
        torch.empty(622 * MIB, dtype=torch.uint8, device=CUDA)
        assert not C.is_spilled(first)
        del pool
        assert _cuda.room(0) == 1022 * MIB
        torch.cuda.set_per_process_memory_fraction(0.5)
        assert _cuda.room(0) == 510 * MIB
        """,
        stderr="",
    )


def test_blocks_that_wait_for_streams_are_no_room(run):
    """They are waited for before anything leaves, and not with the allocator's lock held."""
    run(
        """
        from managed import _cuda
        idle = empty(400)
        y = empty(400)
        with torch.cuda.stream(torch.cuda.Stream()):
            y.add_(0)
        there = _cuda.room(0)
        del y
        assert _cuda.room(0) == there
        log()
        large = empty(500)
        assert "wait side" in log()[:2]
        """,
        stderr="",
        FAKE_CUDA_BUSY=1,
    )


def test_pinned_memory_is_counted_and_given_back(run):
    run("""
        tensors = [made(33) for _ in range(3)]
        before = pinned()
        C.spill_all()
        assert C.host_memory()["used"] == 99 * MIB
        assert 99 * MIB <= pinned() - before <= 99 * MIB * 9 / 8
        del tensors
        assert pinned() == before
    """)


def test_an_operator_on_a_side_stream_is_waited_for(run):
    run("""
        x = made(64)
        expected = x.cpu()
        log()
        C.spill_all()
        assert log() == ["wait default", "copy out", "wait default"]
        same(x, expected)
        with torch.cuda.stream(torch.cuda.Stream()):
            x.add_(0)
        log()
        assert C.spill_all() == 1
        assert log()[:3] == ["wait default", "wait side", "copy out"]
    """)


def test_a_block_waits_for_every_stream_before_it_serves_again(run):
    """Torch is told of the streams of managed operators when their handle gives a block up."""
    run(
        """
        def pending():
            stats = torch.cuda.memory_stats()
            return stats["active_bytes.all.current"] - stats["allocated_bytes.all.current"]
        x, y = made(8), made(8)
        del x
        assert pending() == 0, "one stream: in its order"
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            y.add_(0)
        del y
        assert pending() == 8 * MIB
        z = made(8)
        before = pending()
        z.record_stream(torch.cuda.Stream())
        C.spill_all()
        assert pending() == before + 8 * MIB
        """,
        FAKE_CUDA_BUSY=1,
    )


def test_record_stream_reaches_the_block_inside(run):
    run(
        """
        x = made(8)
        log()
        x.record_stream(torch.cuda.Stream())
        del x
        assert log().count("record side") == 1
        """,
        FAKE_CUDA_BUSY=1,
    )


def test_a_foreign_stream_ends_adoption(run):
    run("""
        x = made(8)
        expected = x.cpu()
        with torch.cuda.stream(torch.cuda.ExternalStream(0x77770)):
            x.add_(0)
            later = x.clone()
        log()
        assert C.spill_all() == 1
        assert log()[:3] == ["wait event", "wait default", "copy out"]
        assert C.is_spilled(x) and not C.is_spilled(later)
        assert same(x, expected)
    """)


def test_a_free_after_a_foreign_stream_waits_for_nobody(run):
    """The block serves nobody before the stream is done, also while a graph is recorded."""
    run(
        """
        def pending():
            stats = torch.cuda.memory_stats()
            return stats["active_bytes.all.current"] - stats["allocated_bytes.all.current"]
        x, y, z = made(8), made(8), made(8)
        with torch.cuda.stream(torch.cuda.ExternalStream(0x77770)):
            x.add_(0)
        log()
        del x
        assert not any(line.startswith("wait") for line in log())
        assert pending() == 8 * MIB
        side = torch.cuda.Stream()
        capture(side)
        with torch.cuda.stream(side):
            del y
        capture(None)
        assert not any(line.startswith("wait") for line in log())
        """,
        FAKE_CUDA_BUSY=1,
    )


def test_foreign_streams_that_have_nothing_to_do_share_a_mark(run):
    run("""
        x = made(8)
        for address in range(0x10000, 0x10000 + 16 * 500, 16):
            with torch.cuda.stream(torch.cuda.ExternalStream(address)):
                x.add_(0)
        log()
        assert C.spill_all() == 1
        assert log().count("wait event") == 1
    """)


def test_a_copy_between_devices_runs_on_a_stream_of_each(run):
    """Torch starts it on the stream of the source."""
    run(
        """
        x, y = made(8, "cuda:0"), made(8, "cuda:1")
        with torch.cuda.stream(torch.cuda.Stream("cuda:0")):
            y.copy_(x)
        log()
        assert C.spill_all() == 2
        waits = log()
        assert "wait side" in waits[: waits.index("copy out")], waits
        """,
        FAKE_CUDA_DEVICES=2,
    )


def test_a_kernel_that_has_failed_does_not_end_the_process(run):
    """With two streams the allocator records events when a block dies; the driver refuses them."""
    run("""
        x, y, z = made(8), made(8), made(8)
        with torch.cuda.stream(torch.cuda.Stream()):
            x.add_(0)
        fake.fake_break(1)
        del x
        for use in (lambda: y.cpu(), torch.cuda.synchronize):
            try:
                use()
            except RuntimeError as e:
                assert "CUDA error" in str(e) and "out of memory" not in str(e), e
            else:
                raise AssertionError("nobody noticed")
        del y
        fake.fake_break(0)
        assert z.cpu().shape == z.shape
    """)


def test_a_device_that_fails_while_bytes_leave_is_not_out_of_memory(run):
    run("""
        managed.budget(CUDA, 256 * MIB)
        held = [made(64) for _ in range(3)]
        C.spill_all()
        keep = [made(64) for _ in range(3)]
        fake.fake_break(1)
        try:
            held[0].add_(0)
        except RuntimeError as e:
            assert "CUDA error" in str(e) and not isinstance(e, torch.OutOfMemoryError), e
        else:
            raise AssertionError("nobody noticed")
        fake.fake_break(0)
        held[0].add_(0)
    """)


def test_a_restore_asks_its_device_once(run):
    run(
        """
        x, y = made(8, "cuda:0"), made(8, "cuda:1")
        C.spill_all()
        before = [fake.fake_room_reads(i) for i in range(2)]
        x.add_(0)
        assert not C.is_spilled(x)
        assert [fake.fake_room_reads(i) - before[i] for i in range(2)] == [1, 0]
        """,
        FAKE_CUDA_DEVICES=2,
    )


def test_a_function_of_the_program_is_named_without_the_gil(run):
    """Its owner waits for the allocator's lock, under which the name is asked for."""
    run("""
        import faulthandler, threading
        from torch.utils.checkpoint import checkpoint
        faulthandler.dump_traceback_later(30, exit=True)
        def floats():
            return torch.zeros(25 * MIB, device=CUDA).as_subclass(ManagedTensor).clone()
        idle = [floats() for _ in range(12)]
        x = floats().requires_grad_()
        y = checkpoint(torch.relu, x, use_reentrant=True)
        done = threading.Event()
        def ask():
            while not done.is_set():
                torch.cuda.memory_stats()
        asker = threading.Thread(target=ask)
        asker.start()
        before = managed.stats()["events"]
        y.backward(floats())
        done.set()
        asker.join()
        sites = {e.site for e in managed.explain().since(before) if e.kind == "spill"}
        assert any("CheckpointFunctionBackward" in str(s) for s in sites), sites
    """)


def test_tritons_launcher_borrows_its_arguments(run):
    pytest.importorskip("triton")
    run("""
        import sys
        assert "triton.runtime.jit" not in sys.modules
        import triton
        run = triton.runtime.jit.JITFunction.run
        assert run.__wrapped__.__module__ == "triton.runtime.jit"
    """)


def test_a_recording_stream_is_left_alone(run):
    """Python did not tell of it: nothing is copied, what is away is refused, and nothing breaks."""
    run("""
        x, y = made(64), made(64)
        expected = x.cpu()
        C.spill_all()
        same(y, expected)
        side = torch.cuda.Stream()
        capture(side)
        with torch.cuda.stream(side):
            try:
                x.add_(0)
            except RuntimeError as e:
                assert "a CUDA graph is being recorded on cuda:0" in str(e), e
            else:
                raise AssertionError("it came back in a recording")
        capture(None)
        assert same(x, expected)
    """)


def test_other_allocators_are_left_alone(run):
    run(
        """
        x = made(8)
        assert C.spill_all() == 0
        """,
        PYTORCH_NO_CUDA_MEMORY_CACHING=1,
    )


def test_blocks_of_a_pool_stay(run):
    run("""
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            inside = made(8)
        outside = made(8)
        inside.clone()
        C.spill_all()
        assert C.is_spilled(outside) and not C.is_spilled(inside)
        del inside
    """)


def test_what_another_process_was_sent_stays(run):
    """Torch says at exit that nobody has received it."""
    run(
        """
        x, y = made(8), made(8)
        expected = x.cpu()
        C.spill_all()
        x.untyped_storage()._share_cuda_()
        C.spill_all()
        assert C.is_spilled(y) and not C.is_spilled(x)
        assert same(x, expected)
        """,
        stderr="Producer process has been terminated",
    )


def test_room_is_made_while_memory_history_is_recorded(run):
    run("""
        torch.cuda.memory._record_memory_history(context="all", stacks="python")
        a, b = made(300), made(300)
        expected = [a.cpu(), b.cpu()]
        for _ in range(3):
            C.spill_all()
            assert same(a, expected[0]) and same(b, expected[1])
        large = torch.empty(900 * MIB, dtype=torch.uint8, device=CUDA)
        assert C.is_spilled(a) and C.is_spilled(b)
        assert torch.cuda.memory._snapshot()["device_traces"][0]
    """)


def test_peers_take_what_does_not_fit(run):
    run(
        """
        torch.empty(1, device="cuda:1")
        managed.budget("cuda:0", 256 * MIB)
        tensors = [made(50) for _ in range(12)]
        expected = [t.cpu() for t in tensors]
        for _ in range(2):
            for t, e in zip(tensors, expected):
                assert same(t, e)
        C.spill_all()
        for t, e in zip(tensors, expected):
            assert same(t, e)
        """,
        FAKE_CUDA_DEVICES=2,
    )


def test_four_threads_share_a_full_device(run):
    run("""
        import threading
        failures = []
        def work():
            try:
                mine = [made(60) for _ in range(8)]
                expected = [t.cpu() for t in mine]
                for _ in range(3):
                    for t, e in zip(mine, expected):
                        assert same(t, e)
            except BaseException as e:
                failures.append(e)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads: t.start()
        for t in threads: t.join()
        assert not failures, failures
    """)
