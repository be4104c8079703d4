"""Bytes that leave a simulated device and come back: what comes after their copies on the clock."""

import pytest
import torch
from support.apart import rand
from support.paths import PROGRAMS
from support.virtual_clock import BYTES, FROM, alone, makes_busy, ran  # noqa: F401

from managed import _C, ManagedTensor
from managed._simulated.presets import DEFAULT

pytestmark = pytest.mark.only_simulated("on the virtual clock")
WAY = BYTES / DEFAULT.host_bytes_per_ns * 1e-9  # s, between a device and the host


def test_bytes_that_are_read_on_the_host_have_left_behind_what_wrote_them(busy):
    work, begin = busy
    x, w = rand(FROM, 1024, 1024), torch.rand(4, 1024, 1024).as_subclass(ManagedTensor).pin()
    worked = alone(FROM, busy)
    start = begin()
    work(FROM)
    _C.spill_all()
    assert (x * w).device.type == "cpu"
    assert _C.is_spilled(x)
    assert torch.sim.virtual_time("cpu") - start > worked + WAY


def test_bytes_come_home_when_they_have_left(busy):
    work, begin = busy
    x = rand(FROM, 1024, 1024)
    worked = alone(FROM, busy)
    start = begin()
    work(FROM)
    _C.spill_all()
    x.add_(1)
    assert ran(FROM, start) > worked + 2 * WAY


def test_a_block_that_came_home_waits_for_the_streams_that_were_in_use(run_python):
    """As CUDA's allocator does with the blocks of managed tensors once there are two streams."""
    others, waited = run_python(PROGRAMS / "home_again_waits.py").split()
    assert float(waited) >= float(others) > 1e-3
