"""Lets classes that have `cuda`, `cpu` or `to` of their own know where their parameters are now.

ManagedModule's methods stand before theirs: where parameters go is decided by them. Theirs are
called afterwards, since they may note the device, or move what is no parameter.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable
from itertools import chain, dropwhile, takewhile
from typing import Any

import torch
from torch import nn

from managed._modules.classes import base_of

__all__: list[str] = []

_telling = threading.local()


def is_telling() -> bool:
    """Whether a class is just being told in this thread: then no managed module moves."""
    return getattr(_telling, "now", False)


def home(module: nn.Module, otherwise: torch.device) -> torch.device:
    """Where the first parameter is, as libraries ask it."""
    first = next(chain(module.parameters(), module.buffers()), None)
    return otherwise if first is None else first.device


def tell_all(modules: Iterable[nn.Module]) -> None:
    for module in modules:
        where = home(module, torch.device("cpu"))
        tell(module, *(["cpu"] if where.type == "cpu" else ["cuda", where]))


def tell(module: nn.Module, name: str, *arguments: object) -> None:
    """Calls the method that ours stands before, if the class of the module has one."""
    theirs = _theirs(type(module), name)
    if theirs is None:
        return
    bound = theirs.__get__(module, type(module))
    told = [x for x in arguments if x is not None]
    _telling.now = True
    try:
        bound(*told) if _takes(bound, told) else bound()
    finally:
        _telling.now = False


def _theirs(own: type[nn.Module], name: str) -> Any:
    base = base_of(own)
    if base is None:
        return None
    ours = vars(base)[name]
    after = dropwhile(lambda c: vars(c).get(name) is not ours, own.__mro__)
    above = takewhile(lambda c: c is not base, after)  # so that its super() comes to us
    return next((f for c in above if (f := vars(c).get(name, ours)) is not ours), None)


def _takes(function: Callable[..., Any], arguments: list[object]) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    return True
