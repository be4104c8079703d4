"""The calling thread's current device, as torch.sim has it."""

from __future__ import annotations

from types import TracebackType

import torch

from managed import _sim
from managed._simulated.memory import Device, index_of

__all__ = ["current_device", "device", "device_of", "set_device"]


def current_device() -> int:
    """Index of the calling thread's device."""
    return _sim.current_device()


def set_device(device: Device) -> None:
    _sim.set_device(index_of(device))


class device:
    """Context manager: makes a device the calling thread's current one."""

    def __init__(self, device: Device) -> None:
        self.idx = index_of(device)
        self._before: list[int] = []

    def __enter__(self) -> None:
        self._before.append(_sim.current_device())
        _sim.set_device(self.idx)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _sim.set_device(self._before.pop())


class device_of(device):
    """Context manager: the device of a tensor; nothing for tensors elsewhere."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == "sim" else None)
