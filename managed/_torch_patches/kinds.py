"""Where torch asks which type a tensor has, or which of its methods is called."""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
from torch.nn.parameter import UninitializedParameter

from managed._backend import C
from managed._modules.placed import is_placed

__all__: list[str] = []

#: What tensor.c and reprs.py add to torch.Tensor for managed tensors alone.
_MANAGED_ONLY = (
    "pin", "unpin", "pinned", "placed", "unplace", "_repr_html_", "_repr_mimebundle_",
)  # fmt: skip


def install() -> None:
    """Tells torch's lists of methods of ours, and lets swap_tensors exchange types."""
    # A lazy parameter lets only listed methods be called, among them those that tensor.c replaces.
    lazy: Any = UninitializedParameter
    lazy._allowed_methods.extend([torch.Tensor.cuda, torch.Tensor.to])
    torch.utils.swap_tensors = _wrap_swap(torch.utils.swap_tensors)
    tensor: Any = torch.Tensor
    tensor.__dir__ = _wrap_dir(tensor.__dir__)
    # A list of what `__torch_function__` can override must not have what it cannot.
    attributes = [getattr(tensor, name).__get__ for name in _MANAGED_ONLY]
    torch.overrides.get_ignored_functions().update([tensor.__dir__, *attributes])
    known: Any = torch._has_compatible_shallow_copy_type
    torch._has_compatible_shallow_copy_type = _wrap_compatible(known)


def _wrap_dir(original: Any) -> Any:
    @functools.wraps(original)
    def __dir__(self: torch.Tensor) -> list[str]:
        names: list[str] = original(self)
        if type(self) in (torch.Tensor, torch.nn.Parameter) and not C.is_managed(self):
            for name in _MANAGED_ONLY:  # once: a plain tensor may have an attribute of that name
                names.remove(name)
        return names

    return __dir__


def _wrap_swap(original: Any) -> Any:
    @functools.wraps(original)
    def swap_tensors(t1: torch.Tensor, t2: torch.Tensor) -> None:
        # It exchanges `__class__`, which is ManagedTensor for whatever type is managed.
        types = type(t1), type(t2)
        placed = [t for t in (t1, t2) if is_placed(t)]
        original(t1, t2)
        for tensor in placed:  # with new contents, too; its old ones are placed as they were
            C.place(tensor, True)
        for tensor, other in ((t1, types[1]), (t2, types[0])):
            if type(tensor) is not other:
                tensor.__class__ = other

    return swap_tensors


class _Last(threading.local):
    gradient = 0  # the id of a gradient, for the next question


def _wrap_compatible(original: Any) -> Any:
    """What nn.Module asks of a parameter, and then of its gradient, before it replaces `.data`.

    A plain parameter that goes to a simulated device is made anew, and that one has no gradient
    yet. A managed gradient could be replaced in place all the same, which must not be said then.
    """
    last = _Last()

    @functools.wraps(original)
    def compatible(tensor: torch.Tensor, other: torch.Tensor) -> bool:
        of_a_new_one = last.gradient == id(tensor)
        answer: bool = original(tensor, other)
        anew = not answer and tensor.is_leaf and tensor.grad is not None
        last.gradient = id(tensor.grad) if anew else 0
        return answer and not of_a_new_one

    return compatible
