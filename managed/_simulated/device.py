"""torch.sim: the module of the simulated devices, after torch.cuda's."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Event, Stream

from managed import _sim
from managed._simulated.current import current_device, device, device_of, set_device
from managed._simulated.memory import (
    Device,
    caching_allocator_alloc,
    caching_allocator_delete,
    empty_cache,
    get_per_process_memory_fraction,
    index_of,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    raw_alloc,
    raw_free,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
    set_capacity,
    set_per_process_memory_fraction,
)
from managed._simulated.presets import DEFAULT, Preset
from managed._simulated.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)

__all__ = [
    "Event",
    "Stream",
    "busy",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "elapsed",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_name",
    "get_device_properties",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
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
    "seed",
    "seed_all",
    "set_capacity",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
    "virtual_time",
]

# torch.utils.checkpoint and torch.random skip a module that does not say so.
_initialized = True
_preset: Preset = DEFAULT


class DeviceProperties(NamedTuple):
    """What torch.cuda.get_device_properties has that makes sense here."""

    name: str
    total_memory: int  #: bytes
    flops_per_second: float  #: what products of float32 reach, as the clock counts them
    bytes_per_second: float  #: the same of memory
    rates: dict[str, dict[str, float]]  #: operations/s of each kind of arithmetic on such numbers


def _is_in_bad_fork() -> bool:
    """Never: a child of fork() has a copy of the devices and of what they hold."""
    return False


def init() -> None:
    """Nothing: the devices are ready when managed.simulate() returns."""


_lazy_init = init


def is_available() -> bool:
    return _sim.device_count() > 0


def is_initialized() -> bool:
    return _sim.device_count() > 0


def device_count() -> int:
    return _sim.device_count()


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    return index_of(device) != index_of(peer_device)


def get_device_name(device: Device = None) -> str:
    return f"{_preset.name} {index_of(device)}"


def get_device_properties(device: Device = None) -> DeviceProperties:
    rates = {k: {n: _preset.rate(k, n) * 1e9 for n in _sim.PRECISIONS} for k in _sim.KINDS}
    return DeviceProperties(
        get_device_name(device),
        _sim.report(index_of(device))[0],
        rates["matrix"]["float32"],
        _preset.bytes_per_ns * _preset.efficiency.memory * 1e9,
        rates,
    )


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def is_bf16_supported() -> bool:
    return True


# ---- time


def synchronize(device: Device = None) -> None:
    """Moves the host's virtual time to the end of the device's work."""
    torch.accelerator.synchronize(index_of(device))


def virtual_time(device: Device = None) -> float:
    """Seconds of virtual time since simulate() at which the device's last operator ends.

    `"cpu"` is the calling thread's time: each thread has one, which moves by what it costs to issue
    an operator (5 us, assumed) and by waiting. A thread that issues to a device does so after all
    that was issued there before. Python's part of issuing (3 us of the 5, assumed) takes place
    while no other thread's does, as under the interpreter's lock; with `repeatable=True` this is
    left out, since which thread comes first depends on the real machine.
    """
    if device == "cpu" or device == torch.device("cpu"):
        return _sim.host_time() * 1e-9
    return _sim.report(index_of(device))[4] * 1e-9


def elapsed() -> float:
    """Virtual seconds since simulate() until all that was issued has ended, in all threads."""
    return _sim.elapsed() * 1e-9


def busy() -> dict[str, float]:
    """Virtual seconds that each device and each link was at work since simulate().

    Keys are "sim:0", ... (what its operators took, added up over its streams) and, of the links
    that were used, "cpu->sim:0", "sim:0->sim:1", ... For the rest of elapsed() they were idle.
    """
    places = range(-1, _sim.device_count())
    names = {i: "cpu" if i < 0 else f"sim:{i}" for i in places}
    times = {names[i]: _sim.busy(i, i) for i in places if i >= 0}
    links = {f"{names[a]}->{names[b]}": _sim.busy(a, b) for a in places for b in places if a != b}
    times |= {link: ns for link, ns in links.items() if ns}
    return {name: ns * 1e-9 for name, ns in times.items()}


def current_stream(device: Device = None) -> Stream:
    return torch.accelerator.current_stream(index_of(device))


def default_stream(device: Device = None) -> Stream:
    named = torch.device("sim", index_of(device))
    return Stream(stream_id=0, device_index=named.index, device_type=current_stream().device_type)


def set_stream(stream: Stream) -> None:
    torch.accelerator.set_stream(stream)


def stream(stream: Stream | None) -> AbstractContextManager[Stream | None]:
    """The stream itself, which is a context manager; one that does nothing for None."""
    return nullcontext() if stream is None else stream
