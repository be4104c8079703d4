"""Threads that use storages while others make them leave.

Each program runs in an interpreter of its own, under a watchdog that shows all threads.
"""

import os

from support.paths import PROGRAMS, TESTS
from support.pressed import runs_pressed  # noqa: F401

STRESS = TESTS / "stress_spill.py"
SECONDS = os.environ.get("MANAGED_STRESS_SECONDS", "4")


def test_threads_train_under_a_budget_and_a_hammer(run):
    run("""
    COUNT = 3
    expected = [train(*model(i)) for i in range(COUNT)]
    models = [model(i) for i in range(COUNT)]
    placed = [(ManagedModule.from_module(net).to("sim:0"), on(x)) for net, x in models]
    found = [None] * COUNT

    def work(i):
        found[i] = train(*placed[i])

    with managed.budget("sim:0", "1MiB"), Hammer():
        together(*(lambda i=i: work(i) for i in range(COUNT)))
        assert torch.sim.max_memory_allocated(0) <= 64 * MiB
    assert found == expected
    assert managed.stats()["restore"] > 100
    del models, placed
    whole()
    """)


def test_threads_infer_on_shared_weights_under_a_hammer(run):
    run("""
    net, x = model(0)
    inputs = [torch.randn(16, 128) for _ in range(4)]
    with torch.no_grad():
        expected = [net(t) for t in inputs]
    there, xs = ManagedModule.from_module(net).to("sim:0"), [on(t) for t in inputs]

    def work(i, mode):
        with mode():
            for _ in range(20):
                assert torch.equal(there(xs[i]).cpu(), expected[i])

    modes = torch.no_grad, torch.inference_mode
    with managed.budget("sim:0", "400KiB"), Hammer():
        together(*(lambda i=i: work(i, modes[i % 2]) for i in range(4)))
    del net, there, xs
    whole()
    """)


NEEDS = """
    parts = [[on(torch.full((2 * MiB // 4,), float(k))) for k in range(4)] for _ in range(2)]

    def work(mine):
        for _ in range(20):
            assert torch.addcmul(mine[1], mine[2], mine[3])[7].item() == 7.0

    with managed.budget("sim:0", "%s"):
        together(*(lambda mine=mine: work(mine) for mine in parts))
    parts.clear()
    whole()
"""


def test_two_operators_that_need_each_others_room(run):
    """Each needs most of the device; neither may fail because of the other."""
    run(NEEDS % "9MiB")


def test_results_that_need_each_others_room(run):
    """The operands of both fit, the results do not."""
    run(NEEDS % "12MiB")


def test_storages_that_are_just_dying_count(run):
    """What another thread was freeing had no handle any more and still its bytes."""
    run(NEEDS.replace("range(20)", "range(1500)") % "9MiB")


def test_copies_that_need_each_others_devices(run):
    """Each device has room for one of them: a source here and a result there at once."""
    run("""
    def work(x, there):
        for _ in range(200):
            assert x.to(there, copy=True)[3].item() == 7.0

    with managed.budget("sim:0", "3MiB"), managed.budget("sim:1", "3MiB"):
        xs = [on(torch.full((2 * MiB // 4,), 7.0), f"sim:{k % 2}") for k in range(4)]
        assert [x[0].item() for x in xs] == [7.0] * 4
        together(lambda: work(xs[0], "sim:1"), lambda: work(xs[1], "sim:0"))
    assert managed.stats()["spill"] > 0
    xs.clear()
    whole()
    """)


TURNS = """
    class Sequence:
        # torch.tensor() reads it while it holds the tensors that stand beside it.
        def __len__(self):
            return 1

        def __getitem__(self, i):
            if i:
                raise IndexError
            inside.set()
            waited.append(done.wait(timeout=0.5))
            return 1.0

    def fill(device):
        # Its room is short from now on.
        xs = [on(torch.full((MiB // 4,), float(k)), device) for k in range(4)]
        with managed.budget(device, "2MiB"):
            assert [x[0].item() for x in xs] == [0.0, 1.0, 2.0, 3.0]
        return xs

    inside, done, waited = threading.Event(), threading.Event(), []
    ours, others = fill("sim:0"), fill("%s")

    def work():
        inside.wait()
        assert (others[1] + 1)[5].item() == 2.0
        done.set()

    together(work, lambda: torch.tensor([[ours[0][0]], Sequence()]))
    assert set(waited) == {%s}, waited
"""


def test_who_has_the_turn_of_a_device_keeps_others_of_it_waiting(run):
    run(TURNS % ("sim:0", "False"))


def test_each_device_has_a_turn_of_its_own(run):
    """The other device is short, too, and does not wait."""
    run(TURNS % ("sim:1", "True"))


def test_errors_in_operators_under_a_hammer(run):
    run(PROGRAMS / "pressed" / "errors_under_a_hammer.py")


def test_a_thread_that_dies_leaves_nothing(run):
    run(PROGRAMS / "pressed" / "thread_that_dies.py")


def test_everything_dies_while_it_is_moved(run):
    run("""
    def work():
        for _ in range(150):
            made = [on(torch.ones(128, 128)) * k for k in range(3)]
            made[0].add_(made[1])
            del made

    with managed.budget("sim:0", "400KiB"), Hammer():
        together(*[work] * 3)
    whole()
    """)


LENT = """
    x = on(torch.full((MiB,), 3.0))
    with managed.debug.torture(odds=None, hammer=True):
        for _ in range(300):
            lent = x.untyped_storage()
            assert not _C.is_spilled(x)
            del lent
            assert x.sum().item() == 3.0 * MiB
    del x
    whole()
"""


def test_storages_that_are_lent_and_given_back_under_a_hammer(run):
    """Whether a program still holds one is asked while the one who asks holds the core's lock."""
    run(LENT)


def test_a_crowd_where_there_is_not_room_for_all(run_python):
    """Minutes of it: `make stress`, or MANAGED_STRESS_SECONDS for this test."""
    out = run_python(STRESS.read_text(), SECONDS, timeout=120 + 2 * float(SECONDS))
    assert [line.split(":")[:2] for line in out.splitlines()] == [
        ["hammer", " as plain"],
        ["budget", " as plain"],
    ]
