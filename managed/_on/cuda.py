"""CUDA's names for simulated devices, for threads inside of managed.on().

What operators are told of devices is translated in csrc/torch/door/on.cpp. Here is what Python has
beside operators: torch.cuda, autocast, GradScaler, torch.load. Threads outside get torch's own.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from managed._backend import C
from managed._on import comm
from managed._torch_patches.patches import Patch, Patches

__all__: list[str] = []

# Functions of torch.cuda that torch.sim has under the same name.
_SAME = """
caching_allocator_alloc caching_allocator_delete can_device_access_peer current_device
current_stream default_stream device_count empty_cache
get_device_name get_per_process_memory_fraction get_rng_state get_rng_state_all init initial_seed
is_available is_initialized
manual_seed manual_seed_all max_memory_allocated max_memory_reserved mem_get_info memory_allocated
memory_reserved memory_stats reset_accumulated_memory_stats reset_peak_memory_stats seed seed_all
set_device set_per_process_memory_fraction set_rng_state set_rng_state_all set_stream stream
synchronize
""".split()  # noqa: SIM905

# Of torch, told a device before or beside all operators: switches of autocast, sparse tensors.
_TOLD = """
get_autocast_dtype set_autocast_dtype set_autocast_enabled sparse_coo_tensor
sparse_compressed_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor sparse_bsc_tensor
""".split()  # noqa: SIM905

_CAPABILITY = (8, 0)  #: code that asks takes the paths of a card with tensor cores and bfloat16


def enter() -> None:
    _patches.enter()
    _tell_torch(True)


def leave() -> None:
    _patches.leave()
    _tell_torch(_patches.inside)


def _tell_torch(simulated: bool) -> None:
    C.cuda_is_simulated(simulated, torch.Generator, torch.Event, torch.Stream)


def translated(value: Any) -> Any:
    """A device of CUDA as the simulated one with its number, anything else as it is."""
    if isinstance(value, torch.device):
        if value.type != "cuda":
            return value
        return torch.device("sim") if value.index is None else torch.device("sim", value.index)
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return "sim" + value[4:]
    return value


def _inside(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """Ours for threads inside, with devices translated, and theirs for the others."""

    @functools.wraps(theirs)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not C.get_on():
            return theirs(*args, **kwargs)
        return ours(*map(translated, args), **{k: translated(v) for k, v in kwargs.items()})

    return call


def _translating(theirs: Callable[..., Any], default: str | None = None) -> Callable[..., Any]:
    """Theirs; for threads inside, devices that are given to it are translated."""

    @functools.wraps(theirs)
    def ours(*args: Any, **kwargs: Any) -> Any:
        if default is not None and len(args) < 2 and default not in kwargs:
            kwargs[default] = "sim"
        return theirs(*args, **kwargs)

    return _inside(theirs, ours)


# ---- classes


class _Kind(type):
    """Of a class that makes ours inside and theirs outside; instances of either are instances."""

    ours: type
    theirs: type

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not C.get_on():
            return cls.theirs(*args, **kwargs)
        named = {k: translated(v) for k, v in kwargs.items()}
        return cls.made(*map(translated, args), **named)  # type: ignore[attr-defined]

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (cls.ours, cls.theirs))

    def __subclasscheck__(cls, other: type) -> bool:
        return cls in other.__mro__ or issubclass(other, (cls.ours, cls.theirs))


def _event(enable_timing: bool = False, blocking: bool = False, **rest: Any) -> torch.Event:
    return torch.Event("sim", enable_timing=enable_timing)


def _stream(device: Any = None, priority: int = 0, **rest: Any) -> torch.Stream:
    index = _sim()._sim.current_device() if device is None else _sim().index_of(device)
    return torch.Stream(torch.device("sim", index), priority=priority)


def _class(theirs: type, ours: type, made: Callable[..., Any]) -> type:
    names = {"ours": ours, "theirs": theirs, "made": staticmethod(made), "__doc__": theirs.__doc__}
    return _Kind(theirs.__name__, (), names | {"__module__": theirs.__module__})


# ---- functions that torch.sim has not


def _sim() -> Any:
    from managed._simulated import device as _sim_device

    return _sim_device


class Properties:
    """What torch.sim.get_device_properties() tells, and what programs ask of a card beside it."""

    major, minor = _CAPABILITY
    multi_processor_count = 1
    warp_size = 32
    is_integrated = is_multi_gpu_board = 0

    def __init__(self, told: Any) -> None:
        vars(self).update(told._asdict())

    def __repr__(self) -> str:
        return (
            f"Properties(name={self.name!r}, major={self.major}, minor={self.minor}, "  # type: ignore[attr-defined]
            f"total_memory={self.total_memory // 2**20}MB)"  # type: ignore[attr-defined]
        )


def _properties(device: Any = None) -> Properties:
    return Properties(_sim().get_device_properties(device))


def _capability(device: Any = None) -> tuple[int, int]:
    _sim().index_of(device)
    return _CAPABILITY


def _yes(*args: Any, **kwargs: Any) -> bool:
    return True


def _no(*args: Any, **kwargs: Any) -> bool:
    return False


def _nothing(*args: Any, **kwargs: Any) -> None:
    """There is nothing to do."""


def _profiled(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """The profiler's __init__: torch says it cannot measure CUDA once for each operator."""

    def ours(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.pop("use_cuda", False) or kwargs.get("use_device") == "sim":
            kwargs |= {"use_device": None, "use_cpu": True}
        return theirs(self, *args, **kwargs)

    return _inside(theirs, ours)


_OTHERS: dict[str, Callable[..., Any]] = {
    "get_device_capability": _capability,
    "get_device_properties": _properties,
    "is_bf16_supported": _yes,
    "is_tf32_supported": _yes,
    "is_current_stream_capturing": _no,
    "ipc_collect": _nothing,
    "_lazy_init": _nothing,
}


def _make() -> Iterator[Patch]:
    cuda: Any = torch.cuda
    sim = _sim()
    homes = [
        m for n, m in list(sys.modules.items()) if n == "torch.cuda" or n[:11] == "torch.cuda."
    ]
    replaced = {name: getattr(sim, name) for name in _SAME} | _OTHERS
    new: dict[str, Any] = {n: _inside(getattr(cuda, n), ours) for n, ours in replaced.items()}
    new["Event"] = _class(cuda.Event, torch.Event, _event)
    new["Stream"] = _class(cuda.Stream, torch.Stream, _stream)
    new["device"] = _class(cuda.device, sim.device, sim.device)
    new["device_of"] = _class(cuda.device_of, sim.device_of, sim.device_of)
    for name, value in new.items():
        for home in homes:
            if vars(home).get(name) is getattr(cuda, name):
                yield Patch(home, name, value)
    for name in ("range_push", "range_pop", "mark"):
        yield Patch(cuda.nvtx, name, _inside(getattr(cuda.nvtx, name), _nothing))
    yield Patch(torch, "is_autocast_enabled", _translating_first(torch.is_autocast_enabled))
    for name in _TOLD:
        yield Patch(torch, name, _translating(getattr(torch, name)))
    for owner, name, theirs, ours in comm.functions():
        yield Patch(owner, name, _inside(theirs, ours))
    amp: Any = torch.amp
    yield Patch(amp.autocast, "__init__", _translating(amp.autocast.__init__))
    yield Patch(amp.GradScaler, "__init__", _translating(amp.GradScaler.__init__, "device"))
    profile: Any = torch.autograd.profiler.profile
    yield Patch(profile, "__init__", _profiled(profile.__init__))
    serialization: Any = torch.serialization
    restore = serialization.default_restore_location
    yield Patch(serialization, "default_restore_location", _translating(restore))


def _translating_first(theirs: Callable[..., bool]) -> Callable[..., bool]:
    """torch.is_autocast_enabled, which asks about CUDA when no kind is named."""

    def ours(kind: str = "sim") -> bool:
        return theirs(kind)

    return _inside(theirs, ours)


_patches = Patches(_make)
