"""Calls of modules are steps of programs that have neither a backward pass nor an optimizer.

The count serves one warning: what waits on the host grows. It begins when bytes first leave a
device for the host, so modules cost nothing more before.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch import nn

from managed._backend import C
from managed.module import ManagedModule

__all__: list[str] = []

_open: list[None] = []  # an item for each call of a managed module that is under way, in any thread


def install() -> None:
    """Called by csrc/python/warn.c, perhaps while a module is called."""
    ManagedModule.__call__ = _counted  # type: ignore[method-assign]


def _counted(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if torch.compiler.is_compiling():
        return nn.Module.__call__(self, *args, **kwargs)
    _open.append(None)
    try:
        result = nn.Module.__call__(self, *args, **kwargs)
    finally:
        _open.pop()
    if not _open and not _is_inside_a_module(sys._getframe(1)):
        C.begin_step(True)
    return result


def _is_inside_a_module(frame: FrameType | None) -> bool:
    """Whether a managed module is being called whose call began before the count."""
    code = nn.Module._call_impl.__code__
    while frame is not None:
        if frame.f_code is code and isinstance(frame.f_locals.get("self"), ManagedModule):
            return True
        frame = frame.f_back
    return False
