"""Tells the compiled part when CUDA starts, and of graphs, private pools and shared memory.

A graph keeps the addresses it was recorded with, memory of a private pool is where the program
wants it, and another process reads what it was sent: none may move. In C++ torch does not tell of
them, so its Python entries are wrapped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from managed._backend import C

__all__: list[str] = []

_BEGIN = (
    "_cuda_beginAllocateToPool",
    "_cuda_beginAllocateCurrentStreamToPool",
    "_cuda_beginAllocateCurrentThreadToPool",
)
_END = "_cuda_endAllocateToPool"


def install() -> None:
    """Connects managed._cuda, where this torch and this build have it. Initialises no driver."""
    if torch.version.cuda is None:
        return
    try:
        from managed import _cuda
    except ImportError:
        return
    _cuda.attach(C.bridge)
    cuda: Any = torch.cuda
    cuda._lazy_call(C.cuda_starts)
    wrap_graph(cuda.CUDAGraph)
    for module in (torch._C, cuda.memory):
        wrap_pools(module)
    storage: Any = torch.UntypedStorage
    storage._share_cuda_ = _staying(storage._share_cuda_)


def wrap_graph(graph: Any) -> None:
    begin, end = graph.capture_begin, graph.capture_end

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        _enter(self)
        try:
            begin(self, *args, **kwargs)
        except BaseException:
            _leave(self)
            raise

    @functools.wraps(end)
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            end(self, *args, **kwargs)
        finally:
            _leave(self)

    graph.capture_begin, graph.capture_end = capture_begin, capture_end


def _enter(graph: Any) -> None:
    if not getattr(graph, "_managed_records", False):
        graph._managed_records = True
        C.private_pool(1, True)


def _leave(graph: Any) -> None:
    if getattr(graph, "_managed_records", False):
        graph._managed_records = False
        C.private_pool(-1, True)


def wrap_pools(module: Any) -> None:
    """Every way in and the one way out, where the module has them."""
    for name in (*_BEGIN, _END):
        if hasattr(module, name):
            setattr(module, name, _counted(getattr(module, name), -1 if name == _END else 1))


def _staying(original: Callable[..., Any]) -> Callable[..., Any]:
    """Another process reads the bytes from now on, so they stay, as after data_ptr()."""

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        torch.empty(0, dtype=torch.uint8, device=self.device).set_(self).data_ptr()
        return original(self, *args, **kwargs)

    return call


def _counted(original: Callable[..., Any], change: int) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if change < 0:
            result = original(*args, **kwargs)
            C.private_pool(change, False)
            return result
        C.private_pool(change, False)  # before torch keeps what it has for the pool
        try:
            return original(*args, **kwargs)
        except BaseException:
            C.private_pool(-change, False)
            raise

    return call
