"""Byte sizes, and budgets: how much of a device may be used, and whether bytes may leave it."""

from __future__ import annotations

import os
import re
import warnings
from operator import index
from typing import Literal, SupportsIndex

import torch

from managed._backend import INERT, C
from managed.errors import OutOfMemoryError

__all__ = ["Budget", "budget", "cap_of", "host_bytes", "parse_bytes", "plan_budgets"]

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

    def __init__(
        self,
        device: str,
        bytes: int,
        old: int,
        spill: bool = True,
        fallback: str | None = None,
        before: tuple[bool, bool] = (True, False),
    ) -> None:
        self.device, self.bytes, self.old = device, bytes, old
        self.spill, self.fallback = spill, fallback
        self._before = before  # whether bytes could leave, and operators run on the host

    def __enter__(self) -> Budget:
        return self

    def __exit__(self, *exception: object) -> None:
        _set_cap(self.device, self.old, *self._before)

    def __repr__(self) -> str:
        forbids = "" if self.spill else ", no spilling"
        allows = ", falls back to the host" if self.fallback else ""
        return (
            f"Budget({self.device!r}, {self.bytes} bytes{forbids}{allows}, "
            f"before: {self.old} bytes)"
        )


def _set_cap(name: str, cap: int, spill: bool, host: bool) -> tuple[bool, bool]:
    """Returns whether bytes could leave before, and operators run on the host."""
    if name != "cpu":
        return C.set_capacity(name, cap, spill, host)
    C.set_host_limit(cap)
    return True, False


def _part_of(size: int | str, name: str) -> float | None:
    """0.8 of "80%", None of what is no part."""
    if not isinstance(size, str) or not size.strip().endswith("%"):
        return None
    try:
        part = float(size.strip()[:-1]) / 100
    except ValueError:
        part = -1.0
    if not 0 <= part <= 1:
        raise ValueError(f"managed: {size!r} is no part of {name}; say '80%' or '300MiB'")
    return part


def cap_of(size: int | str | None, total: int, name: str, what: str = "budget") -> int:
    """Bytes of a size, or of a part of `total` such as "80%"; errors call it `what`."""
    if size is None:
        return total
    part = _part_of(size, name)
    if part is not None:
        return int(part * total)
    cap = parse_bytes(size)
    if isinstance(size, str) and size.strip().isdecimal():
        warnings.warn(
            f"managed: a {what} of {size!r} is {cap} bytes; say {cap} if that is meant, or give a "
            f"unit such as '{size.strip()}MiB' or '{size.strip()}%'",
            stacklevel=3,
        )
    if cap > total:
        raise ValueError(f"managed: {name} has {total} bytes; a {what} of {cap} is more than that")
    return cap


def budget(
    device: str | int | torch.device,
    size: int | str | None,
    *,
    spill: bool = True,
    reserve: int | str | None = None,
    fallback: Literal["host"] | None = None,
) -> Budget:
    """Caps what may be used on one device. What does not fit leaves for another device or the host.

    Placement keeps to it, and so does the allocator; what left comes back when it is used. What is
    there beyond a smaller budget leaves at once, as far as nothing uses or pins it. It stands until
    it is changed; in a `with` statement the old one comes back.

    Args:
        device: an accelerator; `"cpu"` caps what the host keeps of other devices' tensors.
        size: bytes, a string such as `"300MiB"`, or a part of the device such as `"80%"`. `None`
            lifts the cap. A string without a unit, such as `"50"`, is bytes, and warns.
        spill: `False` forbids that tensors whose device it is leave for want of room: a request
            that would need it raises `OutOfMemoryError`, and all tensors stay as they are.
        reserve: what managed leaves free on the device for the program's other needs, in bytes or
            in the forms of `size`: the cap is at most the device's memory less the reserve.
        fallback: `"host"` lets an operator for which the device has no room run on the host, and
            its result stays there, as `hint(on_host=True)` of each tensor of the device would.

    Raises:
        ValueError: for a device that does not exist, for a size or a reserve that cannot be read,
            for more than the device has, for another `fallback`, and for `spill=False` or a
            `fallback` of `"cpu"`.
        TypeError: for a `spill` that is no bool.
        OutOfMemoryError: with `spill=False`, if more than the budget is there already. The old
            budget stands then.
    """
    if INERT:
        return Budget(str(device), 0, 0)
    if not isinstance(spill, bool):
        raise TypeError(f"managed: spill is True or False, not {spill!r}")
    if fallback not in ("host", None):
        raise ValueError(f'managed: fallback is "host" or None, not {fallback!r}')
    if str(device) in ("cpu", "cpu:0"):
        if not spill or fallback:
            wrong = "fallback" if spill else "spill=False"
            raise ValueError(f"managed: tensors do not leave the host; {wrong} takes a device")
        name, total, old, used = "cpu", host_bytes(), C.host_memory()["limit"], 0
    else:
        name, old = C.device_name(device), C.capacity(device)
        there = torch.device(name)
        module = torch.get_device_module(there)
        total = module.mem_get_info(there.index)[1]
    cap = cap_of(size, total, name)
    if reserve is not None:
        cap = min(cap, total - cap_of(reserve, total, name, "reserve"))
    before = _set_cap(name, cap, spill, bool(fallback))
    if not spill and (used := module.memory_allocated(there.index)) > cap:
        _set_cap(name, old, *before)
        raise OutOfMemoryError(
            f"managed: {name} out of memory. It holds {used} bytes, and a budget of {cap} bytes "
            "with spill=False lets none of them leave. Delete tensors, raise the budget, or allow "
            "spilling with spill=True."
        )
    return Budget(name, cap, old, spill, fallback, before)


def plan_budgets(text: str) -> None:
    """Budgets for devices that are not known yet, of a text such as "0=20GiB,1=80%+host".

    Each gets its budget when managed sees it. What it cannot have gives a warning then. "+host" is
    `fallback="host"`.

    Raises:
        ValueError: for anything else, and for a device that is named twice. No device has a budget
            then.
    """
    planned: dict[int, tuple[int, float, bool]] = {}
    for item in text.split(","):
        device, _, size = (part.strip() for part in item.partition("="))
        host = size.endswith("+host")
        size = size.removesuffix("+host")
        if not device.isdecimal() or not size or int(device) in planned:
            raise ValueError("it is a list such as '0=20GiB,1=80%', each device once by its index")
        part = _part_of(size, f"device {device}")
        bytes = cap_of(size, 2**63 - 1, f"device {device}") if part is None else 0
        planned[int(device)] = bytes, -1.0 if part is None else part, host
    for device_index, plan in planned.items():
        C.plan_budget(device_index, *plan)


def host_bytes() -> int:
    """All memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
