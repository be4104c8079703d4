"""Devices without values in Python: what is printed and saved, and what calls are told of forms."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import _tensor_str

from managed import _sim

__all__: list[str] = []


def install() -> None:
    original: Any = _tensor_str._tensor_str
    _tensor_str._tensor_str = functools.wraps(original)(functools.partial(_printed, original))
    _tell_of_cpu_kernels()
    torch.serialization.register_package(18, _refuse, _no_storage)


def _tell_of_cpu_kernels() -> None:
    """Makes meta kernels answer for the CPU if no device is named; torch's take CUDA."""
    from torch import _meta_registrations

    asked: Any = getattr(_meta_registrations, "device_hint", None)
    if asked is not None:

        def device_hint(tensor: Any) -> Any:
            kind = getattr(getattr(tensor, "device", None), "type", None)
            fake = isinstance(tensor, torch._subclasses.FakeTensor)
            return "cpu" if kind == "meta" and not fake else asked(tensor)

        _meta_registrations.device_hint = functools.wraps(asked)(device_hint)


def _printed(original: Any, tensor: torch.Tensor, indent: int) -> Any:
    """The form alone of what has no values."""
    if _sim.is_known(tensor):
        return original(tensor, indent)
    return f"..., size={tuple(tensor.shape)}"


def _refuse(storage: Any) -> None:
    """Asked for the name of the place of each storage that is saved."""
    storage = getattr(storage, "_untyped_storage", storage)
    if storage.device.type == "sim" and storage.nbytes():
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        if not _sim.is_known(whole):
            raise RuntimeError(
                f"managed: {storage.nbytes()} bytes on {storage.device} cannot be saved: devices "
                "without values (values=False) do not know them. Save from a run with values."
            )


def _no_storage(storage: Any, location: str) -> None:
    """What is loaded is torch's matter."""
