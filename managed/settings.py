"""What can be set: environment variables, byte sizes, budgets, frozen blocks and the logger."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import index
from typing import Any, NamedTuple, SupportsIndex

import torch

from managed._backend import INERT, C
from managed.debug import torture_from_environment

__all__ = ["VARIABLES", "Budget", "Variable", "budget", "frozen", "parse_bytes"]

logger = logging.getLogger("managed")
logger.addHandler(logging.NullHandler())

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS |= {f"{_letter}IB": 1024**_power, f"{_letter}B": 1000**_power, _letter: 1024**_power}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(size: int | str) -> int:
    """Bytes of 4096, "4096", "300MiB" (1024s), "300MB" (1000s) or "1.5G" (1024s).

    ValueError for anything else, TypeError for something that is neither an int nor a string.
    """
    if isinstance(size, SupportsIndex) and not isinstance(size, bool):
        if index(size) < 0:
            raise ValueError(f"managed: {size} is no size; it is a number of bytes, 0 or more")
        return index(size)
    if not isinstance(size, str):
        raise TypeError(f"managed: a size is an int or a string such as '300MiB', not {size!r}")
    match = _SIZE.fullmatch(size)
    unit = _UNITS.get(match[2].upper()) if match else None
    if not match or unit is None:
        raise ValueError(f"managed: {size!r} is no size; say '300MiB', '2GB' or a number of bytes")
    from fractions import Fraction  # and decimal with it: 3 ms that an import need not take

    return int(Fraction(match[1]) * unit)


class Budget:
    """A cap that stands; as a context manager it puts the old one back at the end of the block."""

    def __init__(self, device: str, bytes: int, old: int) -> None:
        self.device, self.bytes, self.old = device, bytes, old

    def __enter__(self) -> Budget:
        return self

    def __exit__(self, *exception: object) -> None:
        _set_cap(self.device, self.old)

    def __repr__(self) -> str:
        return f"Budget({self.device!r}, {self.bytes} bytes, before: {self.old} bytes)"


def _set_cap(name: str, cap: int) -> None:
    if name == "cpu":
        C.set_host_limit(cap)
    else:
        C.set_capacity(name, cap)


def cap_of(size: int | str | None, total: int, name: str) -> int:
    """Bytes of a size, or of a part of `total` such as "80%"."""
    if size is None:
        return total
    if isinstance(size, str) and size.strip().endswith("%"):
        try:
            part = float(size.strip()[:-1]) / 100
        except ValueError:
            part = -1.0
        if not 0 <= part <= 1:
            raise ValueError(f"managed: {size!r} is no part of {name}; say '80%' or '300MiB'")
        return int(part * total)
    cap = parse_bytes(size)
    if isinstance(size, str) and size.strip().isdecimal():
        warnings.warn(
            f"managed: a budget of {size!r} is {cap} bytes; say {cap} if that is meant, or give a "
            f"unit such as '{size.strip()}MiB' or '{size.strip()}%'",
            stacklevel=3,
        )
    if cap > total:
        raise ValueError(f"managed: {name} has {total} bytes; a budget of {cap} is more than that")
    return cap


def budget(device: str | int | torch.device, size: int | str | None) -> Budget:
    """Caps what may be used on one device. What does not fit leaves for another device or the host.

    Placement keeps to it, and so does the allocator; what left comes back when it is used. What is
    there beyond a smaller budget leaves at once, as far as nobody uses or pins it. It stands until
    it is changed; in a `with` statement the old one comes back.

    Args:
        device: an accelerator; `"cpu"` caps what the host keeps of other devices' tensors.
        size: bytes, a string such as `"300MiB"`, or a part of the device such as `"80%"`. `None`
            lifts the cap. A string without a unit, such as `"50"`, is bytes, and warns.

    Raises:
        ValueError: for a device that does not exist, for a size that cannot be read, and for more
            than the device has.
    """
    if INERT:
        return Budget(str(device), 0, 0)
    if str(device) in ("cpu", "cpu:0"):
        name, total, old = "cpu", host_bytes(), C.host_memory()["limit"]
    else:
        name, old = C.device_name(device), C.capacity(device)
        there = torch.device(name)
        _, total = torch.get_device_module(there).mem_get_info(there.index)
    cap = cap_of(size, total, name)
    _set_cap(name, cap)
    return Budget(name, cap, old)


def host_bytes() -> int:
    """All memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


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
        from managed.cli._serve import serve

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
