"""Threads share models and tensors, and no lock of ours is held while Python runs.

Each test has an interpreter of its own, with a watchdog: what hangs shows its threads and fails.
The values that threads get are compared in tests/stress_threads.py, which `make tsan-python` runs
under ThreadSanitizer as well.
"""

from textwrap import dedent

import pytest
from support.paths import PROGRAMS, ROOT, TESTS
from support.slices import slice_of

MODULES = (ROOT / "csrc").rglob("module.c*")
STRESS = (TESTS / "stress_threads.py").read_text()

BEGIN = (PROGRAMS / "threads" / "threads_begin.py").read_text()


@pytest.mark.parametrize("seed", slice_of([0, 1]))
def test_a_crowd_that_shares_everything_gets_what_plain_gives(run_python, seed):
    assert "as plain" in run_python(STRESS, 20, seed)


# ---- leaves that move by themselves

# A leaf on sim:0 that is used on sim:1 alone: it moves there in the second round.
ROUND = """
def round_of(w, x):
    (w * x).sum().backward()
    w.grad = None
    with torch.no_grad():
        w.add_(0)


def moves_after_rounds():
    w, x = on("sim:0", 4).requires_grad_(), on("sim:1", 64, 4)
    for _ in range(4):
        round_of(w, x)
    return w.device.index == 1
"""


# An operator in which a thread stays until it is told to go on.
STAY = """
inside, end = threading.Event(), threading.Event()


@torch.library.custom_op("threads::stay", mutates_args=())
def stay(x: torch.Tensor) -> torch.Tensor:
    inside.set()
    end.wait()
    return x.clone()
"""


def test_a_leaf_moves_only_while_no_other_thread_is_inside_an_operator(run_python):
    code = """
    assert moves_after_rounds()
    used, idle = threading.Event(), threading.Event()
    other = threading.Thread(target=lambda: (on("cpu", 1) + 1, used.set(), idle.wait()))
    other.start()
    used.wait()
    assert moves_after_rounds()  # a thread that is between operators does not matter

    within = threading.Thread(target=lambda: stay(on("cpu", 1)))
    within.start()
    inside.wait()
    assert not moves_after_rounds()
    end.set()
    within.join()
    assert moves_after_rounds()
    idle.set()
    other.join()
    """
    run_python(BEGIN + ROUND + STAY + dedent(code))


def test_a_forked_child_has_one_thread(run_python):
    code = """
    import os

    thread = threading.Thread(target=lambda: stay(on("cpu", 1)))
    thread.start()
    inside.wait()
    child = os.fork()
    if child == 0:
        with torch.no_grad():
            # No backward pass in a child: running statistics move, too.
            mean, var = on("sim:0", 4), on("sim:0", 4)
            for _ in range(4):
                torch.nn.functional.batch_norm(on("sim:1", 8, 4), mean, var, training=True)
        os._exit(0 if mean.device.index == 1 else 1)
    end.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """
    run_python(BEGIN + STAY + dedent(code))


def test_a_child_forked_amid_copies_finds_no_lock_held(run_python):
    run_python(PROGRAMS / "threads" / "fork_amid_copies.py")


def test_no_leaf_moves_under_another_thread(run_python):
    """Four threads train on the same leaves, which two devices need, and each would have them move.

    Their numbers are small and whole, so gradients are the same in whatever order they are added.
    """
    run_python(PROGRAMS / "threads" / "shared_leaves.py")


# ---- no lock is held while Python runs, or while the GIL is waited for


def test_a_storage_that_is_lent_while_another_thread_copies_it(run_python):
    """Whether a lent storage is still in other hands is asked of Python, whose lock others hold."""
    run_python(PROGRAMS / "threads" / "lent_storage.py")


# The probe runs everything of managed in another thread, and then here: a lock of ours that its
# caller holds would be waited for in vain. Another thread's backward pass may need the thread of
# the engine that is in the hook, so that one is run here only.
PROBE = """
MIB, seen, busy = 2**20, [], threading.local()


def everything():
    busy.yes = True
    a, b = on("sim:0", 8).requires_grad_(), on("sim:1", 8)
    a * b + a.detach().cpu()
    a.data.add_(1), b.numel(), b.pin(), b.unpin(), b.untyped_storage(), b.data_ptr()
    torch._foreach_add_([a.detach(), b], 1)
    managed.explain(a), managed.stats(), managed.stats(reset=True)
    with managed.budget("sim:2", "1MiB"):
        device_manager.find_device(10)
    device_manager.send([torch.ones(2)], "sim:1")
    _C.reserve(device_manager, "sim:1", 8), _C.begin_step()
    busy.yes = False


def probe(place, here=True):
    if place in seen or getattr(busy, "yes", False):
        return
    seen.append(place)
    other = threading.Thread(target=everything)
    other.start()
    other.join()
    if here:
        everything()
        with torch.enable_grad():
            (on("sim:0", 8).requires_grad_() * on("sim:1", 8)).sum().backward()


class Dies:
    def __init__(self, place):
        self.place = place

    def __del__(self):
        probe(self.place)
"""

CALLBACKS = {
    "heuristic": """
    def estimate(size):
        probe("heuristic")
        return size

    managed.HEURISTIC_FUNCTION = estimate
    on("cpu", 4).cuda()
    """,
    "sleep": """
    held = [on("sim:2", 5 * MIB // 4)]

    class Clock:
        def sleep(self, seconds):
            held.clear()
            probe("sleep")

    managed.DeviceManager(Clock(), retry_limit=3).send(torch.ones(5 * MIB // 4), "sim:2")
    """,
    "warning": """
    import warnings

    def show(*arguments, **keywords):
        probe("warning")

    managed.COPY_WARNING = 1
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        a, b = on("sim:0", 8), on("sim:1", 8)
        for _ in range(4):
            b.add_(1)
            a + b
        _C.begin_step()
    managed.COPY_WARNING = 0
    """,
    "hook of a tensor": """
    a = on("sim:0", 4).requires_grad_()
    a.register_hook(lambda gradient: probe("hook of a tensor"))
    (a * on("sim:1", 8, 4)).sum().backward()
    """,
    "hook of a copy": """
    a = on("sim:0", 4).requires_grad_()
    y = a * on("sim:1", 8, 4)
    y.grad_fn.next_functions[0][0].register_prehook(lambda gradients: probe("hook of a copy"))
    y.sum().backward()
    """,
    "hook of an accumulator": """
    a = on("sim:0", 4).requires_grad_()
    a.register_post_accumulate_grad_hook(lambda leaf: probe("hook of an accumulator"))
    (a * on("sim:1", 8, 4)).sum().backward()
    """,
    "saved tensor": """
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: (probe("saved tensor", here=False), t)[1], lambda t: t
    ):
        a = on("sim:0", 4).requires_grad_()
        (a * on("sim:1", 8, 4)).sum().backward()
    """,
    "death of a tensor": """
    a = on("sim:0", 4)
    a.mark = Dies("death of a tensor")
    a + on("sim:1", 8, 4)  # a copy of it is kept, and dies with it
    del a
    """,
    "death of a node": """
    a = on("sim:0", 4).requires_grad_()
    y = a * on("sim:1", 8, 4)
    y.grad_fn.next_functions[0][0].metadata["mark"] = Dies("death of a node")
    del a, y
    """,
    "death in the engine": """
    a = on("sim:0", 4).requires_grad_()

    class Doubles(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.mark = Dies("death in the engine")
            return x * 2

        @staticmethod
        def backward(context, gradient):
            return gradient * 2

    Doubles.apply(a * on("sim:1", 8, 4)).sum().backward()
    gc.collect()
    """,
    "weak reference": """
    import weakref

    a = on("sim:0", 4)
    gone = weakref.ref(a, lambda reference: probe("weak reference"))
    a + on("sim:1", 8, 4)
    a.data = torch.ones(3)
    del a
    """,
    "log": """
    import logging

    class Handler(logging.Handler):
        def emit(self, record):
            probe("log")

    logging.getLogger("managed").setLevel(1)
    logging.getLogger("managed").addHandler(Handler())
    device_manager.log("something")
    on("cpu", 4).cuda(disperse=True)
    """,
}


def test_python_runs_with_no_lock_held(run_python):
    """All in one interpreter; a hang shows the line of its callback."""
    code = "\n".join(dedent(callback) for callback in CALLBACKS.values())
    code += f"\nassert seen == {list(CALLBACKS)}, seen\nprint('free')\n"
    assert run_python(BEGIN + PROBE + code) == "free\n"


@pytest.mark.parametrize("source", sorted(MODULES), ids=lambda p: p.parent.name)
def test_no_module_claims_to_do_without_the_gil(source):
    """docs/developer_notes/threads.md says what would have to be shown first."""
    assert "{Py_mod_gil, Py_MOD_GIL_USED}" in source.read_text()
