"""The other way to do it: a tensor subclass whose `__torch_function__` is Python.

This is what github.com/bridgesign/managed does on every call, written again from a
description of its behaviour: it walks all arguments to gather tensors, adds up
the bytes each device already holds (the device coverage), takes the device with
most, converts the others, calls, and gives the results the class. What it does
besides (log lines, a walk over the autograd graph, waiting for room)
is left out, so the figures flatter it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

__all__ = ["WalkingTensor", "get_device_coverage", "wrap_module"]


def aggregate_tensors(into: list[torch.Tensor], value: Any) -> None:
    """Appends the tensors in value, looking into lists, tuples, sets and dictionaries."""
    if isinstance(value, torch.Tensor):
        into.append(value)
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            aggregate_tensors(into, item)
    elif isinstance(value, dict):
        for item in value.values():
            aggregate_tensors(into, item)


def get_device_coverage(tensors: Iterable[torch.Tensor]) -> dict[torch.device, int]:
    """Bytes of the tensors on each device."""
    coverage: dict[torch.device, int] = {}
    for tensor in tensors:
        device = tensor.device
        coverage[device] = coverage.get(device, 0) + tensor.numel() * tensor.element_size()
    return coverage


def send(tensors: list[torch.Tensor]) -> None:
    """Brings all tensors to the device that already covers most bytes."""
    coverage = get_device_coverage(tensors)
    device = max(coverage, key=coverage.__getitem__)
    for tensor in tensors:
        if tensor.device != device:
            tensor.data = tensor.data.to(device, non_blocking=True)


class WalkingTensor(torch.Tensor):
    """A tensor that aligns the devices of operands in Python on every call."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            tensors: list[torch.Tensor] = []
            aggregate_tensors(tensors, args)
            aggregate_tensors(tensors, kwargs)
            if len(tensors) > 1:
                send(tensors)
        return super().__torch_function__(func, types, args, kwargs)


def wrap_module(module: torch.nn.Module) -> torch.nn.Module:
    """Gives every parameter and buffer of the module the class, in place."""
    for part in module.modules():
        for parameter in part._parameters.values():
            if parameter is not None:
                parameter.__class__ = WalkingTensor
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = buffer.as_subclass(WalkingTensor)
    return module
