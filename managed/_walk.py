"""Walks modules: their tensors in registration order, moving them, and spreading them.

Which device is decided in the core; this file only lists what there is and carries out the answer,
all or nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from managed._backend import C
from managed.errors import PinConflictError
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


class Slot(NamedTuple):
    """A tensor and where a module keeps it."""

    module: nn.Module
    name: str
    tensor: torch.Tensor
    places: list[tuple[nn.Module, str]]  #: every module and name, the first user's first

    def move(self, device: torch.device, reason: int) -> Callable[[], object]:
        """Moves the tensor and returns what undoes it.

        A buffer that is a result or a view is replaced, wherever it is registered: in place, what
        it was made from would stay behind. Parameters keep their objects, so they move in place.
        """
        home, old = self.tensor.device, self.tensor
        if isinstance(old, nn.Parameter) or is_lazy(old) or (old.is_leaf and not old._is_view()):
            C.move(old, device, reason)
            return lambda: C.move(old, home, reason)
        self._put(old.to(device))
        return lambda: self._put(old)

    def _put(self, tensor: torch.Tensor) -> None:
        for module, name in self.places:
            module._buffers[name] = tensor


def own_slots(module: nn.Module) -> Iterator[Slot]:
    """The tensors that the module itself has registered."""
    for kept in (module._parameters, module._buffers):
        for name, tensor in kept.items():
            if tensor is not None:
                yield Slot(module, name, tensor, [(module, name)])


def layers(modules: Iterable[nn.Module]) -> list[list[Slot]]:
    """The tensors of each module that has some of its own, in registration order.

    A tied tensor is counted once and belongs to its first user.
    """
    seen: dict[int, Slot] = {}
    found = []
    for module in _each_once(modules):
        fresh = []
        for slot in own_slots(module):
            first = seen.setdefault(id(slot.tensor), slot)
            if first is slot:
                fresh.append(slot)
            else:
                first.places.extend(slot.places)
        if fresh:
            found.append(fresh)
    return found


def _each_once(roots: Iterable[nn.Module]) -> Iterator[nn.Module]:
    memo: set[nn.Module] = set()
    for root in roots:
        for _, module in root.named_modules(memo):
            yield module


def slots(modules: Iterable[nn.Module]) -> list[Slot]:
    return [slot for layer in layers(modules) for slot in layer]


def markable(tensor: torch.Tensor) -> bool:
    """Whether the tensor has bytes of its own that can be managed."""
    return not (tensor.is_meta or tensor.is_quantized or is_lazy(tensor))


def room(found: Iterable[Slot]) -> int:
    """Bytes to look for, after the heuristic."""
    return sum(C.estimate(C.nbytes(s.tensor)) for s in found)


def check_pins(targets: Iterable[tuple[Slot, torch.device]]) -> None:
    """PinConflictError when a pinned tensor would have to leave its device."""
    for slot, device in targets:
        if slot.tensor.device != device and C.pinned(slot.tensor):
            raise PinConflictError(
                f"managed: {type(slot.module).__name__}.{slot.name} is pinned to "
                f"{slot.tensor.device} and was asked to go to {device}; call unpin() first"
            )


def carry(targets: list[tuple[Slot, torch.device]], reason: int) -> None:
    """Moves every tensor to its device, or none: what moved goes back when one fails."""
    targets = [(s, d) for s, d in targets if s.tensor.device != d]
    check_pins(targets)
    undo: list[Callable[[], object]] = []
    try:
        for slot, device in targets:
            undo.append(slot.move(device, reason))
    except BaseException as error:
        _roll_back(targets, undo, error)
        raise
    for module in {id(s.module): s.module for s, _ in targets}.values():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # cuDNN wants the weights in one block again


def _roll_back(
    targets: list[tuple[Slot, torch.device]],
    undo: list[Callable[[], object]],
    error: BaseException,
) -> None:
    """Takes every step back that can be; `error` names what had to stay where it went."""
    stuck = []
    for (slot, device), step in reversed(list(zip(targets, undo, strict=False))):
        reason = _failure(step)
        if reason is not None:
            stuck.append(f"{type(slot.module).__name__}.{slot.name} stays on {device} ({reason})")
    if stuck:
        _add_note(error, "managed: could not be moved back: " + "; ".join(stuck))


def _failure(step: Callable[[], object]) -> Exception | None:
    try:
        step()
    except Exception as error:
        return error
    return None


def _add_note(error: BaseException, note: str) -> None:
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:  # Python 3.10
        error.args = (f"{error.args[0]}\n{note}" if error.args else note, *error.args[1:])


def gather(found: list[Slot], manager: C.DeviceManager) -> None:
    """All of it on the one device that find_device names, or on the roomiest when it names none."""
    accelerators = {device for device, _ in C.rooms(manager)}
    if all(s.tensor.device in accelerators for s in found):
        return
    with C.admit(manager, room(found), False) as held:
        device, reason = held.device, held.reason
        if device.type == "cpu":
            device, reason = roomiest(found, manager) or device, C.ASKED
        if device in accelerators:
            carry([(s, device) for s in found], reason)


def roomiest(found: list[Slot], manager: C.DeviceManager) -> torch.device | None:
    """Where to bring what no device has room for: what is not in use spills from there."""
    shares = _shares(found, manager)
    if not shares:
        return None
    device = max(shares, key=lambda share: share[1][0])[0]  # the first among equals
    message = "a module of %d bytes fits on no accelerator now: it goes to %s, which spills"
    logger.log(manager.default_level, message, room(found), device)
    return device


def _shares(found: Iterable[Slot], manager: C.DeviceManager) -> list[tuple[torch.device, Share]]:
    """What devices have for these tensors: what they hold on a device now is room for them."""
    held: Counter[torch.device] = Counter()
    for slot in found:
        held[slot.tensor.device] += C.nbytes(slot.tensor)
    return [
        (device, (free + held[device], max(load - held[device], 0), speed))
        for device, (free, load, speed) in C.rooms(manager)
    ]


def plan_layers(sizes: list[int], shares: list[Share]) -> list[int] | None:
    return C.plan_layers(sizes, None, shares)


def alone(found: list[list[Slot]]) -> list[list[Slot]]:
    """Each parameter by itself; the buffers of a module stay with its first parameter."""
    apart = []
    for layer in found:
        parameters = [s for s in layer if isinstance(s.tensor, nn.Parameter)]
        buffers = [s for s in layer if not isinstance(s.tensor, nn.Parameter)]
        apart += [parameters[:1] + buffers, *([s] for s in parameters[1:])]
    return apart


def spread(groups: list[list[Slot]], manager: C.DeviceManager, planner: Planner) -> None:
    """Groups over the manager's devices as the planner says; where no plan fits, devices spill."""
    for _ in range(_PLANS):
        targets = _plan(groups, _shares(chain(*groups), manager), planner)
        with ExitStack() as stack:
            if targets is not None and _reserve(targets, manager, stack):
                carry(targets, C.DISPERSED)
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
        carry(targets, C.DISPERSED)


def _plan(
    groups: list[list[Slot]], shares: list[tuple[torch.device, Share]], planner: Planner
) -> list[tuple[Slot, torch.device]] | None:
    plan = planner([room(layer) for layer in groups], [share for _, share in shares])
    if plan is None:
        return None
    return [(s, shares[i][0]) for layer, i in zip(groups, plan, strict=True) for s in layer]


def _reserve(
    targets: list[tuple[Slot, torch.device]], manager: C.DeviceManager, stack: ExitStack
) -> bool:
    """Holds what will arrive on each device; False when another thread was quicker."""
    arriving: dict[torch.device, list[Slot]] = {}
    for slot, device in targets:
        if slot.tensor.device != device:
            arriving.setdefault(device, []).append(slot)
    for device, found in arriving.items():
        held = C.reserve(manager, device, room(found))
        if held is None:
            return False
        stack.enter_context(held)
    return True
