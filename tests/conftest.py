"""What every test finds: four simulated devices of 256 MiB, printed seeds, fresh interpreters.

A process can simulate devices once and only before its first backward pass, so the whole run
shares one set of devices; a test that needs others runs its own interpreter (`run_python`).
TEST_SEED repeats the random choices of a run. Tests that are marked `not_under_torture` are skipped
with MANAGED_TORTURE set (`make torture`), those marked `not_sanitized` with MANAGED_SANITIZE
(`make asan-python`), each with its reason.
"""

import gc
import itertools
import json
import os
import random
import signal
import statistics
import textwrap
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from support import interpreters
from support.devices import ON_CUDA, device_module, device_name
from support.garbage import collect_all, collect_and_freeze
from support.seed import SEED

import managed

LONG = 10  # seconds; a test of `make test` takes less
INERT = os.environ.get("NO_MANAGED", "0") not in ("", "0")
TORTURE = os.environ.get("MANAGED_TORTURE")
SANITIZED = os.environ.get("MANAGED_SANITIZE")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs
    signal.signal(signal.SIGINT, signal.default_int_handler)


# What `--first` leaves out; pyproject.toml says what each means.
LEFT_TO_CHECK = {"slow", "sweep", "program", "conformance"}


def pytest_addoption(parser):
    told = "leave out what `make test` leaves to `make check`: " + ", ".join(sorted(LEFT_TO_CHECK))
    parser.addoption("--first", action="store_true", help=told)


def pytest_report_header(config):
    told = f"torch {torch.__version__}, CUDA {torch.version.cuda}, TEST_SEED={SEED}"
    return f"{told}, MANAGED_TORTURE={TORTURE}" if TORTURE else told


def _no_gpu_suite():
    """Why tests marked gpu cannot run here, or None."""
    if torch.version.cuda is None:
        return "needs a CUDA device; this torch is built without CUDA"
    if not torch.cuda.is_available():
        return "needs a CUDA device; there is none"
    if not ON_CUDA:
        return "needs a run without simulated devices, which take the place of CUDA's: make gpu"
    return None


def pytest_collection_modifyitems(config, items):
    if config.getoption("--first"):
        left = {i for i in items if LEFT_TO_CHECK & {m.name for m in i.iter_markers()}}
        items[:] = [i for i in items if i not in left]
        config.hook.pytest_deselected(items=left)
    no_gpu = _no_gpu_suite()
    for item in items:
        if no_gpu and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=no_gpu))
        for condition, name, words in (
            (TORTURE, "not_under_torture", "not under torture"),
            (SANITIZED, "not_sanitized", "not with a sanitizer"),
            (ON_CUDA, "only_simulated", "on simulated devices only"),
        ):
            exempt = item.get_closest_marker(name)
            if condition and exempt:
                item.add_marker(pytest.mark.skip(reason=f"{words}: {exempt.args[0]}"))


def pytest_terminal_summary(terminalreporter):
    """Names tests that are long. It fails none: on a loaded machine each is slow."""
    calls, around = {}, defaultdict(float)
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if getattr(report, "when", None) == "call":
            calls[report.nodeid] = report.duration
        elif getattr(report, "when", None) in ("setup", "teardown"):
            around[report.nodeid] += report.duration
    if not calls:
        return
    usual = statistics.median(around[name] for name in calls)
    terminalreporter.write_line(f"set-up and teardown: a median of {1e3 * usual:.1f} ms (< 20)")
    for name, seconds in sorted(calls.items(), key=lambda c: -c[1]):
        if seconds > LONG:
            terminalreporter.write_line(f"{seconds:.1f} s, more than {LONG:.0f}: {name}")


@pytest.fixture(scope="session", autouse=True)
def machine():
    """Simulated devices for the run, unless managed is inert or CUDA's own are asked for."""
    torch.set_num_threads(1)  # sums in one order; the engine's threads take it over when they start
    if ON_CUDA:
        torch.cuda.init()  # its counters of memory refuse a device before
    elif not INERT:
        managed.simulate(devices=4, memory="256MiB")
        torch.sim._sim.start_audit()


@pytest.fixture(autouse=True)
def no_more_than_the_capacity(machine):
    """At no virtual time does a device hold more than it can: RuntimeError."""
    yield
    if not INERT and not ON_CUDA:
        for device in range(torch.sim.device_count()):
            torch.sim._sim.check_audit(device)


def in_use():
    return [device_module.memory_allocated(i) for i in range(device_module.device_count())]


@pytest.fixture(scope="module", autouse=True)
def nothing_left(request, machine):
    """A file of tests leaves its devices as it found them: later tests count what is there.

    A failed test keeps its tensors in its traceback, and is told of by itself.
    """
    if INERT or ON_CUDA:
        yield
        return
    collect_and_freeze()
    before = in_use()
    yield
    few = 4096  # torch itself keeps some small tensors, a constant of a parametrization for example
    for collect in (gc.collect, collect_all):
        collect()
        left = [now - then for now, then in zip(in_use(), before, strict=True)]
        if max(left) <= few:
            return
    assert request.session.testsfailed, f"bytes left on the devices: {left}"


@pytest.fixture(autouse=True)
def garbage_is_the_tests_own(nothing_left):
    """A collection inside of a test walks only what the test has made."""
    collect_and_freeze()


@pytest.fixture(autouse=True)
def seeded():
    """Random numbers start at the printed seed in every test, so a test can be run alone."""
    random.seed(SEED)
    torch.manual_seed(SEED)


@pytest.fixture(autouse=True)
def arguments_are_dropped(request):
    """pytest drops a test's arguments after all fixtures, `nothing_left` too, have ended."""
    yield
    request.node.funcargs.clear()


@pytest.fixture
def not_learning():
    """What leaves is chosen by the policy alone, without plans of what repeats."""
    managed.LEARN_STEPS = False
    yield
    managed.LEARN_STEPS = True


@pytest.fixture
def run_python(tmp_path):
    """Runs a program, a text or the path of a file, in a process of its own; what it printed.

    The process is forked by a server that has imported torch; `own` starts an interpreter, for
    programs whose own import of torch matters.

    The environment is this one's less every MANAGED variable, with the keywords added. Anything on
    standard error fails the test, as does an exit status other than `status`; a program that is
    meant to fail is checked by what is in `stderr`, and then its standard error is returned.
    `input` is given to the program as JSON on its standard input.
    """

    def run(
        code,
        *arguments,
        status=0,
        stderr=None,
        input=None,
        timeout=120,
        cwd=tmp_path,
        own=False,
        **environment,
    ):
        words = [code] if isinstance(code, Path) else ["-c", textwrap.dedent(code)]
        done = interpreters.run(
            [*words, *arguments],
            env=interpreters.environment(**environment),
            cwd=cwd,
            input=json.dumps(input),
            timeout=timeout,
            own=own,
        )
        told = f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == status, told
        if stderr is None:
            assert done.stderr == "", told
            return done.stdout
        assert stderr in done.stderr, told
        return done.stderr

    return run


@pytest.fixture
def level_devices():
    """All devices hold as much, so that what other tests have left sends nothing elsewhere."""
    gc.collect()
    used = in_use()
    ballast = [
        torch.empty(max(used) - n, dtype=torch.uint8, device=device_name(i))
        for i, n in enumerate(used)
    ]
    yield
    ballast.clear()
