"""Lets torch.utils.checkpoint repeat random numbers, wherever a managed function draws them.

It saves the generators of the devices on which its arguments stand. Managed tensors draw from the
first accelerator's, and plain ones that a managed function makes from their own device's: so the
others are saved too. And it sets generators that all threads share, while the engine may run
functions again in the threads of several devices at once: they take turns. Parts of a batch draw
from the generators of their devices (workers.py), and do so again.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import checkpoint

from managed._backend import C

__all__: list[str] = []

_made = 0
_thread = threading.local()


def made() -> int:
    """How many functions have been checkpointed so far."""
    return _made


def is_inside() -> bool:
    """Whether this thread runs a checkpointed function for the first time."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    name = getattr(hooks[0], "__qualname__", "") if hooks else ""
    return getattr(_thread, "depth", 0) > 0 or name.startswith("_checkpoint_hook")


def _note() -> bool:
    """Counts one; whether this thread draws numbers of its own."""
    global _made
    _made += 1
    return C.has_own_numbers()


def install() -> None:
    """Wraps what both kinds of checkpoints call to save generators, and to run a function again."""
    checkpoint.get_device_states = _with_others(checkpoint.get_device_states)
    function, frame = checkpoint.CheckpointFunction, checkpoint._CheckpointFrame
    forward = function.forward

    @functools.wraps(forward)
    def noting(ctx: Any, *args: Any) -> Any:
        ctx.own_numbers = _note()
        _thread.depth = getattr(_thread, "depth", 0) + 1
        try:
            return forward(ctx, *args)  # type: ignore[no-untyped-call]
        finally:
            _thread.depth -= 1

    function.forward = staticmethod(noting)  # type: ignore[method-assign]
    backward = _in_turn(function.backward, lambda ctx, *_: ctx.own_numbers)
    function.backward = staticmethod(backward)  # type: ignore[method-assign]
    original = frame.__init__

    @functools.wraps(original)
    def __init__(self: Any, recompute_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        own = _note()
        original(self, _in_turn(recompute_fn, lambda *_: own), *args, **kwargs)

    frame.__init__ = __init__  # type: ignore[method-assign]


def _with_others(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_device_states(*args: Any) -> tuple[list[int], list[torch.Tensor]]:
        indices, states = original(*args)
        kind = checkpoint._infer_device_type(*args)  # type: ignore[no-untyped-call]
        for index in _in_use(kind):
            if index not in indices:
                indices.append(index)
                states.append(torch.get_device_module(kind).get_rng_state(index))
        return indices, states

    return get_device_states


def _in_use(kind: str) -> Iterator[int]:
    """Devices of the kind; a GPU without a context has drawn nothing, and is not given one.

    The first one's generator serves the others, so it may have been used without a context.
    """
    started = getattr(torch._C, "_cuda_hasPrimaryContext", None) if kind == "cuda" else None
    if kind == "sim" or started is not None:
        for index in range(torch.get_device_module(kind).device_count()):
            if index == 0 or started is None or started(index):
                yield index


def _in_turn(replay: Callable[..., Any], own: Callable[..., bool]) -> Callable[..., Any]:
    """`own` tells of the arguments whether the function had numbers of its own at first."""

    @functools.wraps(replay)
    def run(*args: Any, **kwargs: Any) -> Any:
        began = C.begin_replay(own(*args))
        try:
            return replay(*args, **kwargs)
        finally:
            if began:
                C.end_replay()

    return run
