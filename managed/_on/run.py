"""What `managed run` begins in the processes that it starts, as soon as torch is imported.

Its wishes are in the environment variable MANAGED_RUN, as JSON, so that workers have them, too.
"""

from __future__ import annotations

import atexit
import json
import os
from typing import Any

from managed._backend import INERT, C
from managed._budgets import cap_of
from managed._on.on import on
from managed._simulated.spec import plan_devices
from managed.profile import profile
from managed.settings import logger
from managed.sim import read_devices, simulate

__all__ = ["check", "start"]


_UNNAMED = (4, None)  # as many simulated devices if their number is not given; the usual memory


def _simulated(wishes: dict[str, Any]) -> tuple[int, Any] | None:
    """The simulated devices that are asked for, and the memory of each; None: none are."""
    if wishes["devices"]:
        return read_devices(wishes["devices"])
    return _UNNAMED if wishes["preset"] or not wishes["values"] else None


def check(wishes: dict[str, Any]) -> on:
    """What start() will enter; ValueError for wishes that make no sense. Changes nothing."""
    entered = on(budget=wishes["budget"])
    asked = _simulated(wishes)
    if asked or not (INERT or C.get_manager().cuda_devices):
        count, memory = asked or _UNNAMED
        plan = plan_devices(count, memory, wishes["preset"])
        for i, size in enumerate(plan.capacities):
            cap_of(wishes["budget"], size, f"sim:{i}")
    return entered


def start() -> None:
    """Does what MANAGED_RUN says, for as long as the process lives."""
    wishes = json.loads(os.environ["MANAGED_RUN"])
    if INERT:
        return
    entered = check(wishes)
    if asked := _simulated(wishes):
        simulate(*asked, wishes["preset"], values=wishes["values"])
    entered.__enter__()
    # An interpreter that ends asks the manager for nothing any more.
    atexit.register(entered.__exit__, None, None, None)
    if wishes["profile"] and wishes["process"] == os.getpid():  # not in those that it starts
        recorded = profile(wishes["profile"])
        recorded.__enter__()
        atexit.register(recorded.__exit__, None, None, None)
        logger.info("this run's profile goes to %s", wishes["profile"])
