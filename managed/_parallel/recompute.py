"""Lets modules run again in the backward pass, so that their activations need not be kept.

The recompute starts from what the module was before that very forward pass, and works on copies:
the module's own buffers are written once per forward pass, as without it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import update_wrapper
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils.checkpoint import checkpoint
from torch.utils.weak import WeakIdKeyDictionary

from managed import sim
from managed._backend import C
from managed._modules.placed import is_placed

__all__ = ["recomputing"]

_REGISTRIES = ("_buffers", "_modules", "_parameters")

# Maps a tensor to the `training` flags with which no pass has written it unseen, or to None if a
# version counter has missed a write of it.
_compared: Any = WeakIdKeyDictionary()

_locks: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()


class _Thread(threading.local):
    inside = False  # whether it runs a checkpointed module


_thread = _Thread()


@contextmanager
def recomputing(module: nn.Module, what: Sequence[type | nn.Module] | None) -> Iterator[None]:
    """While it is open, the parts of `module` that `what` names do not keep their activations.

    Each module in `what`, and each part that is an instance of a class in `what`, runs under
    `torch.utils.checkpoint`, the outermost of nested ones alone. Losses, gradients, buffers and
    random numbers are those of a run without it. Modules and their hooks stay as they are: only
    the attribute `forward` of the parts is another one until the context closes. Backward passes
    may run later, and in any order.

    The recompute sees each buffer and each attribute as it was before the forward pass. `forward`
    and the program may write them in place or assign others. A buffer that passes write is copied
    in each pass, and any other one when the context opens. Version counters tell which buffers are
    written. They miss what batch_norm and writes to `.data` do, so the first pass ever with each
    combination of `training` flags compares values, too, and waits for the device. A later pass
    that is the first to write `.data` of a buffer is not noticed.

    Hooks of the parts themselves do not run again. Hooks of modules inside of them do, as these
    modules do. Lists, dictionaries and other objects that are no tensors are not copied: what
    `forward` changes inside of them is changed again. Buffers that share bytes are copied apart.
    `forward` may not write its arguments in place. A part that still has uninitialized parameters
    keeps its activations in that pass.

    Args:
        module: the model, for example.
        what: classes and modules; None and an empty list do nothing.

    Raises:
        TypeError: if `what` holds anything else, or names a part with a `torch.jit.ScriptModule`.
        ValueError: if a module in `what` is no part of `module`.
    """
    with ExitStack() as undo:
        for part in _chosen(module, what) if what else ():
            undo.callback(_Recomputed(part).remove)
        yield


def _chosen(module: nn.Module, what: Sequence[type | nn.Module]) -> list[nn.Module]:
    if isinstance(what, (str, type, nn.Module)):
        raise TypeError(f"managed: recomputing takes a list of classes and modules, not {what!r}")
    parts, classes, ids = list(module.modules()), [], set()
    for one in what:
        if isinstance(one, type):
            classes.append(one)
        elif not isinstance(one, nn.Module):
            raise TypeError(
                "managed: recomputing takes classes and modules, such as "
                f"[nn.TransformerEncoderLayer, model.head], not {one!r}"
            )
        elif not any(one is part for part in parts):
            raise ValueError(
                f"managed: recomputing was given a {type(one).__name__} that is no part of the "
                f"{type(module).__name__}; give it one of its modules()"
            )
        ids.add(id(one))
    chosen = [p for p in parts if isinstance(p, tuple(classes)) or id(p) in ids]
    for part in chosen:
        if any(isinstance(inner, torch.jit.ScriptModule) for inner in part.modules()):
            raise TypeError(
                "managed: recomputing cannot copy a torch.jit.ScriptModule, and a "
                f"{type(part).__name__} has one; leave it out"
            )
    return chosen


@contextmanager
def _alone(parts: Sequence[nn.Module]) -> Iterator[None]:
    """While it is open, no other thread runs a pass or a recompute of one of these modules."""
    with ExitStack() as held:
        for part in sorted(parts, key=id):  # one order, so that no two threads wait in a circle
            held.enter_context(_locks.setdefault(part, threading.RLock()))
        yield


class _Recomputed:
    """Stands for the method `forward` of a module."""

    def __init__(self, module: nn.Module) -> None:
        update_wrapper(self, module.forward)
        self.module, self.forward, self.own = module, module.forward, vars(module).get("forward")
        self.copies: Any = WeakIdKeyDictionary()  # ((version, `training` flags), copy) of a tensor
        vars(module)["forward"] = self

    def remove(self) -> None:
        with _alone([self.module]):
            del vars(self.module)["forward"]
            if self.own is not None:
                vars(self.module)["forward"] = self.own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        parts = list(self.module.modules())
        lazy = any(isinstance(p, LazyModuleMixin) and p.has_uninitialized_params() for p in parts)
        if lazy or _thread.inside or not torch.is_grad_enabled():
            self.copies.clear()
            return self.forward(*args, **kwargs)
        values = (*args, *kwargs.values())  # checkpoint() asks these alone for devices
        with _alone(parts):
            run = _Pass(self, parts, tuple(kwargs))
            try:
                return checkpoint(run, *values, use_reentrant=False)
            finally:
                run.end()


class _Kept:
    """Holds the value that a tensor had before a forward pass."""

    written = True  # this is assumed until the pass ends

    def __init__(self, tensor: torch.Tensor, copies: Any, modes: tuple[bool, ...]) -> None:
        self.tensor, self.as_found = tensor, (_version(tensor), modes)
        found = _compared.get(tensor) and copies.get(tensor)
        self.copy = found[1] if found and found[0] == self.as_found else _copy(tensor)

    def end(self, copies: Any, held: set[int]) -> None:
        """`held` are the ids of what the module holds now: another tensor may stand there."""
        tensor, (version, modes) = vars(self).pop("tensor"), self.as_found
        compared = _compared.get(tensor, set())
        if compared is None or _version(tensor) != version or id(tensor) not in held:
            return
        self.written = not (modes in compared or _equal(tensor, self.copy))
        _compared[tensor] = None if self.written else compared | {modes}
        copies[tensor] = (self.as_found, self.copy)


class _Pass:
    """Runs a forward pass when it is called first, and a recompute whenever it is called again."""

    def __init__(self, owner: _Recomputed, parts: list[nn.Module], names: tuple[str, ...]) -> None:
        self.owner, self.parts, self.names = owner, parts, names
        self.modes = tuple(p.training for p in parts)
        self.kept: dict[int, _Kept] = {}  # by id of the tensor, so that ties stay ties
        self.states = [_mapped(vars(p), self.keep) for p in parts]
        self.began = self.ended = False

    def keep(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, nn.Parameter):
            return value
        if value.grad_fn is not None:  # a result, whose graph would keep the passes before this one
            return value.detach().requires_grad_()
        if id(value) not in self.kept:
            self.kept[id(value)] = _Kept(value, self.owner.copies, self.modes)
        return self.kept[id(value)]

    def end(self) -> None:
        states = (s for p in self.parts for s in (vars(p), p._buffers))
        held = {id(value) for state in states for value in state.values()}
        for kept in self.kept.values():
            kept.end(self.owner.copies, held)
        self.kept.clear()
        self.ended = True

    def __call__(self, *values: Any) -> Any:
        split = len(values) - len(self.names)
        kwargs = dict(zip(self.names, values[split:], strict=True))
        with ExitStack() as undo:
            undo.callback(setattr, _thread, "inside", _thread.inside)
            _thread.inside = True
            if self.began:
                # If `forward` itself runs a backward pass, its thread waits and has the locks.
                if self.ended:
                    undo.enter_context(_alone(self.parts))
                self.go_back(undo)
            self.began = True
            return self.owner.forward(*values[:split], **kwargs)

    def go_back(self, undo: ExitStack) -> None:
        """Makes the parts what they were before the pass, until `undo` closes."""
        made: dict[_Kept, torch.Tensor] = {}

        def scratch(value: Any) -> Any:
            if not isinstance(value, _Kept):
                return value
            if value not in made:
                made[value] = _copy(value.copy) if value.written else value.copy
            return made[value]

        for part, state in zip(self.parts, self.states, strict=True):
            undo.callback(object.__setattr__, part, "__dict__", vars(part))
            object.__setattr__(part, "__dict__", _mapped(state, scratch))


def _mapped(state: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Copies the attributes of a module and its registries, with each value changed."""
    return {n: _mapped(v, change) if n in _REGISTRIES else change(v) for n, v in state.items()}


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    copy = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    if is_placed(tensor):
        C.place(copy, True)
    return copy


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns False for what cannot be compared, and True for devices that know no values."""
    if sim._simulated is not None and not sim._simulated.values:
        return True
    try:
        return torch.equal(one, other)
    except RuntimeError:
        return False
