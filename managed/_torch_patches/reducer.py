"""Gradients are at home when the reducer of DistributedDataParallel looks at them.

It compares pointers in a hook behind a parameter's accumulator, before any operator brings the
bytes of the gradient home. Passes that it does not reduce (`no_sync()`) keep nothing at home.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
from torch import distributed, nn

from managed._backend import C

__all__: list[str] = []


def install() -> None:
    if not distributed.is_available():
        return
    cls: Any = nn.parallel.DistributedDataParallel
    original = cls.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        hook = functools.partial(_keep_home, weakref.ref(self))
        handles = [
            p.register_post_accumulate_grad_hook(hook)
            for p in self.parameters()
            if p.requires_grad and C.is_managed(p)
        ]
        weakref.finalize(self, _remove, handles).atexit = False

    cls.__init__ = __init__


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()


def _keep_home(reducing: weakref.ref[Any], p: torch.Tensor) -> None:
    """Runs before the hooks behind the accumulator. The next operator on the gradient ends it."""
    model = reducing()
    if p.grad is not None and model is not None and model.require_forward_param_sync:
        C.bring_gradient(p.grad, p.grad.device)
