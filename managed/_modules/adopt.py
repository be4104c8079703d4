"""Makes modules and what they hold managed, or leaves them as they were."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from managed._backend import C
from managed._modules import walk
from managed._modules.classes import class_for

__all__: list[str] = []

_PLACED = "_managed_placed"  # of a lazy parameter: whether the program put it where it is


def mark(tensor: torch.Tensor, undo: ExitStack | None = None) -> None:
    """Makes a module's tensor and its gradient managed; a managed one may lack its history."""
    if not walk.markable(tensor):
        return
    gradient = tensor.grad if tensor.is_leaf else None
    for found in (tensor, gradient):
        if found is None or not walk.markable(found):
            continue
        if undo is not None and not C.is_managed(found):
            undo.callback(C.unmark, found)
        C.mark(found, found is tensor)


def mark_own(module: nn.Module) -> None:
    for slot in walk.own_slots(module):
        mark(slot.tensor)


def place_all(modules: list[nn.Module]) -> None:
    """Marks what the program has just put where it is. Walks again: buffers may be others now."""
    for slot in walk.slots(modules):
        mark(slot.tensor)
        place(slot.tensor)


def placed_names(module: nn.Module) -> set[str]:
    """Of the module's own tensors that the program put where they are."""
    return {s.name for s in walk.own_slots(module) if C.placed(s.tensor)}


def place_own(module: nn.Module, names: set[str]) -> None:
    for slot in walk.own_slots(module):
        if slot.name in names:
            place(slot.tensor)


def say(tensor: torch.Tensor, pinned: bool, advice: int) -> None:
    """What the program had said of the tensor that this one stands for."""
    if pinned:
        C.pin(tensor, True)
    if advice:
        C.advise(tensor, advice)


def place(tensor: torch.Tensor, placed: bool = True) -> None:
    if walk.markable(tensor):
        C.place(tensor, placed)
    elif is_lazy(tensor):  # has nothing to mark yet: it keeps the word until it has a shape
        vars(tensor)[_PLACED] = placed


def adopt(module: nn.Module, base: type[nn.Module], undo: ExitStack) -> None:
    """Marks the module's own tensors and gives it its class, where its class can be subclassed.

    `base` is ManagedModule. A lazy module takes on another class with its first forward pass, and
    is adopted once more then.
    """
    if any(is_lazy(s.tensor) for s in walk.own_slots(module)):
        hooks = module._forward_pre_hooks.values()
        if not any(isinstance(hook, _AdoptWhenReady) for hook in hooks):
            undo.callback(module.register_forward_pre_hook(_AdoptWhenReady(base)).remove)
    for slot in walk.own_slots(module):
        mark(slot.tensor, undo)
    if isinstance(module, (base, torch.jit.ScriptModule)):
        return
    undo.callback(setattr, module, "__class__", type(module))
    module.__class__ = class_for(module, base)


class _AdoptWhenReady:
    """A lazy module's first forward pass has just given its parameters their shapes."""

    def __init__(self, base: type[nn.Module]) -> None:
        self.base = base

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        for key, hook in list(module._forward_pre_hooks.items()):
            if hook is self:
                del module._forward_pre_hooks[key]
        with ExitStack() as undo:
            adopt(module, self.base, undo)
            undo.pop_all()
        for slot in walk.own_slots(module):
            if vars(slot.tensor).pop(_PLACED, False):
                place(slot.tensor)
