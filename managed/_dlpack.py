"""Tells the compiled part of the pointers that torch.utils.dlpack.to_dlpack() gives out.

Tensor.__dlpack__ is wrapped in C (csrc/python/tensor.c). This function is older, and goes past it.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
from torch.utils import dlpack

__all__: list[str] = []


def install() -> None:
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
