"""What a program knows of its tensors that cannot be seen: which are needed again, and where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import nn

from managed._backend import INERT, C
from managed._modules import adopt, walk

__all__ = ["hint"]

_T = TypeVar("_T")
_Place = torch.device | int | str | torch.Tensor | nn.Module


def hint(
    obj: _T,
    *,
    near: _Place | None = None,
    reuse: bool | None = None,
    read_only: bool = False,
    wont_need: bool = False,
    on_host: bool = False,
) -> _T:
    """Says what the program knows of tensors; changes where bytes are and when, never a value.

    A hint goes before what managed guesses. Where a step is learned, managed has seen what is used
    when, and only `reuse=True` still counts. A hint holds for the bytes of these tensors, also
    after they have moved, until the next hint says something else: `hint(x)` says nothing any more.
    What an operator makes of them has no hint but `on_host`.

    Args:
        obj: a managed tensor, a module of such, or a nest of them (lists, tuples, dictionaries).
        near: a device, or a tensor or a module that is on one. The tensors move there now, in
            place, and operators come to them there. No other thread may use them meanwhile.
        reuse: `True`: they stay as long as anything else can leave their device. `False`: they
            leave before anything else. Say so of what is read once.
        read_only: they are seldom written. They leave rather than others, since from the second
            time on they leave without a copy. A write is allowed, and the next copy then has it.
        wont_need: they leave before anything else, until they are used the next time.
        on_host: an operator that makes a new tensor of them runs on the host if its device has no
            room for it. Its results stay there and have this hint, and operators beside them run
            there, too. Not in a backward pass, and none that draws random numbers.
            `stats()["calls_on_host"]` counts them.

    Returns:
        `obj`.

    Raises:
        TypeError: for what is no tensor, no module and no nest of them, and for other values.
        ValueError: for tensors that are not managed, and for a `near` that names no single device.
        RuntimeError: `near` for what cannot move in place: results of operators, views, and what
            shares its bytes with something that would stay behind.
        PinConflictError: `near` for what is pinned elsewhere.
        OutOfMemoryError: no room there. After an error everything is as it was.
    """
    told = {"reuse": reuse, "read_only": read_only, "wont_need": wont_need, "on_host": on_host}
    for name, value in told.items():
        if not isinstance(value, bool) and (name != "reuse" or value is not None):
            raise TypeError(f"managed: {name} is True or False, not {value!r}")
    said = C.READ * read_only | C.NEXT * wont_need | C.HOST * on_host
    if reuse is not None:
        said |= C.LAST if reuse else C.FIRST
    slots = list(_slots(obj))
    if INERT:
        return obj
    for slot in slots:
        if not C.is_managed(slot.tensor):
            raise ValueError(
                f"managed: a hint is for managed tensors, and {slot.title} is not managed; use "
                "as_subclass(ManagedTensor), or ManagedModule.from_module"
            )
    if near is not None:
        _bring(slots, _device_of(near))
    for slot in _slots(obj):  # buffers may be others now
        if near is not None:
            adopt.place(slot.tensor)
        C.advise(slot.tensor, said)
    return obj


def _slots(obj: Any) -> Iterator[walk.Slot]:
    """The tensors of a nest that have bytes of their own."""
    for leaf in _leaves(obj):
        if isinstance(leaf, nn.Module):
            yield from (s for s in walk.slots([leaf]) if walk.markable(s.tensor))
        else:
            yield walk.Slot(nn.Module(), "", leaf, [])


def _leaves(obj: Any) -> Iterator[Any]:
    if isinstance(obj, torch.Tensor | nn.Module):
        yield obj
    elif isinstance(obj, dict | list | tuple):
        parts: Iterable[Any] = obj.values() if isinstance(obj, dict) else obj
        for part in parts:
            yield from _leaves(part)
    else:
        cure = "; make a list of it" if isinstance(obj, Iterable) and type(obj) is not str else ""
        raise TypeError(
            "managed: a hint is for a tensor, a module or a nest of them (lists, tuples, "
            f"dictionaries), not {type(obj).__name__!r}{cure}"
        )


def _device_of(near: _Place) -> torch.device:
    named: Any = near
    if isinstance(near, nn.Module):
        found = {s.tensor.device for s in walk.slots([near])}
        if len(found) != 1:
            where = ", ".join(sorted(map(str, found))) or "no device"
            raise ValueError(
                f"managed: near takes what is on one device, and this module is on {where}; "
                "name a tensor or a device"
            )
        (named,) = found
    elif isinstance(near, torch.Tensor):
        named = near.device
    device = C.device(named)
    if device is None:
        raise ValueError(f'managed: near={near!r} names no single device; say "cuda:0" or "sim:0"')
    return device


def _bring(slots: list[walk.Slot], device: torch.device) -> None:
    """Moves all of them or none."""
    slots = [slot for slot in slots if slot.tensor.device != device]
    for slot in slots:
        x = slot.tensor
        if not slot.places and (not x.is_leaf or x._is_view()):
            what = "a view" if x._is_view() else "the result of an operator"
            raise RuntimeError(
                f"managed: {what} does not move in place; use x = x.to({str(device)!r})"
            )
    if not C.alone([slot.tensor for slot in slots]):
        raise RuntimeError(
            "managed: near moves no bytes that another object has as well: a view of a tensor or "
            "of its gradient, detach(), .data, a storage, an array. Nor what has hooks at the "
            "accumulator of its gradient, as in DistributedDataParallel. They would stay behind; "
            f"delete them, or use x = x.to({str(device)!r}) or module.to({str(device)!r})"
        )
    walk.carry([(slot, device) for slot in slots], C.REQUESTED)
