"""Tells the compiled part of pointers that DLPack gives out where Tensor.__dlpack__ is not asked.

That method is wrapped in C (csrc/python/tensor.c). torch.utils.dlpack.to_dlpack() is older and goes
past it; so do libraries that take tensors by C functions (csrc/python/exchange.c).
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
from torch.utils import dlpack

from managed._backend import C

__all__: list[str] = []


def install() -> None:
    _wrap_function()
    _wrap_table()


def _wrap_function() -> None:
    modules: tuple[Any, ...] = (torch, dlpack)
    original = modules[1].to_dlpack

    @functools.wraps(original)
    def to_dlpack(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, torch.Tensor):
            with contextlib.suppress(RuntimeError):  # without a pointer there: the original says so
                tensor.data_ptr()  # brings the bytes home, where they stay from now on
        return original(tensor, *args, **kwargs)

    for module in modules:
        if getattr(module, "to_dlpack", None) is original:
            module.to_dlpack = to_dlpack


def _wrap_table() -> None:
    tensor: Any = torch.Tensor
    table = getattr(tensor, "__dlpack_c_exchange_api__", None)
    if table is None:  # torch has none yet
        return
    ours = C.exchange_api(table)
    if ours is None:  # of an unknown version: a consumer that finds none asks __dlpack__
        del tensor.__dlpack_c_exchange_api__
    else:
        tensor.__dlpack_c_exchange_api__ = ours
