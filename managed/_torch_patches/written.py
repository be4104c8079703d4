"""apply_, map_ and map2_ write a tensor without an operator: its copies elsewhere are old then.

The storage counts as held by the program while they run, so that what their function reads of the
tensor is not kept either.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from managed._backend import C

__all__: list[str] = []


def install() -> None:
    """Wraps them; other ways past the dispatcher give out a pointer or a storage first."""
    for name in ("apply_", "map_", "map2_"):
        setattr(torch.Tensor, name, _exposed(getattr(torch.Tensor, name)))


def _exposed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def write(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        seen = C.is_managed(self) or C.get_on()
        held = self.untyped_storage() if seen and self.layout is torch.strided else None
        try:
            return original(self, *args, **kwargs)
        finally:
            del held

    return write
