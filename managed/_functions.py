"""Sends home what the backward of a custom autograd.Function returns.

Such a backward may compute a gradient wherever its operands met; the engine insists on the device
of the input. Gradients of torch's own operators never need this: their copies are recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from managed._backend import C

__all__: list[str] = []


def install() -> None:
    """Wraps BackwardCFunction.apply, through which the engine calls every custom backward."""
    original = BackwardCFunction.apply

    @functools.wraps(original)
    def apply(self: Any, *args: Any) -> Any:
        grads = original(self, *args)  # type: ignore[no-untyped-call]
        if isinstance(grads, torch.Tensor):
            return _sent(grads, next(_homes(self), None))
        if isinstance(grads, tuple) and any(C.is_managed(g) for g in grads):
            return _all_sent(self, grads)
        return grads

    BackwardCFunction.apply = apply  # type: ignore[method-assign]


def _homes(function: Any) -> Iterator[torch.device]:
    """The device of each input that needs a gradient, in the order of the inputs."""
    for node, index in function.next_functions:
        if node is not None:
            yield node._input_metadata[index].device


def _sent(grad: Any, home: torch.device | None) -> Any:
    return grad if home is None or not C.is_managed(grad) else grad.to(home)


def _all_sent(function: Any, grads: tuple[Any, ...]) -> tuple[Any, ...]:
    homes = _homes(function)
    needed = function.needs_input_grad
    return tuple(
        _sent(grad, next(homes, None) if i < len(needed) and needed[i] else None)
        for i, grad in enumerate(grads)
    )
