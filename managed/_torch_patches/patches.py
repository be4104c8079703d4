"""Attributes of torch that managed replaces for a while, and puts back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from torch.jit import _builtins as builtins

__all__ = ["Patch", "Patches"]

_NONE: Any = object()


class Patch(NamedTuple):
    """An attribute and what it becomes."""

    owner: Any
    name: str
    value: Any


class Patches:
    """`enter()` puts them in; the `leave()` of the last caller that is inside takes them out.

    `make` is called once, by the first `enter()`, and names them.
    """

    def __init__(self, make: Callable[[], Iterable[Patch]]) -> None:
        self._make = make
        self._patches: list[Patch] | None = None
        self._before: list[Any] = []
        self._inside = 0
        self._lock = threading.RLock()

    @property
    def inside(self) -> bool:
        return self._inside > 0

    def enter(self) -> None:
        with self._lock:
            if self._patches is None:
                self._patches = list(self._make())
                for owner, name, value in self._patches:
                    _known_to_torchscript(value, vars(owner).get(name))
            if self._inside == 0:
                self._before = [vars(p.owner).get(p.name, _NONE) for p in self._patches]
                for owner, name, value in self._patches:
                    setattr(owner, name, value)
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside or self._patches is None:
                return
            for (owner, name, value), before in zip(self._patches, self._before, strict=True):
                if vars(owner).get(name) is not value:
                    continue  # a wrapper around ours was put in meanwhile, and calls it
                if before is _NONE:
                    delattr(owner, name)
                else:
                    setattr(owner, name, before)


def _known_to_torchscript(value: Any, original: Any) -> None:
    """TorchScript compiles a call of `value` as it compiles one of `original`: it has a table of
    torch's functions by their addresses, and the source of any other."""
    table: Any = builtins
    operator = table._find_builtin(original)
    if operator is not None:
        table._register_builtin(value, operator)
