"""Tells opt_einsum what managed tensors are: it asks `x.__class__.__module__` for a library.

torch imports it where it is installed. Without this it takes `managed` for a library with no
einsum, and numpy's instead (tensorly, and with it neuraloperator, contract by it).
"""

from __future__ import annotations

import sys

__all__: list[str] = []


def install() -> None:
    dispatch = sys.modules.get("opt_einsum.backends.dispatch")
    aliases = getattr(dispatch, "_aliases", None)
    if isinstance(aliases, dict):
        aliases.setdefault("managed", aliases.get("torch", "torch"))
