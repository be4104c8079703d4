"""PyTorch's own tests of torch.distributed: collectives, groups, DistributedDataParallel, join."""

import re

import pytest
from support.interpreters import run
from support.paths import TESTS

PARTS = 4
PROGRAM = TESTS / "programs" / "torch_distributed.py"


@pytest.mark.only_simulated("the program simulates its devices")
@pytest.mark.conformance
@pytest.mark.parametrize("part", range(PARTS))
def test_torch_distributed(part):
    done = run([PROGRAM, part, PARTS], options=("-W", "ignore"), timeout=600, own=True)
    ran = re.search(r"^Ran (\d+) tests", done.stderr, re.M)
    skipped = re.search(r"skipped=(\d+)", done.stderr)
    assert done.returncode == 0, done.stderr[-5000:]
    assert int(ran[1]) - int(skipped[1]) >= 40, done.stderr[-500:]  # of 44 to 49
