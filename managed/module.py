"""ManagedModule: a torch.nn.Module whose tensors are managed and move without losing identity.

Parameters and buffers are marked when they arrive, submodules become managed modules themselves.
Moving happens in place: Parameter objects, ties, hooks and what an optimizer holds stay.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from managed._backend import INERT, C
from managed._modules import adopt, class_overrides, named, placement, walk
from managed._torch_patches.functions import Homing

__all__ = ["ManagedModule"]

Self = TypeVar("Self", bound="ManagedModule")
Model = TypeVar("Model", bound=nn.Module)
Device = torch.device | int | str


class ManagedModule(nn.Module):
    """A `torch.nn.Module` whose parameters and buffers are managed and move in place.

    Inherit from it, or use `from_module`. What is assigned or registered becomes managed, too.

    Moving keeps `Parameter` objects, tied weights and what an optimizer holds, on simulated devices
    as well. Optimizer state follows before the next `step()`. After `half()`, `load_state_dict()`
    and what else `nn.Module` has, tensors stay on their devices, managed, pinned and placed;
    `load_state_dict(assign=True)` alone takes the tensors of the state. Gradients that a full
    backward hook returns go back to their device.
    """

    @staticmethod
    def from_module(model: Model) -> Model:
        """Makes `model` and its submodules managed, in place, and returns it; again does nothing.

        `isinstance(model, OriginalClass)`, state_dict keys, hooks and ties stay; registries of
        classes and metaclasses do not hear of it. The parameters of a lazy module become managed
        when they get their shapes. A class with `cuda`, `cpu` or `to` of its own (every
        LightningModule) gets ours; its own is called afterwards, with the device of the first
        parameter, and what it then asks of modules moves nothing.

        Raises:
            TypeError: when it is no module.
        """
        if not isinstance(model, nn.Module):
            raise TypeError(f"managed: from_module takes a torch.nn.Module, not {model!r}")
        with ExitStack() as undo:  # a tensor that cannot be managed leaves the model as it was
            for module in model.modules():
                adopt.adopt(module, ManagedModule, undo)
            undo.pop_all()
        named.know(model)
        return model

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
        adopt.mark_own(self)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        placed = adopt.placed_names(self)
        super()._load_from_state_dict(*args, **kwargs)
        adopt.mark_own(self)  # a lazy parameter has just got its shape
        adopt.place_own(self, placed)  # with assign=True it is another tensor

    def _managed_arrival(self, name: str) -> None:
        """Marks what is now registered under `name`; a registration hook may have replaced it."""
        named.know(self)
        module = self._modules.get(name)
        if module is not None:
            ManagedModule.from_module(module)
        for kept in (self._parameters, self._buffers):
            tensor = kept.get(name)
            if tensor is not None:
                adopt.mark(tensor)

    # ---- moving

    def cuda(self: Self, device: Device | None = None, disperse: bool | str = False) -> Self:
        """Moves all parameters and buffers to an accelerator, in place; all of them or none.

        What is on accelerators already stays unless `disperse` asks for a new plan. What is larger
        than all devices together fills each to the same degree, and they spill.

        Args:
            device: there. Without, to the device that `find_device` names for all of it; where it
                names none, to the one with most room, which spills what is not in use, and says so
                in the log.
            disperse: `True`: contiguous layers over all devices, the heaviest as light as possible
                for its speed. `"parameters"`: each parameter by itself to the device with least in
                use for its speed, buffers with their module's first. Tied weights count once.

        Raises:
            OutOfMemoryError: when one tensor alone is larger than its device.
            PinConflictError: when a pinned tensor would move.
            ValueError: for what names no accelerator, and for a device beside `disperse`.
        """
        if disperse not in (True, False, "layers", "parameters"):
            raise ValueError(
                f'managed: disperse is True (or "layers"), "parameters" or False, not {disperse!r}'
            )
        if INERT:
            return super().cuda() if torch.cuda.is_available() else self
        if class_overrides.is_telling():
            return self
        target = None if device is None else C.device(device)
        if target is None:
            placement.place(self, C.get_manager(), disperse)
        elif disperse or target.type == "cpu":
            raise ValueError(
                f"managed: disperse={disperse} chooses devices; it cannot go with {device!r}"
                if disperse
                else f"managed: cuda({device!r}) names no accelerator; use cpu()"
            )
        else:
            placement.move([self], target)
        return self

    def cpu(self: Self) -> Self:
        """Moves all parameters and buffers to the host, in place."""
        if INERT:
            return super().cpu()
        if class_overrides.is_telling():
            return self
        placement.move([self], torch.device("cpu"))
        return self

    def to(self: Self, *args: Any, **kwargs: Any) -> Self:
        """As torch.nn.Module.to, but in place on every device; "cuda" lets the manager pick."""
        if INERT:
            return super().to(*args, **kwargs)
        if class_overrides.is_telling():
            return self
        device, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **kwargs)
        if device is None or device.type == "meta":
            super().to(*args, **kwargs)
        else:
            self.cpu() if device.type == "cpu" else self.cuda(device)
            if dtype is not None or layout is not None:
                rest: Any = {"dtype": dtype, "non_blocking": non_blocking, "memory_format": layout}
                super().to(**rest)
        class_overrides.tell(self, "to", device and class_overrides.home(self, device), dtype)
        return self

    def to_empty(self: Self, *, device: Device | torch.device | None, recurse: bool = True) -> Self:
        """As torch.nn.Module.to_empty, but Parameter objects and ties stay on every device.

        "cuda" lets the manager pick. PinConflictError when a pinned tensor would have to move.
        """
        if not INERT and device is not None and torch.device(device).type != "meta":
            device = C.device(device) or placement.pick(self)
            walk.check_pins((s, device) for s in _own_or_all(self, recurse))
        super().to_empty(device=device, recurse=recurse)
        for slot in _own_or_all(self, recurse) if not INERT else ():
            adopt.place(slot.tensor)
        return self

    def _apply(self: Self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        if not INERT and class_overrides.is_telling():  # by nn.Module.cuda(self)
            return self
        # A conversion gives parameters new contents and replaces buffers: what was said is lost.
        said = {s.name: (C.pinned(s.tensor), C.advice(s.tensor)) for s in walk.own_slots(self)}
        placed = adopt.placed_names(self)
        histories = {s.name: C.object_id(s.tensor) for s in walk.own_slots(self)}
        try:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        finally:
            adopt.mark_own(self)
            for slot in walk.own_slots(self):
                if not walk.markable(slot.tensor):
                    continue
                C.resume(slot.tensor, histories.get(slot.name, 0))
                adopt.say(slot.tensor, *said.get(slot.name, (False, 0)))
            adopt.place_own(self, placed)
        return self

    # ---- hooks: a gradient that one of them returns goes back to its device

    def register_full_backward_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        return super().register_full_backward_hook(_homing(hook), prepend)

    def register_full_backward_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        return super().register_full_backward_pre_hook(_homing(hook), prepend)

    # ---- pins

    def pin(self: Self) -> Self:
        """Keeps every parameter and buffer on the device where it is now."""
        return self._managed_pin(True)

    def unpin(self: Self) -> Self:
        """Lets every parameter and buffer move again."""
        return self._managed_pin(False)

    def _managed_pin(self: Self, pinned: bool) -> Self:
        for slot in walk.slots([self]):
            if walk.markable(slot.tensor):
                C.pin(slot.tensor, pinned)
        return self

    def _repr_html_(self) -> str:
        from managed.summary import summary

        return summary(self)._repr_html_()

    def unplace(self: Self) -> Self:
        """Lets every parameter and buffer move by itself that the program put where it is."""
        for slot in walk.slots([self]):
            adopt.place(slot.tensor, False)
        return self


def _homing(hook: Callable[..., Any]) -> Callable[..., Any]:
    return hook if INERT else Homing(hook, position=1)


def _own_or_all(module: nn.Module, recurse: bool) -> list[walk.Slot]:
    return walk.slots([module]) if recurse else list(walk.own_slots(module))
