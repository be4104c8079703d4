"""Places modules: on a device, on the one that the manager picks, or spread over all of them.

Which device is decided in the core; this file asks for it and carries out the answer, all or
nothing. What DeviceManager does with modules it does by these functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import chain

import torch
from torch import nn

from managed._backend import C
from managed._modules import adopt, class_overrides, walk
from managed.settings import logger

__all__: list[str] = []

#: What a device has room for, what is in use there, and how fast it is.
Share = tuple[int, int, float]

#: Bytes of groups and shares of devices -> the device of each group, or None when it does not fit.
Planner = Callable[[list[int], list[Share]], "list[int] | None"]

#: How often a plan is made again when other threads' copies were in its way.
_PLANS = 16

#: Room of a device that may spill, in bytes.
_NO_LIMIT = 2**62


def room_needed(modules: list[nn.Module], device: torch.device | None) -> int:
    """Bytes to look for, after the heuristic, for what is not on `device` yet."""
    return walk.room(s for s in walk.slots(modules) if s.tensor.device != device)


def move(modules: list[nn.Module], device: torch.device, reason: int = C.REQUESTED) -> None:
    """Moves modules in place, all of them or none; their tensors are managed afterwards."""
    walk.carry([(s, device) for s in walk.slots(modules)], reason)
    _arrived(modules)


def pick(module: nn.Module) -> torch.device:
    """The device with room for all of the module, or the one with most room."""
    manager = C.get_manager()
    found = manager.find_device(room_needed([module], None))
    if found.type != "cpu":
        return found
    return _roomiest(walk.slots([module]), manager, room_needed([module], None)) or found


def for_bytes(size: int, manager: C.DeviceManager, disperse: bool) -> torch.device:
    """The device for something new, or the roomiest, which spills, where no device has room."""
    found = manager.find_device(C.estimate(size), disperse)
    return (_roomiest([], manager, size) if found.type == "cpu" else None) or found


def place(module: nn.Module, manager: C.DeviceManager, disperse: bool | str) -> nn.Module:
    """Places a module where the manager says; its tensors are managed afterwards.

    Inside of managed.on() a module that was not told to disperse goes whole to the device with
    least in use, if one has room for it.
    """
    groups = walk.layers([module])
    if disperse == "parameters":
        _spread(_alone(groups), manager, C.plan_spread)
    elif disperse:
        _spread(groups, manager, _plan_layers)
    else:
        _gather(groups, manager, C.get_on() == C.DISPERSING)
    _arrived([module])
    return module


def _arrived(modules: list[nn.Module]) -> None:
    adopt.place_all(modules)
    class_overrides.tell_all(modules)


def _gather(groups: list[list[walk.Slot]], manager: C.DeviceManager, disperse: bool) -> None:
    """All of it on the one device that is found; without one, on the roomiest, or over all.

    What is on accelerators already stays.
    """
    accelerators = {device for device, _ in C.rooms(manager)}
    found = [*chain(*groups)]
    here = {s.tensor.device for s in found}
    if here <= accelerators and not (disperse and len(here) > 1 and _is_free(found)):
        return
    with C.admit(manager, walk.room(found), disperse) as held:
        if held.device in accelerators:
            walk.carry([(s, held.device) for s in found], held.reason)
            return
    device = _roomiest(found, manager, walk.room(found))
    if device in accelerators and not disperse:
        walk.carry([(s, device) for s in found], C.REQUESTED)
    elif accelerators:
        _spread(groups, manager, _plan_layers)


def _is_free(found: list[walk.Slot]) -> bool:
    """Whether the program has put none of them where it is."""
    return not any(walk.markable(s.tensor) and C.placed(s.tensor) for s in found)


def _roomiest(found: list[walk.Slot], manager: C.DeviceManager, size: int) -> torch.device | None:
    """Where to bring what no device has room for: what is not in use spills from there."""
    shares = _shares(found, manager)
    if not shares:
        return None
    device = max(shares, key=lambda share: share[1][0])[0]  # the first among equals
    message = "what has %d bytes fits on no accelerator now: it goes to %s, which spills"
    logger.log(manager.default_level, message, size, device)
    return device


def _shares(
    found: Iterable[walk.Slot], manager: C.DeviceManager
) -> list[tuple[torch.device, Share]]:
    """What devices have for these tensors: what they hold on a device now is room for them."""
    held: Counter[torch.device] = Counter()
    for slot in found:
        held[slot.tensor.device] += C.nbytes(slot.tensor)
    return [
        (device, (free + held[device], max(load - held[device], 0), speed))
        for device, (free, load, speed) in C.rooms(manager)
    ]


def _plan_layers(sizes: list[int], shares: list[Share]) -> list[int] | None:
    return C.plan_layers(sizes, None, shares)


def _alone(found: list[list[walk.Slot]]) -> list[list[walk.Slot]]:
    """Each parameter by itself; the buffers of a module stay with its first parameter."""
    apart = []
    for layer in found:
        parameters = [s for s in layer if isinstance(s.tensor, nn.Parameter)]
        buffers = [s for s in layer if not isinstance(s.tensor, nn.Parameter)]
        apart += [parameters[:1] + buffers, *([s] for s in parameters[1:])]
    return apart


def _spread(groups: list[list[walk.Slot]], manager: C.DeviceManager, planner: Planner) -> None:
    """Groups over the manager's devices as the planner says; where no plan fits, devices spill."""
    for _ in range(_PLANS):
        targets = _plan(groups, _shares(chain(*groups), manager), planner)
        with ExitStack() as stack:
            if targets is not None and _reserve(targets, manager, stack):
                walk.carry(targets, C.DISPERSED)
                return
        if not C.settle(manager):
            break
    # Each takes its part of all that there is room for, and as much too much as the others.
    crowded = [
        (device, (_NO_LIMIT, 0, float(max(free, 1))))
        for device, (free, _, _) in _shares(chain(*groups), manager)
    ]
    targets = _plan(groups, crowded, planner) if crowded else None
    if targets is not None:
        message = "a module in %d groups has no room on its devices now: they spill"
        logger.log(manager.default_level, message, len(groups))
        walk.carry(targets, C.DISPERSED)


def _plan(
    groups: list[list[walk.Slot]], shares: list[tuple[torch.device, Share]], planner: Planner
) -> list[tuple[walk.Slot, torch.device]] | None:
    plan = planner([walk.room(layer) for layer in groups], [share for _, share in shares])
    if plan is None:
        return None
    return [(s, shares[i][0]) for layer, i in zip(groups, plan, strict=True) for s in layer]


def _reserve(
    targets: list[tuple[walk.Slot, torch.device]], manager: C.DeviceManager, stack: ExitStack
) -> bool:
    """Holds what will arrive on each device; False when another thread was quicker."""
    arriving: dict[torch.device, list[walk.Slot]] = {}
    for slot, device in targets:
        if slot.tensor.device != device:
            arriving.setdefault(device, []).append(slot)
    for device, found in arriving.items():
        held = C.reserve(manager, device, walk.room(found))
        if held is None:
            return False
        stack.enter_context(held)
    return True
