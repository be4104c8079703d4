"""Operators inside of the __torch_dispatch__ of a wrapper subclass come to managed.

Torch shuts all keys above Python's out while it calls a __torch_dispatch__. What a wrapper holds
may be managed: operators on it would find bytes that have left, and operands that stand apart.
So a class that makes its first wrapper has its __torch_dispatch__ called with managed's key.
"""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

import torch

from managed._backend import C

__all__: list[str] = []

# Torch's own for its compilers hold fake tensors.
_TRACERS = "torch._subclasses."


def install() -> None:
    """Wraps what makes instances of wrapper subclasses."""
    tensor: Any = torch.Tensor
    make = tensor._make_wrapper_subclass

    @functools.wraps(make)
    def _make_wrapper_subclass(cls: type, *args: Any, **kwargs: Any) -> torch.Tensor:
        _let_in(cls)
        return make(cls, *args, **kwargs)  # type: ignore[no-any-return]

    tensor._make_wrapper_subclass = staticmethod(_make_wrapper_subclass)
    torch.overrides.get_ignored_functions().add(_make_wrapper_subclass)


def _let_in(cls: type) -> None:
    name = "__torch_dispatch__"
    owner = next(c for c in cls.__mro__ if name in vars(c))
    if owner is torch.Tensor or owner.__module__.startswith(_TRACERS):
        return
    found = vars(owner)[name]
    kind = type(found) if isinstance(found, (classmethod, staticmethod)) else None
    function = found.__func__ if kind else found
    if not isinstance(function, FunctionType) or hasattr(function, "_calls_hooked"):
        return
    setattr(owner, name, (kind or staticmethod)(_function(function)))


def _function(original: FunctionType) -> Any:
    @functools.wraps(original)
    def __torch_dispatch__(*args: Any, **kwargs: Any) -> Any:
        return C.call_hooked(original, args, kwargs)

    __torch_dispatch__._calls_hooked = True  # type: ignore[attr-defined]
    return __torch_dispatch__
