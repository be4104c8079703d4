"""Brings gradients and optimizer state along: they must stand where their parameter stands.

Foreach and fused optimizers group parameters by device and expect the state there. One pre-hook of
all optimizers compares a counter of moves, and looks at the state only after something has moved. A
parameter may also move while the step's closure runs, so that is looked at once more when it ends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from managed._backend import C
from managed._modules import named

__all__: list[str] = []


def install() -> None:
    register_optimizer_step_pre_hook(_follow)


def _follow(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
    C.begin_step()  # first: it says warnings, which filters may turn into errors
    named.know(optimizer)
    _gather(optimizer)
    if callable(kwargs.get("closure")):
        return args, kwargs | {"closure": _then_gather(optimizer, kwargs["closure"])}
    # Optimizers of other libraries may take something else first, a module for instance.
    if len(args) > 1 and callable(args[1]) and not isinstance(args[1], nn.Module):
        return (args[0], _then_gather(optimizer, args[1]), *args[2:]), kwargs
    return None


def _then_gather(optimizer: torch.optim.Optimizer, closure: Callable[[], Any]) -> Any:
    if not any(C.is_managed(p) for group in optimizer.param_groups for p in group["params"]):
        return closure

    @functools.wraps(closure)
    def run() -> Any:
        result = closure()
        _gather(optimizer)
        return result

    return run


def _gather(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        C.gather_gradients(group["params"])
    count = C.move_count()
    if optimizer.__dict__.get("_managed_moves", 0) == count:
        return
    for group in optimizer.param_groups:
        on_device = bool(group.get("capturable") or group.get("fused"))
        for parameter in group["params"]:
            if C.is_managed(parameter) and parameter in optimizer.state:
                _bring(parameter, optimizer.state[parameter], on_device)
    optimizer.__dict__["_managed_moves"] = count


def _bring(parameter: torch.Tensor, state: dict[str, Any], on_device: bool) -> None:
    for value in state.values():
        if not isinstance(value, torch.Tensor) or value.device == parameter.device:
            continue
        # Scalars such as `step` live on the host, unless the kernel reads them on the device.
        if value.dim() == 0 and value.device.type == "cpu" and not on_device:
            continue
        if C.alone([value]):  # what shares its bytes stays, and is aligned
            C.move(value, parameter.device)
