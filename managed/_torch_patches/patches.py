"""Attributes of others that are ours while somebody wants them to be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

__all__ = ["Patch", "Patches"]

_NONE: Any = object()


class Patch(NamedTuple):
    """An attribute and what it becomes."""

    owner: Any
    name: str
    value: Any


class Patches:
    """`enter()` puts them in, as often as is asked for; the last `leave()` takes them out.

    `make` names them when they are put in for the first time.
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
                    continue  # somebody has wrapped ours meanwhile, and calls what we call
                if before is _NONE:
                    delattr(owner, name)
                else:
                    setattr(owner, name, before)
