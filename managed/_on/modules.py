"""Modules inside of managed.on(): they become managed, and go to a device, when they are used."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from managed._backend import C
from managed._modules import placement
from managed._torch_patches.patches import Patch
from managed.module import ManagedModule

__all__ = ["patches"]


def _arrived(module: nn.Module) -> bool:
    """Whether the module is managed now."""
    if torch.compiler.is_compiling() or any(t.is_meta for t in _tensors(module)):
        return False
    try:
        ManagedModule.from_module(module)
    except TypeError:  # holds what cannot be managed
        return False
    return isinstance(module, ManagedModule)


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _sent(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A method of nn.Module that sends it somewhere: of ManagedModule inside."""
    ours = vars(ManagedModule)[name]

    @functools.wraps(original)
    def send(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, ManagedModule) or not C.get_on():
            return original(self, *args, **kwargs)
        return (ours if _arrived(self) else original)(self, *args, **kwargs)

    return send


def _place(module: nn.Module) -> None:
    """What the first call of a module does, unless the program has sent it somewhere before."""
    fresh = not isinstance(module, ManagedModule) and C.get_on() and _arrived(module)
    if fresh and C.alone(list(_tensors(module))):
        placement.place(module, C.get_manager(), False)


def _called(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        _place(self)
        return original(self, *args, **kwargs)

    return __call__


def _wrapped(original: Callable[..., None]) -> Callable[..., None]:
    """__init__ of a class whose objects have hooks on the parameters where these are then."""

    @functools.wraps(original)
    def init(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(module, nn.Module):
            _place(module)
        original(self, module, *args, **kwargs)

    return init


def patches() -> Iterator[Patch]:
    module: Any = nn.Module
    for name in ("to", "cuda", "cpu", "to_empty"):
        yield Patch(module, name, _sent(name, vars(module)[name]))
    yield Patch(module, "__call__", _called(module.__call__))
    wrapper: Any = nn.parallel.DistributedDataParallel
    yield Patch(wrapper, "__init__", _wrapped(wrapper.__init__))
