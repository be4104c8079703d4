"""Simulated devices and torch.distributed: process groups whose tensors are on them.

Values go through gloo, between processes that each have simulated devices of their own
(csrc/sim/group). `init_process_group()` without a name makes such groups, and with the name "gloo",
since gloo takes the tensors of real GPUs, too. Each of them serves the CPU's tensors as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

__all__: list[str] = []


def install() -> None:
    """Called once, when devices are simulated."""
    if not distributed.is_gloo_available():
        return
    c10d: Any = distributed.distributed_c10d
    c10d._new_process_group_helper = _unbound(c10d._new_process_group_helper)
    distributed.Backend.default_device_backend_map["sim"] = "sim"
    original = c10d.BackendConfig.__init__

    @functools.wraps(original)
    def __init__(self: Any, backend: Any) -> None:
        asked = str(backend)
        if asked in ("undefined", "gloo") or "sim" in asked:
            _register()
        original(self, backend)
        found = self.device_backend_map
        if asked == "gloo":
            found["sim"] = "sim"
            if _no_gpu():  # torch would make one more group of gloo's for it
                found.pop("cuda", None)
        elif asked == "sim" or (asked == "undefined" and "sim" in found):
            found["cpu"] = "gloo"

    c10d.BackendConfig.__init__ = __init__


def _register() -> None:
    """Is called late, because a registered backend changes what torch makes of "cpu:gloo"."""
    if "SIM" not in distributed.Backend._plugins:
        distributed.Backend.register_backend("sim", _backend, devices=["sim"])


def _no_gpu() -> bool:
    return getattr(torch._C, "_cuda_getDeviceCount", int)() == 0


def _unbound(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes no bound device known: torch would split such groups, and gloo cannot."""

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device_id")
        if device is not None and torch.device(device).type == "sim":
            kwargs["device_id"] = None
        return original(*args, **kwargs)

    return make


def _backend(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Makes the Backend of one process group, for the tensors of simulated devices."""
    Group = distributed.ProcessGroup
    host: Any = Group(store, rank, size)
    gloo = distributed.ProcessGroupGloo(store, rank, size, timeout)
    host._register_backend(torch.device("cpu"), Group.BackendType.GLOO, gloo)
    group = Group.unbox(torch.ops.managed_sim.process_group(host.boxed()))
    return group._get_backend(torch.device("sim"))
