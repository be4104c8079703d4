"""Gradients that user code hands to the engine: they go where the engine expects them.

The backward of a custom autograd.Function, or a hook, may compute a gradient wherever its operands
met; the engine insists on the device of what the gradient belongs to. Gradients of torch's own
operators never need this: their copies are recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._functorch import eager_transforms
from torch._ops import _HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS, _higher_order_ops
from torch.autograd.function import BackwardCFunction
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from managed._backend import C

__all__: list[str] = []


def install() -> None:
    """Wraps what the engine calls for custom backwards, and what registers a tensor's hook."""
    BackwardCFunction.apply = _wrap_apply(BackwardCFunction.apply)  # type: ignore[method-assign]
    torch.Tensor.register_hook = _wrap_register(torch.Tensor.register_hook)  # type: ignore[method-assign]
    _watch_functorch()
    _let_higher_order_operators_pass()


# ---- custom functions


def _wrap_apply(original: Any) -> Any:
    @functools.wraps(original)
    def apply(self: Any, *args: Any) -> Any:
        grads = original(self, *args)
        if isinstance(grads, torch.Tensor):
            return _sent(grads, next(_homes(self), None), _here(self))
        if isinstance(grads, tuple) and any(isinstance(g, torch.Tensor) for g in grads):
            return _all_sent(self, grads)
        return grads

    return apply


def _homes(function: Any) -> Iterator[torch.device]:
    """The device of each input that needs a gradient, in the order of the inputs."""
    for node, index in function.next_functions:
        if node is not None:
            yield node._input_metadata[index].device


def _here(function: Any) -> torch.device | None:
    """The device on whose thread the engine runs the function."""
    metadata = function._input_metadata
    return metadata[0].device if metadata else None


def _sent(grad: Any, home: torch.device | None, here: torch.device | None) -> Any:
    if home is None or not isinstance(grad, torch.Tensor) or grad.device == home == here:
        return grad
    return C.bring_gradient(grad, home)


def _all_sent(function: Any, grads: tuple[Any, ...]) -> tuple[Any, ...]:
    homes, here = _homes(function), _here(function)
    needed = function.needs_input_grad
    return tuple(
        _sent(grad, next(homes, None) if i < len(needed) and needed[i] else None, here)
        for i, grad in enumerate(grads)
    )


# ---- hooks


class Homing:
    """A hook whose result goes back to the device of the gradient that it was given.

    `position` says which of the hook's arguments holds the gradients. A hook of a tensor is not
    called without one: managed.DataParallel reaches parameters that no part has used.
    """

    def __init__(self, hook: Callable[..., Any], position: int = 0) -> None:
        functools.update_wrapper(self, hook)
        self.hook, self.position = hook, position

    def __call__(self, *args: Any) -> Any:
        if self.position == 0 and args[0] is None:
            return None
        return _like(self.hook(*args), args[self.position])

    def __reduce__(self) -> Any:
        return (Homing, (self.hook, self.position))


def _like(result: Any, given: Any) -> Any:
    if isinstance(given, tuple) and not isinstance(result, torch.Tensor):
        same = isinstance(result, (tuple, list)) and len(result) == len(given)
        return tuple(map(_like, result, given)) if same else result
    one = given[0] if isinstance(given, tuple) and given else given
    home = one.device if isinstance(one, torch.Tensor) else None
    return _sent(result, home, home)


def _wrap_register(original: Any) -> Any:
    @functools.wraps(original)
    def register_hook(self: torch.Tensor, hook: Callable[..., Any]) -> Any:
        return original(self, Homing(hook) if C.is_managed(self) else hook)

    return register_hook


# ---- torch.func


def _watch_functorch() -> None:
    """Tells the hook above functorch when a thread is inside grad, vjp, jacrev or hessian."""
    transforms: Any = eager_transforms
    enter, leave = transforms._grad_increment_nesting, transforms._grad_decrement_nesting

    def entered() -> int:
        level: int = enter()
        C.above_functorch(1)
        return level

    def left() -> Any:
        C.above_functorch(-1)
        return leave()

    transforms._grad_increment_nesting = entered
    transforms._grad_decrement_nesting = left
    transforms.linearize = torch.func.linearize = _wrap_linearize(transforms.linearize)


def _wrap_linearize(original: Any) -> Any:
    """The function that it returns compares devices before any operator could move a tangent."""

    @functools.wraps(original)
    def linearize(func: Callable[..., Any], *primals: Any) -> Any:
        homes = [
            t.device if isinstance(t, torch.Tensor) and C.is_managed(t) else None
            for t in tree_leaves(primals)
        ]
        output, jvp = original(func, *primals)

        @functools.wraps(jvp)
        def at_primals(*tangents: Any) -> Any:
            leaves, form = tree_flatten(tangents)
            if len(leaves) == len(homes):
                sent = (
                    t if home is None or not isinstance(t, torch.Tensor) else t.to(home)
                    for t, home in zip(leaves, homes, strict=True)
                )
                tangents = tree_unflatten(sent, form)
            return jvp(*tangents)

        return output, at_primals if any(homes) else jvp

    return linearize


# ---- higher-order operators


def _let_higher_order_operators_pass() -> None:
    """They dispatch in Python, where no fallback is asked; what they call meets the hooks."""
    for name in ("TESTING_ONLY_GenericWrapper", "DeferredInit"):  # functorch.cpp, key.h
        key: Any = torch._C._parse_dispatch_key(name)
        for operator in _higher_order_ops.values():
            operator.fallthrough(key)  # type: ignore[no-untyped-call]
        _HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(key)
