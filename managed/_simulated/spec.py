"""Whether simulated devices can be had as they are asked for; nothing here changes anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from managed._budgets import host_bytes, parse_bytes
from managed._simulated.presets import DEFAULT, PRESETS, Preset, read_preset

__all__ = ["Plan", "find_preset", "plan_devices"]

MAX_DEVICES = 16


class Plan(NamedTuple):
    """What a process asks for, checked."""

    capacities: list[int]
    preset: Preset
    repeatable: bool
    values: bool
    host_memory: int | None  #: bytes; None: what the machine has
    unknown: str


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


def find_preset(name: str | None) -> Preset:
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


def plan_devices(
    devices: int,
    memory: int | str | Sequence[int | str] | None,
    preset: str | None,
    repeatable: bool | None = None,
    values: bool = True,
    host_memory: int | str | None = None,
    unknown: str = "zero",
) -> Plan:
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
    chosen = find_preset(preset)
    sizes = _capacities(devices, chosen.memory if memory is None else memory)
    host = _host(host_memory, chosen, values)
    repeats = not values if repeatable is None else repeatable
    return Plan(sizes, chosen, repeats, values, host, unknown)


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
