"""Walks modules: lists their tensors in registration order, and moves them, all or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy

from managed._backend import C
from managed.errors import PinConflictError

__all__: list[str] = []


class Slot(NamedTuple):
    """A tensor and where a module keeps it."""

    module: nn.Module
    name: str
    tensor: torch.Tensor
    places: list[tuple[nn.Module, str]]  #: every module and name, the first user's first

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"{type(self.module).__name__}.{self.name}" if self.places else "the tensor"

    def move(self, device: torch.device, reason: int) -> Callable[[], object]:
        """Moves the tensor and returns what undoes it.

        A buffer that is a result or a view is replaced, wherever it is registered: in place, what
        it was made from would stay behind. Parameters keep their objects, so they move in place.
        """
        home, old = self.tensor.device, self.tensor
        if old.is_meta:  # there is nothing to copy, which is right where there are no values
            C.allocate(old, device)
            return lambda: C.allocate(old, None)
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
    if tensor.is_meta or tensor.is_quantized or is_lazy(tensor):
        return False
    return not isinstance(tensor, FakeTensor)


def room(found: Iterable[Slot]) -> int:
    """Bytes to look for, after the heuristic."""
    return sum(C.estimate(C.nbytes(s.tensor)) for s in found)


def check_pins(targets: Iterable[tuple[Slot, torch.device]]) -> None:
    """PinConflictError when a pinned tensor would have to leave its device."""
    for slot, device in targets:
        if slot.tensor.device != device and C.pinned(slot.tensor):
            raise PinConflictError(
                f"managed: {slot.title} is pinned to "
                f"{slot.tensor.device} and was asked to go to {device}; call unpin() first"
            )


def carry(targets: list[tuple[Slot, torch.device]], reason: int) -> None:
    """Moves every tensor to its device, or none: what moved goes back when one fails."""
    from managed._modules.progress import Progress  # what an import need not take

    targets = [(s, d) for s, d in targets if s.tensor.device != d]
    check_pins(targets)
    undo: list[Callable[[], object]] = []
    try:
        with Progress("moving", sum(C.nbytes(s.tensor) for s, _ in targets)) as progress:
            for slot, device in targets:
                undo.append(slot.move(device, reason))
                progress.advance(C.nbytes(slot.tensor))
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
            stuck.append(f"{slot.title} stays on {device} ({reason})")
    if stuck:
        add_note(error, "managed: could not be moved back: " + "; ".join(stuck))


def _failure(step: Callable[[], object]) -> Exception | None:
    try:
        step()
    except Exception as error:
        return error
    return None


def add_note(error: BaseException, note: str) -> None:
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:  # Python 3.10
        error.args = (f"{error.args[0]}\n{note}" if error.args else note, *error.args[1:])
