"""Modules that the manager has put on one device move to one that has more time, between steps.

A step has ended where an optimizer is about to write its parameters: the gradients are there, and
what leads to them has been used. Whether a module should go is decided in csrc/core/balance.c; this
file knows which modules may, and moves them. What the program has put on a device by name stays.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable

import torch
from torch import nn

from managed import _told, _walk, sim
from managed._backend import C

__all__: list[str] = []

_numbers = itertools.count(1)

#: Of a module, beside its parameters: their gradients and two states of an optimizer.
_WITH_STATE = 4


class _Roaming:
    """A module that may move by itself."""

    def __init__(self, module: nn.Module, found: list[_walk.Slot], manager: C.DeviceManager):
        self.number = next(_numbers)
        self.manager = manager
        self.size = _WITH_STATE * sum(C.nbytes(s.tensor) for s in found)
        self.parts = [id(m) for m in module.modules()]
        self.parameters = {id(s.tensor) for s in found}
        self.module = weakref.ref(module, lambda _: _forget(self))


_roaming: dict[int, _Roaming] = {}  # by the number
_of_part: dict[int, _Roaming] = {}  # by the id of a submodule, the module itself included
_changes = 0


def let_roam(module: nn.Module, manager: C.DeviceManager) -> None:
    """The manager has chosen where the module is: it may choose again, if that is one device."""
    global _changes
    stay([module])
    found = _walk.slots([module])
    where = {s.tensor.device for s in found}
    if len(where) != 1 or not _tells_times(where.pop()):
        return
    roaming = _Roaming(module, found, manager)
    _roaming[roaming.number] = roaming
    _of_part.update(dict.fromkeys(roaming.parts, roaming))
    _changes += 1


def stay(modules: Iterable[nn.Module]) -> None:
    """The program says where these are, or spreads them: they do not move by themselves."""
    for part in itertools.chain.from_iterable(m.modules() for m in modules) if _roaming else ():
        roaming = _of_part.get(id(part))
        if roaming is not None:
            _forget(roaming)


def _forget(roaming: _Roaming) -> None:
    global _changes
    if _roaming.pop(roaming.number, None) is not None:
        for part in roaming.parts:
            _of_part.pop(part, None)
        _changes += 1


def end_step(optimizer: torch.optim.Optimizer) -> None:
    """What the optimizer trains moves if it should."""
    if not _roaming:
        return
    first = next((p for g in optimizer.param_groups for p in g["params"]), None)
    if first is None or not C.is_managed(first) or not _tells_times(first.device):
        return
    number, roaming = _object_of(optimizer)
    manager, size = (roaming.manager, roaming.size) if roaming else (None, 0)
    now = sim.virtual_time("cpu")
    target = C.object_step(manager, number, first.device, size, now)
    if roaming and target is not None:
        _move(roaming, first.device, target)


def _tells_times(device: torch.device) -> bool:
    """Whether it is known how long the operators of such a device take: of CUDA's it is not."""
    return device.type == "sim"


def _object_of(optimizer: torch.optim.Optimizer) -> tuple[int, _Roaming | None]:
    """The number of what it trains, and the module that it is, if that may move."""
    known = optimizer.__dict__.get("_managed_object")
    if known is None or known[0] != _changes:
        trained = {id(p) for g in optimizer.param_groups for p in g["params"]}
        found = (r for r in list(_roaming.values()) if trained <= r.parameters)
        roaming = next(found, None)
        number = roaming.number if roaming else known[1] if known else next(_numbers)
        known = optimizer.__dict__["_managed_object"] = (_changes, number, roaming)
    return known[1:]


def _move(roaming: _Roaming, home: torch.device, target: torch.device) -> None:
    module = roaming.module()
    if module is None:
        return
    found = _walk.slots([module])
    if _is_bound(module) or not all(_may_move(s.tensor, home) for s in found):
        _forget(roaming)
        return
    held = C.reserve(roaming.manager, target, roaming.size)
    if held is None:
        return  # others were quicker: the next step asks again
    try:
        with held:
            _walk.carry([(s, target) for s in found], C.BALANCED)
    except RuntimeError:  # no room, or other threads are inside operators: all is where it was
        C.object_moved(roaming.number, home)  # so that it is tried ever less often
        return
    C.object_moved(roaming.number, target)
    _told.tell_all([module])


def _may_move(tensor: torch.Tensor, home: torch.device) -> bool:
    """Whether it is where the manager has put it, and nobody else would have to be told."""
    if not _walk.markable(tensor) or tensor.device != home or tensor._is_view():
        return False
    return C.placed(tensor) and not C.pinned(tensor) and C.alone([tensor])


def _is_bound(module: nn.Module) -> bool:
    """Whether others know on which device it is: compiled code, and processes that work along."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return True
    return any(m._compiled_call_impl is not None for m in module.modules())
