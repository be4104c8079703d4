"""The switches of torture: what they take, what they do to a block, and that they end with it.

What programs compute under torture is in test_torture.py, what failures do in test_faults.py.
"""

import threading
import time

import pytest
import torch
from support.pressed import runs_pressed  # noqa: F401
from support.pressure import moved, on

import managed
from managed import _C


def left(m):
    return m["spill"] + m["drop"]


def work(x, operators=10):
    for _ in range(operators):
        x = x + 1
    return x


# ---- what leaves before operators


@pytest.mark.not_under_torture("it begins with torture off")
def test_torture_ends_with_the_block():
    x = on(torch.ones(4))
    with managed.debug.torture(), moved() as inside:
        y = work(x)
    with moved() as m:
        work(y)
    assert left(inside) > 5
    assert left(m) == 0


@pytest.mark.not_under_torture("it begins with torture off")
def test_a_block_that_raises_ends_torture_too():
    with pytest.raises(KeyError), managed.debug.torture(hammer=True):
        raise KeyError
    with moved() as m:
        work(on(torch.ones(4)))
    assert left(m) == 0
    assert not hammers()


def test_without_odds_operators_make_nothing_leave():
    with managed.debug.torture(odds=None), moved() as m:
        x = work(on(torch.ones(4)))
    assert left(m) == 0
    _C.spill_all()
    assert _C.is_spilled(x)  # it is small, but it was made inside


def test_the_seed_repeats_what_leaves():
    def events(seed):
        with managed.debug.torture(odds=3, seed=seed), moved() as m:
            work(on(torch.ones(4)), 50)
        return m["spill"], m["drop"], m["restore"]

    assert events(1) == events(1)
    assert len({events(seed) for seed in range(5)}) > 1


def test_blocks_nest():
    """Each gives back what it found: odds, and what fails."""
    x = on(torch.ones(4))
    with managed.debug.torture():
        with managed.debug.torture(odds=None), moved() as still:
            work(x)
        with moved() as again:
            work(x)
    assert left(still) == 0 < left(again)
    x = on(torch.ones(4))
    with managed.debug.torture(odds=None, fail_copy=3) as outer:
        x.cpu()
        with managed.debug.torture(odds=None, fail_copy=range(2, 4)) as inner:
            x.cpu()
            for _ in range(2):
                with pytest.raises(RuntimeError, match="asked for it"):
                    x.cpu()
        x.cpu()
        with pytest.raises(RuntimeError, match="asked for it"):
            x.cpu()
    assert (outer.failures, inner.failures) == (1, 2)
    x.cpu()


# ---- what makes no sense


@pytest.mark.not_under_torture("it begins with torture off")
@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        ({"odds": 0}, ValueError, r"1 \(everything leaves\) or more"),
        ({"odds": -1}, ValueError, r"1 \(everything leaves\) or more"),
        ({"fail_allocation": 0}, ValueError, "fail_allocation counts from 1"),
        ({"fail_copy": -1}, ValueError, "fail_copy counts from 1"),
        ({"fail_copy": range(0)}, ValueError, "fail_copy counts from 1"),
        ({"fail_copy": range(1, 9, 2)}, ValueError, "follow each other"),
        ({"fail_copy": 2**63}, ValueError, "fail_copy counts from 1"),
        ({"fail_copy": "3"}, TypeError, "fail_copy is an int or a range, not '3'"),
        ({"fail_allocation": True}, TypeError, "fail_allocation is an int or a range"),
        ({"fail_allocation": 1, "fail_copy": 1.5}, TypeError, "fail_copy is an int or a range"),
    ],
)
def test_what_makes_no_sense_changes_nothing(asked, error, text):
    x = on(torch.ones(4))
    with pytest.raises(error, match=text), managed.debug.torture(**asked):
        pass
    with moved() as m:
        work(x).cpu()
    assert left(m) == 0


def test_failures_need_simulated_devices(run_python):
    text = run_python(
        "import managed\nwith managed.debug.torture(fail_copy=1): pass",
        status=1,
        stderr="RuntimeError",
    )
    assert "only simulated devices fail when they are asked to" in text


# ---- a thread that makes everything leave


def hammers():
    return [t for t in threading.enumerate() if t.name == "managed hammer"]


def wait_until_spilled(x):
    until = time.monotonic() + 20
    while not _C.is_spilled(x) and time.monotonic() < until:
        time.sleep(0)  # lets the hammer have the interpreter
    assert _C.is_spilled(x)


@pytest.mark.not_under_torture("it begins with torture off")
def test_the_hammer_strikes_while_the_block_runs():
    with managed.debug.torture(odds=None, hammer=True):
        assert len(hammers()) == 1
        x = on(torch.ones(4)) + 1
        wait_until_spilled(x)
        x = work(x, 100)
    assert not hammers()
    assert x.tolist() == [102.0] * 4
    with moved() as m:
        work(x)
    assert left(m) == 0


FORK = """
def hammers():
    return [t.name for t in threading.enumerate() if t is not threading.main_thread()]

x = on(torch.full((MiB,), 3.0))
print(hammers(), flush=True)
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that hangs
        with torch.no_grad():
            assert not hammers() and x.sum().item() == 3.0 * MiB
"""


def test_a_child_forked_under_the_hammer_has_none(run):
    """It leaves the block like its parent."""
    code = (
        """
block = managed.debug.torture(odds=None, hammer=True)
block.__enter__()
END = lambda: block.__exit__(None, None, None)
"""
        + FORK
        + """
        END()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
END()
print(hammers())
del x
whole()
"""
    )
    assert run(code) == "['managed hammer']\n[]\n"


@pytest.mark.parametrize("end", ["", "sys.exit()", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_the_hammer_dies_with_the_process(run, end):
    code = f"""
managed.debug.torture(hammer=True).__enter__()
x = on(torch.ones(256, 256)).requires_grad_()
(x @ x).sum().backward()
print("end", flush=True)
{end}
"""
    assert run(code, status=-15 if "SIGTERM" in end else 0) == "end\n"


# ---- for a whole program


@pytest.mark.parametrize(
    ("value", "hammer"),
    [
        ("all", False),
        ("random:3", False),
        ("random,hammer", True),
        ("hammer", True),
    ],
)
def test_the_environment_variable(run_python, value, hammer):
    out = run_python(
        """
        import threading, time, torch, managed
        x = torch.ones(4).as_subclass(managed.ManagedTensor).to("sim:0") * 2
        for _ in range(20):
            y = x * 3
            z = x.neg() + y
            x = x + 1
        until = time.monotonic() + 20
        while managed.stats()["restore"] <= 3 and time.monotonic() < until:
            x = x + 0
        print(x.tolist(), managed.stats()["restore"] > 3, threading.active_count())
        """,
        MANAGED_SIM="2x16MiB",
        MANAGED_TORTURE=value,
    )
    assert out == f"[22.0, 22.0, 22.0, 22.0] True {1 + hammer}\n"


@pytest.mark.not_under_torture("it begins with torture off")
def test_a_value_that_cannot_be_read(run_python):
    text = run_python("import managed", MANAGED_TORTURE="some", status=1, stderr="MANAGED_TORTURE")
    assert "cannot be used" in text
    for value in ("all:3", "random:x", "1", "all,random:3", "allhammer", ",hammer", "hammer,all"):
        with pytest.raises(ValueError, match='"all,hammer"'):
            managed.debug.torture_from_environment(value)
    with moved() as m:
        work(on(torch.ones(4)))
    assert left(m) == 0 == len(hammers())


def test_under_no_managed_it_does_nothing(run_python):
    out = run_python(
        """
        import threading, torch, managed
        managed.simulate(1, "1MiB")
        x = torch.ones(4, device="sim:0")
        with managed.debug.torture(hammer=True, fail_copy=1) as torture:
            try:
                x.cpu()
            except RuntimeError:
                print("failed")
        print(torture.failures, x.sum().item())
        """,
        NO_MANAGED=1,
        MANAGED_TORTURE="all,hammer",
    )
    assert out == "failed\n1 4.0\n"
