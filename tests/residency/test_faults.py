"""Allocations and copies that fail because a test asks for it: nothing is lost, and nothing hangs.

Each program runs again and again, and each time another allocation or copy of it fails, until
there are no more. Whatever it raised then, what it computes afterwards is what it always computes.
"""

import contextlib
import ctypes
import os
import sys
import types

import pytest
import torch
from support.devices import D0, D1, DEVICE_TYPE, ON_CUDA, device_module, device_name
from support.pressed import BEGIN
from support.pressure import KiB, MiB, mlp, module_on, moved, nothing_left, on, spill  # noqa: F401
from torch import nn

import managed
from managed import _C, ManagedModule

EVER = sys.maxsize - 1
FAILURES = {
    "fail_allocation": torch.OutOfMemoryError,
    "fail_copy": RuntimeError,
}


# What fails on a virtual GPU: a function of CUDA's runtime, with cudaErrorMemoryAllocation or
# cudaErrorInvalidValue.
CALLS = {"fail_allocation": (b"cudaMalloc", 2), "fail_copy": (b"cudaMemcpyAsync", 1)}


@contextlib.contextmanager
def failing_call(kind, n, **how):
    gpu, (name, error) = ctypes.CDLL(os.environ["LD_PRELOAD"].split(":")[0]), CALLS[kind]
    gpu.vgpu_count.restype = ctypes.c_long
    # What the allocator's cache holds needs no call.
    torch.cuda.empty_cache()
    found = types.SimpleNamespace(failures=0)
    with managed.debug.torture(**how):
        before = gpu.vgpu_count(name)
        gpu.vgpu_fail(name, ctypes.c_long(n), error)
        try:
            yield found
        finally:
            found.failures = int(gpu.vgpu_count(name) - before >= n)
            gpu.vgpu_fail(name, ctypes.c_long(0), error)


@pytest.fixture(params=FAILURES)
def fail(request):
    """A function that makes a torture block in which the n-th (or a range) of a kind fails."""

    def of(n, **how):
        if ON_CUDA:
            return failing_call(request.param, n, **how)
        return managed.debug.torture(**{request.param: n}, **how)

    of.error, of.kind = FAILURES[request.param], request.param
    return of


def is_retried(fail):
    """CUDA's allocator gives its cache back and asks once more, and then there is memory.

    What is small finds room in a segment that is there, so that some programs do not ask at all.
    """
    return ON_CUDA and fail.kind == "fail_allocation"


def each_failure(fail, program, check, **how):
    """Runs the program with one failure after the other; returns (raised, unnoticed)."""
    raised = unnoticed = 0
    while True:
        n, caught = raised + unnoticed + 1, None
        with fail(n, **how) as torture:
            try:
                program()
            except fail.error as error:
                caught = str(error)
        assert_idle()
        check()
        if not torture.failures:
            assert caught is None
            return raised, unnoticed
        raised += caught is not None
        unnoticed += caught is None


def assert_idle():
    for i in range(device_module.device_count()):
        found = _C.residency(i)
        assert (found["in_use"], found["moving"]) == (0, 0), found


def assert_values(*pairs):
    for expected, actual in pairs:
        assert torch.equal(expected.detach(), actual.detach().cpu())


# ---- one failure


@pytest.mark.only_simulated("exactly one allocation or copy is made")
def test_an_operator_whose_result_gets_no_memory():
    x = on(torch.arange(9.0))
    with managed.debug.torture(odds=None, fail_allocation=1) as torture:
        with pytest.raises(managed.OutOfMemoryError, match="asked for this to fail") as caught:
            x + 1
        assert " out of memory." in str(caught.value)
        assert (x + 1).sum().item() == 45.0
    assert torture.failures == 1


@pytest.mark.only_simulated("exactly one allocation or copy is made")
def test_an_operator_whose_copy_fails():
    x, y = on(torch.ones(9)), on(torch.full((9,), 2.0), D1)
    with managed.debug.torture(odds=None, fail_copy=2) as torture:
        assert (x + y).sum().item() == 27.0  # with one copy
        y.add_(1)
        with pytest.raises(RuntimeError, match=rf"{DEVICE_TYPE}:\d to {DEVICE_TYPE}:\d failed"):
            x + y
        assert (x + y).sum().item() == 36.0
    assert torture.failures == 1


@pytest.mark.only_simulated("several allocations or copies in a row fail")
def test_bytes_that_cannot_leave_stay():
    x = on(torch.arange(float(MiB)))
    with managed.debug.torture(odds=None, fail_copy=range(1, EVER)) as torture:
        for _ in range(3):
            _C.spill_all()
            assert not _C.is_spilled(x)
    assert torture.failures >= 3
    assert_idle()
    assert x.sum().item() == torch.arange(float(MiB)).sum().item()
    spill(x)


@pytest.mark.only_simulated("several allocations or copies in a row fail")
def test_bytes_that_cannot_come_home_stay_away(fail):
    here = torch.randn(MiB)
    x = on(here)
    spill(x)
    with fail(range(1, 4), odds=None) as torture:
        for _ in range(3):
            with pytest.raises(fail.error):
                x.sum()
            assert _C.is_spilled(x)
            assert_idle()
        assert_values((here.sum(), x.sum()))
    assert torture.failures == 3


def test_one_of_several_operands_cannot_come_home(fail):
    """What the operator had brought home already is let go."""
    here = [torch.randn(64 * KiB) for _ in range(4)]
    there = [on(t) for t in here]
    spill(*there)

    def check():
        assert_values((torch.cat(here), torch.cat(there)))
        spill(*there)

    raised, unnoticed = each_failure(fail, lambda: torch.cat(there), check, odds=None)
    if is_retried(fail):
        assert (raised, unnoticed) == (0, 1)
    else:  # four come home, and the result wants memory of its own
        assert (raised, unnoticed) == ((5, 0) if fail.kind == "fail_allocation" else (4, 0))


@pytest.mark.only_simulated("exactly one allocation or copy is made")
def test_room_that_cannot_be_made_with_the_first_victim(fail):
    """Another leaves in its place, or it is tried again."""
    here = [torch.full((MiB,), float(i)) for i in range(3)]
    there = [on(t) for t in here]
    full = managed.budget(D0, device_module.memory_allocated(0) + 1)
    with full, moved() as m, managed.debug.torture(odds=None, fail_copy=1) as torture:
        more = on(torch.ones(MiB)).add_(1)
    assert torture.failures == 1
    assert m["spill"] >= 1
    assert_values(*zip(here, there, strict=True), (torch.full((MiB,), 2.0), more))


# ---- every failure of a program


def test_every_failure_of_a_chain_of_operators(fail):
    torch.manual_seed(0)
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    x, y = on(a), on(b)

    def chain(p, q):
        r = (p @ q).tanh()
        r[1:3] = p[:2]
        return torch.cat([r.cumsum(0), q.t()]).sort(0).values

    def check():
        assert_values((a, x), (b, y), (chain(a, b), chain(x, y)))

    raised, _ = each_failure(fail, lambda: chain(x, y), check)
    assert raised > 5 or is_retried(fail)


def test_every_failure_of_a_step(fail):
    """After the error the state is loaded again and gives what it always gives."""
    torch.manual_seed(0)
    net, batch = mlp(32, 2), torch.randn(8, 32)
    weights = {k: v.clone() for k, v in net.state_dict().items()}
    there, x = module_on(mlp(32, 2)), on(batch)

    def step(module, data):
        module.zero_grad()
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
        loss = module(data).square().mean()
        loss.backward()
        optimizer.step()
        return [loss, *module.parameters(), *(p.grad for p in module.parameters())]

    expected = [t.detach().clone() for t in step(net, batch)]

    def check():
        there.load_state_dict(weights)
        assert_values(*zip(expected, step(there, x), strict=True))

    raised, _ = each_failure(fail, lambda: step(there, x), check)
    assert raised > 20 or is_retried(fail)


def test_every_failure_over_several_devices(fail):
    """Operands that are brought together, gradients that go home."""
    torch.manual_seed(0)
    here = [torch.randn(8, 8, requires_grad=True) for _ in range(3)]
    there = [on(t, device_name(i)) for i, t in enumerate(here)]

    def compute(a, b, c):
        for t in (a, b, c):
            t.grad = None
        y = (a @ b) * c + torch.stack([a, c]).sum(0)
        y.sum().backward()
        return [y, *(t.grad for t in (a, b, c))]

    expected = [t.detach().clone() for t in compute(*here)]

    def check():
        found = compute(*there)
        assert_values(*zip(expected, found, strict=True))
        assert [t.grad.device for t in there] == [t.device for t in there]

    raised, _ = each_failure(fail, lambda: compute(*there), check, odds=None)
    # Copies of operands are kept, and not made again.
    assert raised >= 2 or is_retried(fail)


def test_every_failure_of_a_module_that_moves(fail):
    """Each parameter is where it was or where it goes, with its values."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)), torch.randn(4, 8)
    expected = net.state_dict()
    there = ManagedModule.from_module(net)

    def check():
        for key, value in there.state_dict().items():
            assert torch.equal(value.cpu(), expected[key].cpu()), key
        there.to("cpu")
        assert_values((net.eval()(x), there.eval()(x)))

    raised, unnoticed = each_failure(fail, lambda: there.cuda(1), check, odds=None)
    assert unnoticed if is_retried(fail) else raised >= 4


def test_every_failure_under_a_budget(fail):
    torch.manual_seed(0)
    size = 10 * MiB if ON_CUDA else 256 * KiB  # CUDA's budgets are kept to a segment
    here = [torch.randn(size // 4) for _ in range(8)]
    there = [on(t) for t in here]

    def program():
        total = there[0] * 1
        for t in there[1:]:
            total += t.add_(0)  # what is written must be copied when it leaves again
        return total

    expected = sum(here[1:], start=here[0] * 1)
    with managed.budget(D0, device_module.memory_allocated(0) - 4 * size):
        raised, unnoticed = each_failure(
            fail, program, lambda: assert_values((expected, program())), odds=None
        )
    assert raised or is_retried(fail)
    assert unnoticed or fail.kind == "fail_allocation"  # another victim, or the same once more


# ---- what fails for ever


@pytest.fixture
def run(run_python):
    # Nothing of this waits for anybody.
    patience = "faulthandler.dump_traceback_later(20, exit=True)\n"
    return lambda code, **how: run_python(BEGIN + patience + code, **how)


def test_devices_that_never_answer_again(run):
    out = run("""
xs = [on(torch.full((MiB // 4,), float(i))) for i in range(4)]
with managed.budget("sim:0", "5MiB"):
    with managed.debug.torture(odds=None, fail_copy=range(1, 2**62)):
        for call in (lambda: on(torch.ones(1)), lambda: [xs[0] + i for i in range(9)]):
            try:
                call()
            except RuntimeError as error:
                print(type(error).__name__)
    kept = [xs[0] + i for i in range(9)]
    print([t[3].item() for t in kept], [t[3].item() for t in xs])
    del kept, call
xs.clear()
whole()
""")
    assert out.splitlines()[:2] == ["RuntimeError", "RuntimeError"], "not out of memory"
    assert out.splitlines()[2] == f"{[float(i) for i in range(9)]} {[0.0, 1.0, 2.0, 3.0]}"


@pytest.mark.not_sanitized("it needs memory itself")
def test_a_host_without_memory(run):
    """Nothing can leave, so there is no room; when the host has memory again, there is."""
    out = run("""
import ctypes, resource
from pathlib import Path
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.mallopt(-3, MiB)  # M_MMAP_THRESHOLD: what is large and freed is the system's
xs = [on(torch.full((5 * MiB,), float(i))) for i in range(3)]
with managed.budget("sim:0", "63MiB"):
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    now, (_, hard) = pages * resource.getpagesize(), resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now, hard))
    while libc.malloc(20 * MiB):  # what the allocator has kept for itself
        pass
    # Enough for the result, which the host's memory stands for. Not enough for a copy beside it,
    # even if two threads end meanwhile and give back their stacks of 8 MiB.
    resource.setrlimit(resource.RLIMIT_AS, (now + 21 * MiB, hard))
    try:
        xs[0] + 1
    except RuntimeError as error:
        print(type(error).__name__, *str(error).splitlines()[0].split(". ")[::2])
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    print((xs[0] + 1)[3].item(), [t[3].item() for t in xs])
xs.clear()
whole()
""")
    text = "managed: the host is out of memory What would have to leave that device could not: "
    text += "the host takes what leaves, and the system has no memory for it."
    assert out.splitlines() == [f"OutOfMemoryError {text}", "1.0 [0.0, 1.0, 2.0]"]
