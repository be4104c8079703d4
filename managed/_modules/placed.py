"""What the program has put on a device stays there when it is copied or parametrized."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from managed._backend import C

__all__: list[str] = []


def install() -> None:
    """Wraps what makes a tensor that stands for another one."""
    kinds: tuple[Any, ...] = (torch.Tensor, nn.Parameter)
    for kind in kinds:
        kind.__deepcopy__ = _wrap_copy(kind.__deepcopy__)


def is_placed(tensor: torch.Tensor) -> bool:
    return C.is_managed(tensor) and C.placed(tensor)


def _wrap_copy(original: Any) -> Any:
    @functools.wraps(original)
    def __deepcopy__(self: torch.Tensor, memo: Any) -> Any:
        result = original(self, memo)
        if is_placed(self):
            C.place(result, True)
        return result

    return __deepcopy__


def parametrized(forward: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Of a ParametrizationList: what it makes of placed tensors draws operators as they do."""

    @functools.wraps(forward)
    def placed_forward(self: nn.Module) -> Any:
        result = forward(self)
        if isinstance(result, torch.Tensor) and not torch.compiler.is_compiling():
            kept = (*self._parameters.values(), *self._buffers.values())
            own = [t for t in kept if t is not None]
            if own and all(is_placed(t) and t.device == result.device for t in own):
                C.place(C.mark(result, True), True)
        return result

    return placed_forward
