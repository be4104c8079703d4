"""Lets torch.utils.checkpoint repeat random numbers on every device that managed operators use.

It saves the generators of the devices on which the arguments stand. A managed function draws
wherever its operands meet, so the others are saved too; otherwise dropout would differ in the
recomputation, and gradients would be silently wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import checkpoint

__all__: list[str] = []


def install() -> None:
    """Wraps get_device_states, which both kinds of checkpoints call."""
    original = checkpoint.get_device_states

    @functools.wraps(original)
    def get_device_states(*args: Any) -> tuple[list[int], list[torch.Tensor]]:
        indices, states = original(*args)
        kind = checkpoint._infer_device_type(*args)  # type: ignore[no-untyped-call]
        for index in _in_use(kind):
            if index not in indices:
                indices.append(index)
                states.append(torch.get_device_module(kind).get_rng_state(index))
        return indices, states

    checkpoint.get_device_states = get_device_states


def _in_use(kind: str) -> Iterator[int]:
    """Devices of the kind; a GPU without a context has drawn nothing, and is not given one."""
    started = getattr(torch._C, "_cuda_hasPrimaryContext", None) if kind == "cuda" else None
    if kind == "sim" or started is not None:
        for index in range(torch.get_device_module(kind).device_count()):
            if started is None or started(index):
                yield index
