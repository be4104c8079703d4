"""nn.DataParallel inside of managed.on(): its module becomes a managed.DataParallel.

The batch goes in as many parts as the program reckons with when it multiplies batch or loss by the
number of devices, and outputs are put together as torch does it: numbers become a vector.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from managed._backend import C
from managed._torch_patches.patches import Patch
from managed.data_parallel import DataParallel, run_parts
from managed.errors import PinConflictError

__all__ = ["patches"]


class InParts(nn.DataParallel):  # type: ignore[type-arg]
    """What an nn.DataParallel that is made inside becomes."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        given = _scattered(len(self.device_ids), self.dim, (inputs, named))
        outputs = run_parts(self.module, given)
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
            with suppress(TypeError, ValueError, PinConflictError):  # then in turns
                DataParallel(self.module, [f"cuda:{i}" for i in self.device_ids])

    return init


def patches() -> Iterator[Patch]:
    yield Patch(nn.DataParallel, "__init__", _made(nn.DataParallel.__init__))
