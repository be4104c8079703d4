"""What a write costs for the sake of kept copies: nothing where there are none, and no memory."""

import shutil
import subprocess

import pytest
from support.paths import TESTS

BEGIN = """
    import ctypes, os, torch, managed
    from managed import _C as C, ManagedTensor
    managed.simulate(devices=2, memory="256MiB")
    managed.COPY_WARNING = 0
    torch.set_num_threads(1)
    calls = ctypes.PyDLL(os.environ["LD_PRELOAD"])

    def on(t, device):
        return t.as_subclass(ManagedTensor).to(device)

    def counted(f, count):
        \"\"\"The least of some runs: Python allocates now and then.\"\"\"
        least = None
        for _ in range(8):
            before = count()
            f()
            n = count() - before
            least = n if least is None else min(least, n)
        return least
"""


@pytest.fixture
def run(run_python, tmp_path):
    library = tmp_path / "calls.so"
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    source = TESTS / "calls" / "calls.c"
    subprocess.run([shutil.which("gcc"), *flags, source, "-o", library], check=True)
    return lambda code: run_python(BEGIN + code, LD_PRELOAD=library)


@pytest.mark.program
@pytest.mark.not_sanitized("its allocator is another")
def test_a_write_locks_nothing_for_the_copies_of_others(run):
    run("""
    for device in ("cpu", "sim:0"):
        for write in (lambda x: x.zero_(), lambda x: x.logit_()):  # typed, and boxed
            x = on(torch.ones(64), device).clone()  # with no plain alias
            alone = counted(lambda: write(x), calls.calls_of_lock)
            a, b = on(torch.ones(8), "sim:0"), on(torch.ones(4, 8), "sim:1")
            a * b  # a copy of a is kept on sim:1
            assert counted(lambda: write(x), calls.calls_of_lock) == alone, device
            del a, b
    """)


@pytest.mark.program
@pytest.mark.not_sanitized("its allocator is another")
def test_a_write_that_ends_copies_allocates_nothing_for_it(run):
    """A destructor does it, where there is nobody to tell of memory that is missing."""
    run("""
    def cost(parts):
        x, y = on(torch.ones(64, 8), "sim:0"), on(torch.ones(9, 8), "sim:1")
        def step():
            for i in range(parts):
                x[i] * y
            before = calls.calls_of_malloc()
            x.add_(1)
            return calls.calls_of_malloc() - before
        return min(step() for _ in range(8))
    assert cost(60) == cost(1), (cost(60), cost(1))
    """)
