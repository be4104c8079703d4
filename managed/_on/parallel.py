"""nn.DataParallel inside of managed.on(): the batch in as many parts, and the module once.

On CUDA it copies its module to every device. Here the manager decides where a module is, and it may
be on several devices already; so the parts go through it one after the other. Programs get what
they reckon with when they multiply batch or loss by the number of devices.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from managed._backend import C
from managed._torch_patches.patches import Patch

__all__ = ["patches"]


class InParts(nn.DataParallel):  # type: ignore[type-arg]
    """What an nn.DataParallel that is made inside becomes."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        parts = _scattered(len(self.device_ids), self.dim, (inputs, named))
        outputs = [self.module(*args, **kwargs) for args, kwargs in parts]
        return outputs[0] if len(outputs) == 1 else _gathered(self.dim, outputs)


def _scattered(count: int, dim: int, given: Any) -> list[Any]:
    """As torch's scatter(): tensors in at most so many parts, and all else in each of them."""
    leaves, form = tree_flatten(given)
    split = [t.chunk(count, dim) if isinstance(t, torch.Tensor) else [t] * count for t in leaves]
    return [tree_unflatten(part, form) for part in zip(*split, strict=False)] or [given]


def _gathered(dim: int, outputs: Sequence[Any]) -> Any:
    """As torch's gather(): one after the other along `dim`; of numbers, a vector."""
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        stacked = dim == 0 and all(t.dim() == 0 for t in outputs)
        return torch.stack([*outputs]) if stacked else torch.cat([*outputs], dim)
    if first is None:
        return None
    if isinstance(first, dict):
        return type(first)((k, _gathered(dim, [o[k] for o in outputs])) for k in first)
    parts = (_gathered(dim, part) for part in zip(*outputs, strict=True))
    return type(first)._make(parts) if hasattr(first, "_make") else type(first)(parts)


def _made(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if C.get_on() and self.device_ids and type(self) is nn.DataParallel:
            self.__class__ = InParts

    return init


def patches() -> Iterator[Patch]:
    yield Patch(nn.DataParallel, "__init__", _made(nn.DataParallel.__init__))
