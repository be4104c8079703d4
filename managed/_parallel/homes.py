"""Homes of parameters: each on one device, so that all have about as many bytes.

They depend on the model and on the sizes of the devices alone, not on what is in use, so that two
runs sum in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from managed._backend import INERT, C
from managed._modules import adopt, walk
from managed._torch_patches.functions import Homing
from managed._views.words import columns, size

__all__ = ["DeviceShare", "Placement", "check", "chosen", "place", "placement"]

_NO_LIMIT = 2**62  # bytes of room on a device that spills


def chosen(given: Sequence[torch.device | int | str] | None) -> list[torch.device]:
    """The devices on which parts run; ValueError for what names none."""
    if INERT:
        return []
    if given is None:
        return [device for device, _ in C.rooms(C.get_manager())]
    if isinstance(given, (str, torch.device)) or not given:
        raise ValueError(
            f"managed: devices is a list of accelerators, not {given!r}: leave it out for all, or "
            'write devices=["cuda:0", "cuda:1"]'
        )
    found = []
    for one in given:
        device = C.device(one)
        if device is None or device.type == "cpu":
            raise ValueError(f"managed: {one!r} names no accelerator in particular")
        if device in found:
            raise ValueError(f"managed: {device} is named twice")
        found.append(device)
    return found


def check(module: Any) -> None:
    """TypeError or ValueError for what cannot run on several devices."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"managed: DataParallel takes a torch.nn.Module, not {module!r}")
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise TypeError(
                f"managed: {name or 'the module'} is scripted, and its parameters cannot stand on "
                "several devices: give the module as it was before torch.jit"
            )
        if any(is_lazy(slot.tensor) for slot in walk.own_slots(part)):
            raise ValueError(
                f"managed: {name or 'the module'} is lazy and has no shapes yet: call the module "
                "once on a few samples before"
            )


def place(module: nn.Module, devices: Sequence[torch.device]) -> None:
    """Moves the parameters to their homes, and the buffers to the first device.

    A pinned parameter stays. PinConflictError if one is pinned to another device.
    """
    slots = walk.slots([module])
    targets = [(s, devices[0]) for s in slots if not isinstance(s.tensor, nn.Parameter)]
    free = []
    for slot in slots:
        if not isinstance(slot.tensor, nn.Parameter):
            continue
        if C.pinned(slot.tensor):
            home = slot.tensor.device if slot.tensor.device in devices else devices[0]
            targets.append((slot, home))
        else:
            free.append(slot)
    walk.check_pins(targets)
    sizes = [C.nbytes(s.tensor) for s in free]
    room = [(_total(d), 0, 1.0) for d in devices]
    plan = C.plan_spread(sizes, room) or C.plan_spread(sizes, [(_NO_LIMIT, 0, 1.0)] * len(devices))
    targets += [(s, devices[i]) for s, i in zip(free, plan or [], strict=True)]
    walk.carry(targets, C.DISPERSED)
    adopt.place_all([module])
    for slot in slots:
        hooks = slot.tensor._backward_hooks or {}
        for key, hook in list(hooks.items()):  # of before it was managed
            hooks[key] = hook if isinstance(hook, Homing) else Homing(hook)


def _total(device: torch.device) -> int:
    runtime: Any = torch.get_device_module(device.type)
    return int(runtime.mem_get_info(device)[1])


@dataclass(frozen=True)
class DeviceShare:
    """What one device has of a model, in bytes."""

    device: torch.device
    parameters: int  #: tensors
    homes: int  #: of parameters; gradients and the optimizer's state are there, too
    buffers: int
    copies: int  #: of parameters and buffers whose homes are elsewhere


@dataclass(frozen=True)
class Placement:
    """Where the parameters of a model are. `print()` shows a table, a notebook shows it by itself.

    `balance` is what the fullest device has, over an equal share; no placement of whole parameters
    has less than `best`.
    """

    devices: tuple[DeviceShare, ...]
    balance: float
    best: float

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [("device", "parameters", "homes", "buffers", "copies")]
        rows += [
            (str(d.device), f"{d.parameters:,}", size(d.homes), size(d.buffers), size(d.copies))
            for d in self.devices
        ]
        return rows

    def _note(self) -> str:
        return (
            f"the fullest device has {self.balance:.2f} times an equal share; whole parameters "
            f"allow {self.best:.2f}"
        )

    def __str__(self) -> str:
        return "\n".join([*columns(self._rows(), right=range(1, 5)), self._note()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from managed._views import html

        head, *rows = self._rows()
        return html.page(self._note(), html.table(head, rows, right=range(1, 5)))


def placement(module: nn.Module, devices: Sequence[torch.device]) -> Placement:
    """Where the module's tensors are, and what the devices copy of them."""
    count: Counter[torch.device] = Counter()
    homes: Counter[torch.device] = Counter()
    buffers: Counter[torch.device] = Counter()
    largest = 0
    for slot in walk.slots([module]):
        home, nbytes = slot.tensor.device, C.nbytes(slot.tensor)
        if isinstance(slot.tensor, nn.Parameter):
            count[home] += 1
            homes[home] += nbytes
            largest = max(largest, nbytes)
        else:
            buffers[home] += nbytes
    everything = homes.total() + buffers.total()
    shares = []
    for d in dict.fromkeys([*devices, *homes, *buffers]):
        copied = everything - homes[d] - buffers[d] if d in devices else 0
        shares.append(DeviceShare(d, count[d], homes[d], buffers[d], copied))
    equal = homes.total() / max(len(devices), 1) or 1.0
    return Placement(
        tuple(shares), max(homes.values(), default=0) / equal, max(1.0, largest / equal)
    )
