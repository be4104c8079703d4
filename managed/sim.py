"""Simulated devices, and their module `torch.sim`, which type checkers know by this name.

Values are the CPU's, bit by bit; memory is counted to the byte; time is virtual. Child processes
made by fork() keep a copy of the devices and of what they hold, with a clock that starts anew; as
with CUDA, torch refuses a backward pass in such a child once the parent has run one.

The module has the functions of `torch.cuda` that make sense there, with the same meaning:
`device_count`, `set_device`, `synchronize`, `memory_allocated`, `mem_get_info`, `memory_stats`,
`manual_seed`, `Stream`, `Event` and others. `memory_allocated()` counts in the order of the
program, as CUDA's.

An operator lasts as long as the slower of its arithmetic and its bytes, and 2 us more (assumed).
The rate of arithmetic is that of its kind (products, convolutions, all else) and of its numbers
(`float64`, `float32`, `tf32`, `bfloat16`, `float16`, `int8`): the data sheet's peak times the part
that operators reach, which is assumed. `managed/_simulated/presets.py` has sources and parts,
`get_device_properties(0).rates` the result. As on CUDA, convolutions and recurrent layers of
`float32` are rounded to TF32 where the device can, and products if
`torch.set_float32_matmul_precision("high")` or `torch.backends.cuda.matmul.fp32_precision` says so.
That changes the time; values stay the CPU's.

Copies run beside operators when they are `non_blocking` and on another stream. A link carries one
copy at a time in each direction, the one that was ready first. Cards behind one PCIe switch share
its bandwidth, and so do the host and other devices where devices have no links of their own. Bytes
that a program gives up are used until the streams that used them have come that far: another stream
that takes them waits, so at no virtual time a device holds more than it can.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

from managed._backend import C

if TYPE_CHECKING:
    from managed._simulated.device import *  # noqa: F403
    from managed._simulated.presets import Preset
    from managed._simulated.spec import Plan
else:

    def __getattr__(name: str) -> Any:
        """What torch.sim has, under a name that type checkers find."""
        found = getattr(getattr(torch, "sim", None), name, None)
        if found is None:
            raise AttributeError(f"module 'managed.sim' has no attribute {name!r}")
        return found


__all__ = ["simulate", "simulate_from_environment"]

_UNNAMED = "privateuseone"  # what torch calls a backend that has no other name
_FORM = re.compile(r"\s*(\d+)\s*[xX]\s*(\S.*)")


_simulated: Plan | None = None  # what this process has


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
    """Gives this process simulated devices, `sim:0`, `sim:1`, ..., and the module `torch.sim`.

    Once a process (the same call again does nothing), before its first backward pass, and not
    beside another library that uses torch's PrivateUse1 backend. The variable `MANAGED_SIM` does
    the same at import: `4x512MiB`, or `512MiB,512MiB,1GiB` with one size a device.

    Args:
        devices: how many, 1 to 16.
        memory: bytes of each: an int, or a string such as `"300MiB"` (1024s) or `"300MB"` (1000s),
            or a list with one size a device. 512 MiB by default, or what the preset has.
        preset: speeds and links of a real device, for virtual time: `"v100-pcie"`, `"a100-40g"`
            (two linked by NVLink), `"a100-40g-pcie"`, `"a100-80g-sxm"`, `"h100-sxm"`,
            `"h100-pcie"`, `"gh200"`, `"rtx4090"`, `"t4"`, and `"sirocco"`, the machine of StarPU's
            models; or the path of a file that ends in `.json` and describes a device, such as
            `benchmarks/card.py` writes of a real card that it measures.
        values: `False`: storages are addresses, and operators tell only what their results look
            like, so that models of any size take no memory and a step takes no time. What is small
            and made of the host's numbers alone keeps its values. What has a shape that depends on
            unknown values raises `NotImplementedError`.
        repeatable: virtual times are the same in each run, to the nanosecond, for one thread and
            for threads that share no device and no link. Backward passes then run in the thread
            that calls them, and threads do not share the interpreter's lock. The default without
            values.
        host_memory: bytes of the host for what leaves devices. Four fifths of this machine's by
            default; without values the preset's, and any number. `managed.budget("cpu", ...)` may
            lower it.
        unknown: without values, what a program hears that asks for an unknown number: `"zero"`,
            with a warning once at each place, or `"error"`.

    Raises:
        ValueError: for values that make no sense.
        RuntimeError: when other devices are simulated already, when a backward pass has run, and
            when another library owns the backend. Whenever it raises, nothing has changed.
    """
    global _simulated
    from managed._simulated.spec import plan_devices  # what an import need not take

    plan = plan_devices(devices, memory, preset, repeatable, values, host_memory, unknown)
    if plan == _simulated:
        return
    _refuse_other_backend()
    from managed import _sim
    from managed._simulated import groups, no_values, processes

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
    processes.install()
    groups.install()
    C.attach_sim(_sim.bridge, devices)
    if plan.host_memory is not None:
        C.set_host_limit(plan.host_memory)
    if not plan.values:
        no_values.install()
    _simulated = plan
    # Torch notes that they are in use. Until then its accelerator.synchronize() waits for nothing.
    torch.empty(0, device="sim:0")
    C.begin_step(True)  # says what MANAGED_BUDGET asks for and the devices cannot have


def is_simulated() -> bool:
    """Whether this process has simulated devices."""
    return _simulated is not None


def read_devices(text: str, preset: str | None = None) -> tuple[int, str | list[str]]:
    """Devices and memory for simulate() of "4x512MiB", or of "512MiB,1GiB" with one size a device.

    ValueError for anything else.
    """
    from managed._simulated.spec import plan_devices

    match = _FORM.fullmatch(text)
    read = (int(match[1]), match[2]) if match else (text.count(",") + 1, text.split(","))
    plan_devices(read[0], read[1], preset)
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
    from managed._simulated import device as _sim_device

    _sim_device._preset = preset
    rename_privateuse1_backend("sim")
    torch._register_device_module("sim", sys.modules[_sim_device.__name__])  # type: ignore[no-untyped-call]
    generate_methods_for_privateuse1_backend(for_storage=True)
