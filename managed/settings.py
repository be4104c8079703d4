"""What can be set: environment variables, frozen blocks and the logger."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from managed._backend import C
from managed._budgets import Budget, budget, parse_bytes, plan_budgets
from managed.debug import torture_from_environment

__all__ = ["VARIABLES", "Budget", "Variable", "budget", "frozen", "parse_bytes"]

logger = logging.getLogger("managed")
logger.addHandler(logging.NullHandler())


@contextmanager
def frozen() -> Iterator[None]:
    """A block, or a decorator, in which nothing moves by itself in this thread.

    Explicit moves (`to`, `cuda`, `send`) still work.

    Raises:
        RuntimeError: by an operator whose operands are on different devices: torch's own error.
    """
    old = C.set_frozen(True)
    try:
        yield
    finally:
        C.set_frozen(old)


def _log_to_stderr(level: str) -> None:
    logger.setLevel(level.upper())
    logger.addHandler(logging.StreamHandler())


def _set_on_manager(name: str, convert: Callable[[str], Any]) -> Callable[[str], None]:
    def apply(value: str) -> None:
        setattr(C.get_manager(), name, convert(value))

    return apply


def _switch(turn: Callable[[bool], object]) -> Callable[[str], None]:
    def apply(value: str) -> None:
        if value not in ("0", "1"):
            raise ValueError("it is 0 or 1")
        turn(value == "1")

    return apply


def _set_copy_warning(value: str) -> None:
    C.set_copy_warning(int(value))


def _serve(on: bool) -> None:
    if on:
        from managed.cli.watch.serve import serve

        serve()


class Variable(NamedTuple):
    """One environment variable, read once when the package is imported."""

    default: str
    meaning: str
    apply: Callable[[str], None] | None = None  #: None: read elsewhere, before or after the rest


#: Every environment variable that managed reads.
VARIABLES = {
    "NO_MANAGED": Variable("0", "1 makes the package inert: nothing is managed"),
    "MANAGED_SIM": Variable("", "simulates devices from the start: 4x512MiB"),
    "MANAGED_RESERVED": Variable(
        "0.1",
        "device_manager.reserved: the fraction of each device to leave free",
        _set_on_manager("reserved", float),
    ),
    "MANAGED_BUDGET": Variable(
        "", "budgets of devices by index, from the start: 0=20GiB,1=80%+host", plan_budgets
    ),
    "MANAGED_RETRY_LIMIT": Variable(
        "10", "device_manager.retry_limit: waits for room", _set_on_manager("retry_limit", int)
    ),
    "MANAGED_WAIT_TIME": Variable(
        "0.1", "device_manager.wait_time: seconds of one wait", _set_on_manager("wait_time", float)
    ),
    "MANAGED_HEURISTIC": Variable(
        "1", "0 starts with USE_HEURISTIC = False", _switch(C.set_use_heuristic)
    ),
    "MANAGED_LEARN": Variable("1", "0 starts with LEARN_STEPS = False", _switch(C.set_learning)),
    "MANAGED_MAPS": Variable("1", "0 starts with KEEP_MAPS = False", _switch(C.keep_maps)),
    "MANAGED_ARENA": Variable("1", "0: CUDA's allocator places what learned steps make by itself"),
    "MANAGED_COPY_WARNING": Variable(
        "16",
        "COPY_WARNING: copies of one tensor to one device in a step that go without a warning",
        _set_copy_warning,
    ),
    "MANAGED_TORTURE": Variable(
        "",
        'for tests: "all" spills what is not in use before each operator, "random:SEED" a third; '
        '"hammer", or "all,hammer", does it all the time',
        torture_from_environment,
    ),
    "MANAGED_RUN": Variable(
        "", "what `managed run` was asked for, in JSON, for the processes that it starts"
    ),
    "MANAGED_TOP": Variable(
        "0",
        "1 lets `managed top` and `managed status` of this user look at the process",
        _switch(_serve),
    ),
    "MANAGED_LOG": Variable("", "a logging level: shows the logger on stderr", _log_to_stderr),
}


def apply_environment() -> None:
    """Gives every variable that is set its effect; a ValueError names the one that is wrong."""
    for name, variable in VARIABLES.items():
        value = os.environ.get(name)
        if not value or not variable.apply:
            continue
        try:
            variable.apply(value)
        except ValueError as error:
            raise ValueError(f"managed: {name}={value!r} cannot be used: {error}") from None
