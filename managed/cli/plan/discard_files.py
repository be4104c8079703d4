"""Serialisers that open files by themselves: torch.save, torch.load and safetensors.

What has no values cannot be saved; a script that saves it goes on, and finds an empty file.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from managed.cli.plan.discard import Discard

__all__ = ["install"]


def install(discard: Discard) -> None:
    """Wraps them for the rest of this process."""
    torch.save = _saving(discard, torch.save, 1, "f")
    torch.load = torch.serialization.load = _loading(discard, torch.load)
    torch.serialization.save = torch.save
    if find_spec("safetensors"):
        module = import_module("safetensors.torch")
        module.save_file = _saving(discard, module.save_file, 1, "filename")  # type: ignore[attr-defined]


def _saving(
    discard: Discard, original: Callable[..., Any], position: int, name: str
) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        given = list(args)
        file = kwargs.get(name) if len(given) <= position else given[position]
        if isinstance(file, str | os.PathLike):
            file = discard.place(file)
            if len(given) > position:
                given[position] = file
            else:
                kwargs[name] = file
        try:
            return original(*given, **kwargs)
        except RuntimeError as error:
            if "without values" not in str(error):
                raise
            if isinstance(file, str | os.PathLike):
                open(file, "wb").close()
            return None

    return save


def _loading(discard: Discard, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        return original(discard.seen(f) if isinstance(f, str | os.PathLike) else f, *args, **kwargs)

    return load
