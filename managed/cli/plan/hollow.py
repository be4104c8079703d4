"""Large parameters take no memory of this machine: they go to meta when a module gets them.

The object stays, and with it ties and what an optimizer holds. It gets bytes where its module is
placed, when the module is sent to a device or called first; the module is managed from then on.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from managed.module import ManagedModule

__all__ = ["install"]

_LARGE = 1 << 20  # bytes


def install() -> None:
    """For the rest of this process, whose devices hold no values."""
    register_module_parameter_registration_hook(_hollow)
    for name in ("to", "cuda", "__call__"):
        setattr(nn.Module, name, _placing(name, getattr(nn.Module, name)))


def _hollow(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
    if type(parameter) is not nn.Parameter or parameter.device.type != "cpu":
        return
    if parameter.nbytes >= _LARGE:
        empty = nn.Parameter(parameter.to("meta"), parameter.requires_grad)
        torch.utils.swap_tensors(parameter, empty)  # type: ignore[no-untyped-call]


def _placing(name: str, original: Any) -> Any:
    @functools.wraps(original)
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, ManagedModule) or not any(p.is_meta for p in self.parameters()):
            return original(self, *args, **kwargs)
        if name == "to":
            device = torch._C._nn._parse_to(*args, **kwargs)[0]
            if device is None or device.type == "meta":
                return original(self, *args, **kwargs)
            if device.type == "cpu":  # where it is, as far as the script knows
                return self
        ManagedModule.from_module(self)
        if name == "__call__":
            ManagedModule.cuda(self)  # type: ignore[type-var]
        return getattr(self, name)(*args, **kwargs)

    return call
