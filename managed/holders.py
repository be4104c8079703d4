"""Other allocators on a device: asked for what they keep before a tensor leaves, and given room.

A holder is a library's allocator that keeps what its program has freed. CuPy, RMM, Numba and cuDF
are holders when the program has imported them; `add()` makes one of anything else.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch

from managed import _holders_known
from managed._backend import INERT, C
from managed._budgets import cap_of, parse_bytes
from managed._views.words import columns

__all__ = ["Holder", "Holding", "Report", "add", "capsule", "give_back", "remove", "report"]


_OURS = ("torch", "torch's pools")  # what reports call torch's allocator


class Holder(Protocol):
    """What `add()` takes. Devices are strings such as `"cuda:0"`, sizes are bytes."""

    def __gpu_memory_report__(self, device: str) -> dict[str, int]:
        """`live`: what its users use on the device. `cached`: what it keeps beside, and could give.

        They are numbers of bytes, 0 or more.
        """

    def __gpu_memory_reclaim__(self, device: str, nbytes: int) -> int:
        """Gives at least `nbytes` of what is cached back to the driver, as far as it can.

        Returns how many bytes those were. It is called in a thread of managed's, and may not wait
        for the thread that needs the memory.
        """


def add(holder: Holder | object, *, name: str | None = None, keep: int | str = 0) -> None:
    """From now on the holder is asked for what it keeps when a device is short of room.

    It is asked before a tensor leaves, for no more than is missing, and the one with most cached
    bytes first. A holder that gives nothing is left alone for the next 2, 4, 8, ... shortages. What
    counts is what comes free on the device. One that raises an exception, or does not answer within
    a second, is as if it were not there. An object is referred to weakly, where that is possible.

    Args:
        holder: an object with `__gpu_memory_report__` and `__gpu_memory_reclaim__`, or a capsule
            `"managed.memory_holder"` of a library in C (`managed/include/managed_holder.h`).
        name: how tables call it; its type's name unless given.
        keep: bytes, or a string such as `"300MiB"`, that it may keep cached on each device.

    Raises:
        TypeError: for an object without one of the methods, which is named.
        ValueError: for one that was added before, for a name that is taken, and for a capsule of
            another version of the header.
    """
    if name in (*_OURS, "others"):
        raise ValueError(f"managed: {name!r} is a row of reports already; choose another name")
    if not INERT:
        C.holders_add(holder, name, parse_bytes(keep))


def remove(holder: Holder | object) -> None:
    """Undoes `add()`; ValueError for what is no holder. A dead holder needs no `remove()`."""
    if not INERT:
        C.holders_remove(holder)


def capsule() -> Any:
    """A capsule by which a library in C asks managed for memory, without Python's lock.

    It holds a `struct managed_holder` (`managed/include/managed_holder.h`), whose `reclaim` is
    `give_back()`.
    """
    if INERT:
        raise RuntimeError("managed: there is nothing to ask under NO_MANAGED=1")
    return C.holders_capsule()


class Holding(NamedTuple):
    """What one holder has of a device, in bytes; `asks` counts how often it was asked."""

    live: int
    cached: int
    asked: int = 0
    given: int = 0
    asks: int = 0


class Report(dict[str, Holding]):
    """What holds a device's memory: a dict by name that prints as a table."""

    def __init__(self, device: str, rows: dict[str, Holding]) -> None:
        super().__init__(rows)
        self.device = device

    def __repr__(self) -> str:
        head = (f"MiB of {self.device}", *Holding._fields[:4])
        rows = [(name, *(f"{n / 2**20:.1f}" for n in row[:4])) for name, row in self.items()]
        return "\n".join(columns([head, *rows], right=range(1, len(head))))


def report(device: str | int | torch.device) -> Report:
    """What holds the memory of a device: torch, each holder, and `"others"`.

    Others are what is left: contexts, other processes, and libraries that nothing is known of.

    Raises:
        ValueError: for a device that does not exist.
    """
    if INERT:
        return Report(str(device), {})
    _holders_known.find()
    name = C.device_name(device)
    there = torch.device(name)
    module: Any = torch.get_device_module(there)
    free, total = module.mem_get_info(there.index)
    live, reserved = module.memory_allocated(there.index), module.memory_reserved(there.index)
    rows = {"torch": Holding(live, reserved - live)} | _pools(there, live, reserved)
    rows |= {row[0]: Holding(*row[1:]) for row in C.holders_read(name, True)}
    known = sum(row.live + row.cached for row in rows.values())
    return Report(name, rows | {"others": Holding(max(0, total - free - known), 0)})


def _pools(device: torch.device, live: int, reserved: int) -> dict[str, Holding]:
    """What pools of the program's own, such as graphs', have of torch's bytes, and torch the rest.

    Their cached bytes serve nothing else.
    """
    if device.type != "cuda":
        return {}
    snapshot: Any = torch.cuda.memory_snapshot
    apart = [
        segment
        for segment in snapshot()
        if segment["device"] == device.index and segment["segment_pool_id"] != (0, 0)
    ]
    if not apart:
        return {}
    used = sum(segment["allocated_size"] for segment in apart)
    cached = sum(segment["total_size"] for segment in apart) - used
    rest = Holding(live - used, reserved - live - cached)
    return dict(zip(_OURS, (rest, Holding(used, cached)), strict=True))


def give_back(device: str | int | torch.device, size: int | str | None) -> int:
    """Makes room on a device for a library that knows nothing of managed.

    What torch's allocator keeps goes back to the driver, and if that is not enough, tensors that
    are not in use leave. They come back when they are used. No holder is asked.

    Args:
        device: an accelerator.
        size: bytes, a string such as `"4GiB"`, or a part of the device such as `"80%"`; `None`
            means all that can leave.

    Returns:
        How many bytes more the driver has now: less than was asked for, and perhaps 0, if what is
        there is in use or pinned, or a graph is recorded; more if the allocator's cache was larger.

    Raises:
        ValueError: for a device that does not exist, for a size that cannot be read, and for more
            than the device has.
    """
    if INERT:
        return 0
    name = C.device_name(device)
    there = torch.device(name)
    _, total = torch.get_device_module(there).mem_get_info(there.index)
    return C.give_back(name, cap_of(size, total, name))
