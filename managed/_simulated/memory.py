"""Memory of simulated devices, as torch.sim reports it: bytes, exact at any moment."""

from __future__ import annotations

from typing import Any

import torch

from managed import _sim
from managed._backend import INERT, C
from managed._budgets import budget, parse_bytes

__all__ = [
    "Device",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "empty_cache",
    "get_per_process_memory_fraction",
    "index_of",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "raw_alloc",
    "raw_free",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_capacity",
    "set_per_process_memory_fraction",
]

Device = torch.device | str | int | None


def index_of(device: Device) -> int:
    """Index of "sim:1", 1, a torch.device, or the current device; ValueError if there is none."""
    if device is None:
        return _sim.current_device()
    if isinstance(device, int):
        index = device
    else:
        named = torch.device(device)
        if named.type != "sim":
            raise ValueError(f"torch.sim speaks of simulated devices, not of {named}")
        index = _sim.current_device() if named.index is None else named.index
    if not 0 <= index < _sim.device_count():
        raise ValueError(
            f"there is no device sim:{index}: this process simulates {_sim.device_count()} devices"
        )
    return index


def memory_allocated(device: Device = None) -> int:
    return _sim.report(index_of(device))[1]


def max_memory_allocated(device: Device = None) -> int:
    return _sim.report(index_of(device))[2]


# What is kept of large freed tensors is not counted, so what is reserved is what is allocated.
memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def reset_peak_memory_stats(device: Device = None) -> None:
    _sim.reset_peak(index_of(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    torch.accelerator.memory.reset_accumulated_memory_stats(index_of(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Free bytes and all bytes."""
    capacity, used, _, others, _ = _sim.report(index_of(device))
    return max(0, capacity - used - others), capacity


def memory_stats(device: Device = None) -> dict[str, Any]:
    return dict(torch.accelerator.memory.memory_stats(index_of(device)))


def empty_cache() -> None:
    """Gives the host back what is kept of large freed tensors for the next ones of their size.

    On the simulated devices freed bytes are free at once, kept or not.
    """
    torch.accelerator.memory.empty_cache()


def raw_alloc(bytes: int, device: Device = None) -> int | None:
    """Takes bytes of a device that are no tensor's, as another library does by `cudaMalloc`.

    Nothing leaves for them, and no budget bounds them.

    Returns:
        Their address, on the host, where they can be written if devices have values; None if the
        device has no room.

    Raises:
        ValueError: for a number of bytes below 1.
    """
    if bytes < 1:
        raise ValueError(f"raw_alloc() takes 1 byte or more, not {bytes}")
    return _sim.raw_alloc(index_of(device), bytes)


def raw_free(address: int) -> None:
    """Gives back what `raw_alloc()` gave; ValueError for any other address."""
    _sim.raw_free(address)


def caching_allocator_alloc(size: int, device: Device = None, stream: Any = None) -> int:
    """Takes bytes from the allocator of tensors, for another library: idle tensors leave for them.

    As `torch.cuda.caching_allocator_alloc()`: 0 bytes are at the address 0, and the bytes belong to
    the stream that is named, or to the current one.

    Raises:
        ValueError: for a negative size.
        torch.OutOfMemoryError: if not enough can leave.
    """
    if size < 0:
        raise ValueError(f"caching_allocator_alloc() takes 0 bytes or more, not {size}")
    index = index_of(device)
    if stream is None:
        stream = torch.accelerator.current_stream(f"sim:{index}")
    number: int = getattr(stream, "stream_id", stream)
    return _sim.caching_alloc(index, size, number) or 0


def caching_allocator_delete(mem_ptr: int) -> None:
    """Gives back what `caching_allocator_alloc()` gave; ValueError for any other address."""
    _sim.caching_delete(mem_ptr)


def set_capacity(memory: int | str, device: Device = None) -> None:
    """Changes what a device may hold: bytes, or a string such as `"200MiB"`.

    Below what is in use, nothing is freed and nothing fits.
    """
    _sim.set_capacity(index_of(device), parse_bytes(memory))


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Caps what may be used of a device, as `managed.budget()` does: what is beyond leaves.

    Raises:
        TypeError: for a fraction that is no float.
        ValueError: for one that is not from 0 to 1.
    """
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    index = index_of(device)
    budget(f"sim:{index}", int(fraction * mem_get_info(index)[1]))


def get_per_process_memory_fraction(device: Device = None) -> float:
    index = index_of(device)
    return 1.0 if INERT else C.capacity(f"sim:{index}") / mem_get_info(index)[1]
