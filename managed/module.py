"""ManagedModule: a torch.nn.Module whose tensors are managed and move without losing identity.

Parameters and buffers are marked when they arrive, submodules become managed modules themselves.
Moving happens in place: Parameter objects, ties, hooks and what an optimizer holds stay.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from managed import _walk
from managed._backend import INERT, C
from managed._classes import managed_class

__all__ = ["ManagedModule"]

Self = TypeVar("Self", bound="ManagedModule")
Device = torch.device | int | str


class ManagedModule(nn.Module):
    """Inherit from it, or turn a module into one with `ManagedModule.from_module(model)`."""

    @staticmethod
    def from_module(model: nn.Module) -> ManagedModule:
        """Makes `model` and its submodules managed, in place, and returns it; again does nothing.

        `isinstance(model, OriginalClass)` stays true; state_dict keys, hooks and ties stay. A lazy
        module becomes managed after its first forward pass. TypeError when it is no module.
        """
        if not isinstance(model, nn.Module):
            raise TypeError(f"managed: from_module takes a torch.nn.Module, not {model!r}")
        with ExitStack() as undo:  # a tensor that cannot be managed leaves the model as it was
            for module in model.modules():
                _adopt(module, undo)
            undo.pop_all()
        return cast(ManagedModule, model)

    # ---- what arrives later

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, (torch.Tensor, nn.Module)):
            self._managed_arrival(name)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        super().register_parameter(name, param)
        self._managed_arrival(name)

    def register_buffer(
        self, name: str, tensor: torch.Tensor | None, persistent: bool = True
    ) -> None:
        super().register_buffer(name, tensor, persistent)
        self._managed_arrival(name)

    def add_module(self, name: str, module: nn.Module | None) -> None:
        super().add_module(name, module)
        self._managed_arrival(name)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        _mark_own(self)

    def _managed_arrival(self, name: str) -> None:
        """Marks what is now registered under `name`; a registration hook may have replaced it."""
        module = self._modules.get(name)
        if module is not None:
            ManagedModule.from_module(module)
        for kept in (self._parameters, self._buffers):
            tensor = kept.get(name)
            if tensor is not None:
                _mark(tensor)

    # ---- moving

    def cuda(self: Self, device: Device | None = None, disperse: bool = False) -> Self:
        """Moves all parameters and buffers to an accelerator, in place.

        With `device`, there. Without, to the device that find_device names for the bytes of all of
        it, or with `disperse=True` contiguous layers over all devices; what is on accelerators
        already stays unless `disperse` asks for a new plan, and what fits nowhere stays where it
        is. PinConflictError when a pinned tensor would have to move.
        """
        if INERT:
            return super().cuda() if torch.cuda.is_available() else self
        target = None if device is None else C.device(device)
        if target is None:
            _place(self, C.get_manager(), disperse)
        elif disperse or target.type == "cpu":
            raise ValueError(
                f"managed: disperse=True chooses devices; it cannot go with {device!r}"
                if disperse
                else f"managed: cuda({device!r}) names no accelerator; use cpu()"
            )
        else:
            _move([self], target)
        return self

    def cpu(self: Self) -> Self:
        """Moves all parameters and buffers to the host, in place."""
        if INERT:
            return super().cpu()
        _move([self], torch.device("cpu"))
        return self

    def to(self: Self, *args: Any, **kwargs: Any) -> Self:
        """As torch.nn.Module.to, but in place on every device; "cuda" lets the manager pick."""
        if INERT:
            return super().to(*args, **kwargs)
        device, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **kwargs)
        if device is None or device.type == "meta":
            return super().to(*args, **kwargs)
        if device.type == "cpu":
            self.cpu()
        else:
            self.cuda(device)
        if dtype is not None or layout is not None:
            rest: Any = {"dtype": dtype, "non_blocking": non_blocking, "memory_format": layout}
            super().to(**rest)
        return self

    def _apply(self: Self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        # A conversion gives parameters new contents and replaces buffers: marks and pins are lost.
        pinned = {s.name for s in _walk.own_slots(self) if C.pinned(s.tensor)}
        try:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        finally:
            _mark_own(self)
            for slot in _walk.own_slots(self):
                if slot.name in pinned and _walk.markable(slot.tensor):
                    C.pin(slot.tensor, True)
        return self

    # ---- pins

    def pin(self: Self) -> Self:
        """Keeps every parameter and buffer on the device where it is now."""
        return self._managed_pin(True)

    def unpin(self: Self) -> Self:
        """Lets every parameter and buffer move again."""
        return self._managed_pin(False)

    def _managed_pin(self: Self, pinned: bool) -> Self:
        for slot in _walk.slots([self]):
            if _walk.markable(slot.tensor):
                C.pin(slot.tensor, pinned)
        return self


# ---- making managed


def _mark(tensor: torch.Tensor, undo: ExitStack | None = None) -> None:
    """Makes the tensor and its gradient managed; a managed one may still lack its history."""
    if not _walk.markable(tensor):
        return
    gradient = tensor.grad if tensor.is_leaf else None
    for found in (tensor, gradient):
        if found is None or not _walk.markable(found):
            continue
        if undo is not None and not C.is_managed(found):
            undo.callback(C.unmark, found)
        C.mark(found)


def _mark_own(module: nn.Module) -> None:
    for slot in _walk.own_slots(module):
        _mark(slot.tensor)


def _mark_all(modules: list[nn.Module]) -> None:
    """Walks again: a move may have replaced buffers."""
    for slot in _walk.slots(modules):
        _mark(slot.tensor)


def _adopt(module: nn.Module, undo: ExitStack) -> None:
    """Marks the module's own tensors and gives it its class, where its class can be subclassed."""
    if any(is_lazy(s.tensor) for s in _walk.own_slots(module)):
        undo.callback(module.register_forward_pre_hook(_adopt_when_ready).remove)
        return
    for slot in _walk.own_slots(module):
        _mark(slot.tensor, undo)
    if isinstance(module, (ManagedModule, torch.jit.ScriptModule)):
        return
    undo.callback(setattr, module, "__class__", type(module))
    module.__class__ = managed_class(type(module), ManagedModule)


def _adopt_when_ready(module: nn.Module, inputs: Any) -> None:
    """A lazy module's first forward pass has just given its parameters their shapes."""
    for key, hook in list(module._forward_pre_hooks.items()):
        if hook is _adopt_when_ready:
            del module._forward_pre_hooks[key]
    with ExitStack() as undo:
        _adopt(module, undo)
        undo.pop_all()


# ---- what DeviceManager calls


def _room_needed(modules: list[nn.Module], device: torch.device | None) -> int:
    """Bytes to look for, after the heuristic, for what is not on `device` yet."""
    return _walk.room(s for s in _walk.slots(modules) if s.tensor.device != device)


def _move(modules: list[nn.Module], device: torch.device, reason: int = C.ASKED) -> None:
    """Moves modules in place, all of them or none; their tensors are managed afterwards."""
    found = _walk.slots(modules)
    _walk.carry([(s, device) for s in found], reason)
    _mark_all(modules)


def _place(module: nn.Module, manager: C.DeviceManager, disperse: bool) -> nn.Module:
    """Places a module where the manager says; its tensors are managed afterwards."""
    groups = _walk.layers([module])
    if disperse:
        _walk.spread(groups, manager)
    else:
        _walk.gather([s for layer in groups for s in layer], manager)
    _mark_all([module])
    return module
