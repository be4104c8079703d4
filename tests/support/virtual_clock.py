"""Devices that are busy for a known virtual time, and how long they take."""

import pytest
import torch

from support.apart import rand

__all__ = ["BYTES", "FROM", "TO", "alone", "makes_busy", "ran"]

FROM, TO = "sim:1", "sim:2"
WORK = 60  # operators that make a device busy
BYTES = 4 * 2**20


@pytest.fixture(name="busy")
def makes_busy():
    """Makes a device busy for some milliseconds; the time when all were idle."""
    scratch = {d: rand(d, 1024, 1024) for d in (FROM, TO)}

    def work(device):
        for _ in range(WORK):
            scratch[device].sin_()

    def begin():
        for d in (FROM, TO):
            torch.sim.synchronize(d)
        return torch.sim.virtual_time("cpu")

    with torch.no_grad():
        yield work, begin


def ran(device, begin):
    """Seconds from then on until all has ended that the current stream was given."""
    event = torch.Event(device)
    event.record(torch.sim.current_stream(device))
    event.synchronize()
    return max(0, torch.sim.virtual_time("cpu") - begin)


def alone(device, busy):
    """Seconds that the work of `busy` takes on a device where nothing else is."""
    work, begin = busy
    start = begin()
    work(device)
    return ran(device, start)
