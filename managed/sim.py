"""Simulated devices: `managed.simulate()` gives the process devices "sim:0", "sim:1", ...

Values are the CPU's, bit by bit; memory is counted to the byte; time is virtual. torch.sim is the
device module, with what torch.cuda has; type checkers know it as managed.sim. Child processes made
by fork() keep a copy of the devices and of what they hold, with a clock that starts anew; as with
CUDA, torch refuses a backward pass in such a child once the parent has run one.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

from managed._backend import C
from managed._sim_presets import DEFAULT, PRESETS, Preset, read_preset
from managed.settings import host_bytes, parse_bytes

if TYPE_CHECKING:
    from managed._sim_device import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """What torch.sim has, under a name that type checkers find."""
        found = getattr(getattr(torch, "sim", None), name, None)
        if found is None:
            raise AttributeError(f"module 'managed.sim' has no attribute {name!r}")
        return found


__all__ = ["simulate", "simulate_from_environment"]

MAX_DEVICES = 16
_UNNAMED = "privateuseone"  # what torch calls the backend that nobody has claimed
_FORM = re.compile(r"\s*(\d+)\s*[xX]\s*(\S.*)")


class _Plan(NamedTuple):
    capacities: list[int]
    preset: Preset
    repeatable: bool
    values: bool
    host_memory: int | None  #: bytes; None: what the machine has
    unknown: str


_simulated: _Plan | None = None  # what this process has


def _capacities(devices: int, memory: int | str | Sequence[int | str]) -> list[int]:
    if not isinstance(memory, int | str | Sequence):
        raise TypeError(
            f"managed: memory is bytes, a string such as '512MiB', or a list, not {memory!r}"
        )
    each = [memory] * devices if isinstance(memory, int | str) else list(memory)
    if len(each) != devices:
        raise ValueError(
            f"managed: memory lists {len(each)} sizes for {devices} simulated devices; "
            "give one size for all or one for each"
        )
    sizes = [parse_bytes(size) for size in each]
    for size in sizes:
        if not 0 < size < 2**62:
            raise ValueError(f"managed: a simulated device cannot have {size} bytes of memory")
    return sizes


def _preset(name: str | None) -> Preset:
    if name is None:
        return DEFAULT
    if isinstance(name, str) and name.endswith(".json"):
        return read_preset(name)
    if name not in PRESETS:
        raise ValueError(
            f"managed: there is no preset {name!r}; there are {', '.join(sorted(PRESETS))}, "
            "and files that end in .json"
        )
    return PRESETS[name]


def _plan(
    devices: int,
    memory: int | str | Sequence[int | str] | None,
    preset: str | None,
    repeatable: bool | None = None,
    values: bool = True,
    host_memory: int | str | None = None,
    unknown: str = "zero",
) -> _Plan:
    """Checks everything that can be wrong with the values and changes nothing."""
    if isinstance(devices, bool) or not isinstance(devices, int):
        raise TypeError(f"managed: devices is a number of simulated devices, not {devices!r}")
    if not 1 <= devices <= MAX_DEVICES:
        raise ValueError(f"managed: 1 to {MAX_DEVICES} devices can be simulated, not {devices}")
    if repeatable is not None and not isinstance(repeatable, bool):
        raise TypeError(f"managed: repeatable is True or False, not {repeatable!r}")
    if not isinstance(values, bool):
        raise TypeError(f"managed: values is True or False, not {values!r}")
    if unknown not in ("zero", "error"):
        raise ValueError(f'managed: unknown is "zero" or "error", not {unknown!r}')
    chosen = _preset(preset)
    sizes = _capacities(devices, chosen.memory if memory is None else memory)
    host = _host(host_memory, chosen, values)
    repeats = not values if repeatable is None else repeatable
    return _Plan(sizes, chosen, repeats, values, host, unknown)


def _host(asked: int | str | None, preset: Preset, values: bool) -> int | None:
    """Bytes of the host for what leaves devices; None leaves what it has."""
    if asked is None:
        return None if values else preset.host_memory
    size, there = parse_bytes(asked), host_bytes()
    if values and size > there:
        raise ValueError(
            f"managed: the host has {there} bytes, so copies of values cannot take {size}; "
            "devices without values (values=False) may have a larger one"
        )
    if size >= 2**62:
        raise ValueError(f"managed: a host cannot have {size} bytes of memory")
    return size


def simulate(
    devices: int = 4,
    memory: int | str | Sequence[int | str] | None = None,
    preset: str | None = None,
    *,
    values: bool = True,
    repeatable: bool | None = None,
    host_memory: int | str | None = None,
    unknown: str = "zero",
) -> None:
    """Gives this process simulated devices, "sim:0" and up, once.

    devices: 1 to 16. memory: bytes of each, as an int or with a unit ("512MiB" counts in 1024s,
    "2GB" in 1000s), or a list with one size a device; 512 MiB by default, or what the preset has.
    preset: the speed of a real device ("a100-40g", "h100-sxm", ...), for virtual time: a key of
    PRESETS in managed/_sim_presets.py, which names the sources, or a file in JSON that describes a
    device, as benchmarks/card.py measures one.

    values: without them (False) devices allocate, spill, copy and count time as with them, and
    compute nothing: models of any size take no memory, and a step takes no time. What is small and
    made of the host's numbers alone keeps its values; a number that is not known is 0, and a
    warning tells so once a call site, or an error with unknown="error". What has a shape that
    depends on unknown values raises NotImplementedError. See docs/no_values.md.
    repeatable: virtual times are the same in each run, to the nanosecond, for one thread and for
    threads that share no device and no link: backward passes then run in the thread that calls
    them, and threads do not share the interpreter's lock. Without values this is the default.
    host_memory: bytes of the host that what leaves devices may take, no more than the machine has;
    by default four fifths of that, and without values, where it may be more, the preset's.

    Once more with the same values it does nothing. ValueError for values that make no sense.
    RuntimeError when other devices are simulated already, when a backward pass has run (autograd's
    threads are made then, once), and when another library owns torch's PrivateUse1 backend.
    Whenever it raises, nothing has changed.
    """
    global _simulated
    plan = _plan(devices, memory, preset, repeatable, values, host_memory, unknown)
    if plan == _simulated:
        return
    _refuse_other_backend()
    from managed import _no_values, _sim, _sim_processes

    p = plan.preset
    _sim.create(
        plan.capacities,
        (
            tuple(tuple(p.rate(kind, n) for n in _sim.PRECISIONS) for kind in _sim.KINDS),
            p.bytes_per_ns * p.efficiency.memory,
            p.launch_ns,
            p.issue_ns,
            min(p.python_ns, p.issue_ns),
        ),
        (p.host_latency_ns, p.host_bytes_per_ns),
        (p.peer_latency_ns, p.peer_bytes_per_ns),
        p.devices_per_switch,
        (p.peers_over_host, p.all_bytes_per_ns),
        plan.repeatable,
        plan.values,
        plan.unknown == "error",
    )
    atexit.register(_sim.park)
    _name_backend(p)
    _sim_processes.install()
    C.attach_sim(_sim.bridge, devices)
    if plan.host_memory is not None:
        C.set_host_limit(plan.host_memory)
    if not plan.values:
        _no_values.install()
    _simulated = plan


def is_simulated() -> bool:
    """Whether this process has simulated devices."""
    return _simulated is not None


def read_devices(text: str, preset: str | None = None) -> tuple[int, str | list[str]]:
    """Devices and memory for simulate() of "4x512MiB", or of "512MiB,1GiB" with one size a device.

    ValueError for anything else.
    """
    match = _FORM.fullmatch(text)
    read = (int(match[1]), match[2]) if match else (text.count(",") + 1, text.split(","))
    _plan(read[0], read[1], preset)
    return read


def simulate_from_environment() -> None:
    """Does what MANAGED_SIM says: "4x512MiB", or "512MiB,512MiB,1GiB" with one size a device.

    ValueError when it says something else; nothing when it is empty.
    """
    text = os.environ.get("MANAGED_SIM", "").strip()
    if not text:
        return
    try:
        simulate(*read_devices(text))
    except ValueError as error:
        raise ValueError(f"MANAGED_SIM={text!r} is not like '4x512MiB': {error}") from error


def _refuse_other_backend() -> None:
    name = torch._C._get_privateuse1_backend_name()
    if name not in (_UNNAMED, "sim"):
        raise RuntimeError(
            f"managed: another library has named torch's PrivateUse1 backend {name!r}; torch "
            "allows one a process, so simulated devices cannot be had beside it"
        )


def _name_backend(preset: Preset) -> None:
    from managed import _sim_device

    _sim_device._preset = preset
    rename_privateuse1_backend("sim")
    torch._register_device_module("sim", sys.modules[_sim_device.__name__])  # type: ignore[no-untyped-call]
    generate_methods_for_privateuse1_backend(for_storage=True)
