"""Signals, forks and the end of the program while storages are away or on their way.

Each program runs in an interpreter of its own, under a watchdog that shows all threads.
"""

from textwrap import dedent

import pytest
from support.devices import D0
from support.paths import PROGRAMS
from support.pressed import runs_pressed  # noqa: F401


def test_control_c_amid_restores(run):
    """Signals arrive at any moment of operators that bring their operands home."""
    out = run(PROGRAMS / "pressed" / "interrupted_restores.py")
    assert out == "60\n"


INSIDE = """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    big = on(torch.arange(float(12 * MiB)))
    total, inside, signals, ended = big.sum().item(), [], [], threading.Event()

    def interrupt():
        while not _C.residency(0)["moving"]:
            if ended.is_set():
                return  # it was over before this thread had its turn
        signals.append(1)
        os.kill(os.getpid(), signal.SIGINT)
        inside.append(_C.residency(0)["moving"] > 0)

    def interrupted(work):
        signals.clear()
        ended.clear()
        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            work()
            ended.set()
            thread.join()
            if signals:
                time.sleep(60)
        except KeyboardInterrupt:
            pass
        thread.join()
        busy = [_C.residency(0)[name] for name in ("in_use", "moving", "pinned")]
        assert busy == [0, 0, 0], busy
"""


def test_control_c_in_the_middle_of_a_copy(run):
    """A signal from another thread, while the bytes of an operand are on their way home."""
    out = run(
        INSIDE
        + """
    while sum(inside) < 4:  # a signal may come too late
        _C.spill_all()
        assert _C.is_spilled(big)
        interrupted(lambda: big.add_(0))
        assert not _C.is_spilled(big)
        assert big.sum().item() == total
    del big
    whole()
    print("end")
    """
    )
    assert out == "end\n"


def test_control_c_in_the_middle_of_a_backward_pass(run):
    """What was saved comes home in a thread of the engine."""
    out = run(
        INSIDE
        + """
    w = on(torch.ones(MiB)).requires_grad_()

    def forward():
        w.grad = None
        return (big.view(12, MiB) @ w).sum()

    forward().backward()
    expected = w.grad.cpu()
    while sum(inside) < 2:
        loss = forward()
        _C.spill_all()
        interrupted(loss.backward)
        assert w.grad is None or torch.equal(w.grad.cpu(), expected)
        forward().backward()
        assert torch.equal(w.grad.cpu(), expected)
    del big, loss, w
    whole()
    print("end")
    """
    )
    assert out == "end\n"


def test_a_handler_that_uses_what_is_on_its_way(run):
    out = run(
        INSIDE
        + """
    def handler(number, frame):
        seen.append(big.sum().item())
        _C.spill_all()
        seen.append(big.sum().item())
        raise KeyboardInterrupt

    seen = []
    signal.signal(signal.SIGINT, handler)
    while not signals:
        _C.spill_all()
        interrupted(lambda: big.add_(0))
    assert seen == [total] * 2 and inside
    del big
    whole()
    print("end")
    """
    )
    assert out == "end\n"


def test_an_exception_inside_a_custom_operator(run):
    """Its operands were brought home, and inside it others were: all may leave again."""
    out = run(PROGRAMS / "pressed" / "custom_operator_fails.py")
    assert out == "True None\n"


def test_control_c_while_it_waits_for_room(run):
    """Another thread's operator holds what is needed; the wait ends by itself, then the signal."""
    out = run("""
    a, b = (on(torch.ones(2 * MiB // 4)) for _ in range(2))
    a.pin()
    with managed.budget("sim:0", "3MiB"):
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            for _ in range(10**6):
                try:
                    b.sum()
                except managed.OutOfMemoryError:
                    pass
        except KeyboardInterrupt:
            print("interrupted")
        a.unpin()
        print(b.sum().item() == b.numel(), a.sum().item() == a.numel())
    del a, b
    whole()
    """)
    assert out == "interrupted\nTrue True\n"


def test_a_forked_child_has_what_was_spilled(run):
    out = run(PROGRAMS / "pressed" / "forked_with_spilled.py")
    assert out == "7\n7.0\n"


def test_a_child_forked_amid_spills_does_not_hang(run):
    """Locks are free in the child, nobody waits there, and what this thread alone uses is there.

    Once in eighty forks with so many threads the child's first move woke threads that it lacked,
    and waited for them.
    """
    out = run(PROGRAMS / "pressed" / "fork_amid_spills.py")
    assert out == ""


def test_a_child_forked_amid_a_copy_does_not_hang(run):
    out = run(PROGRAMS / "pressed" / "fork_amid_a_copy.py")
    assert out == ""


EXITS = {
    "globals": "",
    "a cycle": "x.me = x",
    "a graph": "z = (y * y).exp(); z.sum().backward(retain_graph=True); _C.spill_all()",
    "a module": f"net = ManagedModule.from_module(nn.Linear(256, 256)).to('{D0}'); net(x); "
    "_C.spill_all()",
    "under torture": "_C.torture(1, 0, 1, True); z = (y * 2).exp().sum(); z.backward()",
    "in an exit function": "import atexit; atexit.register(lambda: (x.sum(), _C.spill_all()))",
    "in a destructor": dedent("""
        class Late:
            def __del__(self):
                x.sum()
        late = Late()
    """),
    "a hammering daemon": dedent("""
        def hammer():
            while True:
                _C.spill_all()
        threading.Thread(target=hammer, daemon=True).start()
        x.sum()
    """),
    # No operator brings it home: a daemon that waits for the GIL in torch's ends the process.
    "a daemon in the middle of copies": dedent("""
        big = on(torch.ones(8 * 2**20))
        def use():
            while True:
                _C.spill_all()
                big.untyped_storage()
        threading.Thread(target=use, daemon=True).start()
        while not _C.residency(0)["moving"]:
            pass
    """),
    "a budget that stands": f"managed.budget('{D0}', '1MiB'); w = [x + i for i in range(9)]",
}


@pytest.mark.parametrize("left", EXITS)
def test_the_program_ends_with_spilled_tensors(run, left):
    code = """
    x = on(torch.ones(256, 256))
    y = on(torch.ones(256, 256)).requires_grad_()
    assert _C.spill_all() >= 2
    """
    assert run(dedent(code) + EXITS[left] + "\nprint('end')") == "end\n"
