"""The `sweep` fixture, the least that a whole sweep must reach, and the table at the end.

CONFORMANCE_SEED (default 0) draws devices and inputs; CONFORMANCE_SAMPLES limits the samples
of an operator in the full sweeps.
"""

import os

import pytest
import torch
from torch.testing._internal import common_utils
from torch.testing._internal.opinfo import core

from .operators import forget_rest
from .tally import as_property, counts, from_property, settle

SEED = int(os.environ.get("CONFORMANCE_SEED", "0"))
SAMPLES = int(os.environ.get("CONFORMANCE_SAMPLES", "12"))

# Operators with `out=`: torch 2.14 has one less.
OUT = 345 if torch.torch_version.TorchVersion(torch.__version__) < "2.14" else 344

# What a whole sweep must reach: a sweep that runs less has lost something. Failures are asserted
# one by one; where an "equal" here is below "ran", the rest is in known.py.
FLOORS = {
    "device float32": {"ran": 672, "forward equal": 671, "backward equal": 538},
    "device complex64": {"ran": 388, "backward equal": 323},
    "device bfloat16": {"ran": 546, "backward equal": 454},
    "device int64": {"ran": 463},
    "device bool": {"ran": 344},
    "scattered float32": {"ran": 672, "forward equal": 672, "backward equal": 536, "mixed": 480},
    "shaken float32": {"ran": 672, "forward equal": 672, "backward equal": 536, "mixed": 480},
    **{
        f"{placement} float32{samples}": {
            "ran": 672,
            "forward equal": 672,
            "backward equal": 536,
        }
        for placement in ("tortured", "tortured and scattered", "tortured by chance")
        for samples in ("", ", two samples")
    },
    "tortured complex64": {"ran": 388, "backward equal": 321},
    "tortured bfloat16": {"ran": 546, "backward equal": 454},
    "tortured int64": {"ran": 463, "forward equal": 463},
    "tortured bool": {"ran": 344, "forward equal": 344},
    "scattered complex64": {"ran": 388, "backward equal": 321, "mixed": 250},
    "scattered bfloat16": {"ran": 546, "backward equal": 454, "mixed": 400},
    "scattered int64": {"ran": 463, "mixed": 300},
    "scattered bool": {"ran": 344, "mixed": 200},
    "scattered modules": {"ran": 224, "forward equal": 224, "samples": 3560, "mixed": 2500},
    "scattered, in place": {"ran": 153, "forward equal": 153, "samples": 448},
    "tortured sparse_coo, two samples": {"ran": 85, "samples": 115},
    "tortured sparse_csr, two samples": {"ran": 78, "samples": 102},
    "scattered, out": {"ran": OUT, "forward equal": OUT, "samples": 2380},
    "scattered, out, one sample": {"ran": OUT, "forward equal": OUT},
    "scattered, lists": {"ran": 92, "forward equal": 92, "samples": 432},
}


@pytest.fixture(autouse=True)
def one_thread():
    """Reductions of the reference must add in the same order as the device under test."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def bytes_are_the_tests_own():
    forget_rest()


@pytest.fixture(autouse=True)
def torch_looks_for_no_test(monkeypatch):
    """Torch's database looks for a unittest in the source of the whole stack, for each sample.

    With transformers imported that takes most of a sweep's time.
    """
    for module in (common_utils, core):
        monkeypatch.setattr(module, "extract_test_fn", lambda: None)


@pytest.fixture(scope="session")
def seed():
    return SEED


@pytest.fixture
def sweep(record_property):
    """Reports a chunk of a sweep and fails for everything that should be equal and is not."""

    def finish(name, outcomes, chunk=0, chunks=1, known=None):
        wrong, expected = settle(outcomes, known or {})
        record_property("sweep", as_property(name, outcomes, chunk, chunks, expected))
        assert outcomes, f"{name}: nothing to run"
        listing = "\n  ".join(wrong)
        assert not wrong, f"{name}, seed {SEED}, {len(wrong)} failures:\n  {listing}"

    return finish


def _sweeps(terminalreporter):
    """Of each sweep: its outcomes, its known exceptions, and whether all chunks have reported."""
    found, expected, seen, wanted = {}, {}, {}, {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, data in getattr(report, "user_properties", ()):
                if name == "sweep" and report.when == "call":
                    key = data["sweep"]
                    found.setdefault(key, []).extend(from_property(data))
                    expected.setdefault(key, []).extend(data["expected"])
                    seen.setdefault(key, set()).add(data["chunk"])
                    wanted[key] = data["chunks"]
    return {
        key: (found[key], expected[key], len(seen[key]) == wanted[key]) for key in sorted(found)
    }


def _below_floor(name, figures):
    floors = FLOORS.get(name, {})
    return [f"{name}: {k} {figures[k]}, at least {n}" for k, n in floors.items() if figures[k] < n]


def pytest_report_header(config):
    return f"conformance: seed {SEED}, up to {SAMPLES} samples an operator in full sweeps"


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):
        return
    for name, (outcomes, _, whole) in _sweeps(reporter).items():
        if whole and _below_floor(name, counts(outcomes)):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    sweeps = _sweeps(terminalreporter)
    if not sweeps:
        return
    terminalreporter.section(f"conformance, seed {SEED}")
    for name, (outcomes, expected, whole) in sweeps.items():
        figures = counts(outcomes)
        row = ", ".join(f"{v} {k}" for k, v in figures.items() if v or "failed" in k)
        terminalreporter.line(f"{name}{'' if whole else ' (in part)'}: {row}")
        for text in expected:
            terminalreporter.line(f"  known: {text}")
        idle = [o for o in outcomes if not o.samples]
        for outcome in idle:
            reason = outcome.refused[0] if outcome.refused else "nothing ran"
            terminalreporter.line(f"  not applicable: {outcome.operator}: {reason[:120]}")
        for text in _below_floor(name, figures) if whole else []:
            terminalreporter.line(f"  too few: {text}", red=True)
