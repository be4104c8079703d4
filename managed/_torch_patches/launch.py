"""Lends the arguments of compiled graphs and of Triton's kernels for the length of one call.

Both read `data_ptr()` of what they are given, and a pointer that a program has taken keeps its
bytes where they are for good. These need them until they have started their kernels; the stream
is waited for as after any operator.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import torch

from managed._backend import C

__all__: list[str] = []

_TRITON = "triton.runtime.jit"


def install() -> None:
    """Wraps Triton's launcher, now or when it is imported."""
    if torch.version.cuda is None:
        return
    if _TRITON in sys.modules:
        _wrap_triton(sys.modules[_TRITON])
    else:
        sys.meta_path.insert(0, _Triton())


def _wrap_triton(module: Any) -> None:
    module.JITFunction.run = _lending_all(module.JITFunction.run)


def wrap_inductor() -> None:
    """Wraps the call of a compiled graph; Inductor is imported when something is compiled first."""
    from torch._inductor.output_code import CompiledFxGraph

    if not hasattr(CompiledFxGraph.__call__, "__wrapped__"):
        CompiledFxGraph.__call__ = _lending_inputs(CompiledFxGraph.__call__)  # type: ignore[method-assign]


def _lending_inputs(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, inputs: Any) -> Any:
        return C.call_lent(inputs, self.mutated_input_idxs, original, (self, inputs))

    return call


def _lending_all(original: Callable[..., Any]) -> Callable[..., Any]:
    """What a kernel writes is unknown."""

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        return C.call_lent((*args, *kwargs.values()), None, original, args, kwargs)

    return run


class _Triton(importlib.abc.MetaPathFinder):
    """Finds nothing by itself: it has the module found, and wraps what comes of it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _TRITON:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader: Any = spec and spec.loader
        if loader is not None:
            load = loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                _wrap_triton(module)

            loader.exec_module = exec_module
        return spec
