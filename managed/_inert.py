"""Stands in for the compiled module under NO_MANAGED=1: everything is there, nothing happens.

Tensors and modules stay where the program puts them; knobs keep what they are given. Of torch, only
the names that managed tensors have are added to torch.Tensor.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

__all__: list[str] = []

REQUESTED = DISPERSED = LAST = FIRST = NEXT = READ = HOST = 0
_logger = logging.getLogger("managed")
_knobs: dict[str, Any] = {
    "use_heuristic": True,
    "copy_warning": 16,
    "learning": True,
    "keep_maps": True,
}


class DeviceManager:
    """Knows the host only: find_device is cpu, send is `to`, cuda leaves things where they are."""

    def __init__(
        self,
        comm_interface: Any = None,
        cuda_devices: Any = None,
        reserved: float = 0.1,
        retry_limit: int = 10,
        wait_time: float = 0.1,
    ) -> None:
        self.comm_interface = time if comm_interface is None else comm_interface
        self.cuda_devices: list[torch.device] = []
        self.reserved, self.retry_limit, self.wait_time = reserved, retry_limit, wait_time
        self.default_level = logging.INFO
        self.cpu_device = torch.device("cpu")
        self.devices = [self.cpu_device]

    def log(self, message: object, level: int | None = None) -> None:
        _logger.log(self.default_level if level is None else level, "%s", message)

    def send(self, tensors: Any, device: Any = None, space_estimate: int = -1) -> Any:
        if device is None:
            return tensors
        movable = (torch.Tensor, torch.nn.Module)
        return tree_map(lambda x: x.to(device) if isinstance(x, movable) else x, tensors)

    def find_device(self, space_estimate: float, disperse: bool = False) -> torch.device:
        return self.cpu_device

    def cuda(self, obj: Any, disperse: bool = False) -> Any:
        return obj


_knobs["manager"] = DeviceManager()


def rooms(manager: DeviceManager) -> list[Any]:
    return []  # of accelerators


def install(name_class: type) -> None:
    """Adds to torch.Tensor the names that programs call on managed tensors; they move nothing."""
    tensor: Any = torch.Tensor
    cuda = tensor.cuda

    @functools.wraps(cuda)
    def cuda_or_stay(self: Any, *args: Any, disperse: bool = False, **kwargs: Any) -> Any:
        if disperse and not torch.cuda.is_available():
            return self
        return cuda(self, *args, **kwargs)

    tensor.cuda = cuda_or_stay
    tensor.pin = tensor.unpin = tensor.unplace = _stay
    tensor.pinned = tensor.placed = False


def _stay(self: torch.Tensor) -> torch.Tensor:
    """Nothing moves by itself, so nothing has to be kept."""
    return self


def default_heuristic(size: int) -> int:
    return size + int(1.5 * size**0.5)


_knobs["heuristic"] = default_heuristic


def get_manager() -> DeviceManager:
    return _knobs["manager"]  # type: ignore[no-any-return]


def set_manager(manager: DeviceManager) -> None:
    _knobs["manager"] = manager


def get_heuristic() -> Callable[[int], int]:
    return _knobs["heuristic"]  # type: ignore[no-any-return]


def set_heuristic(function: Callable[[int], int]) -> None:
    _knobs["heuristic"] = function


def get_use_heuristic() -> bool:
    return bool(_knobs["use_heuristic"])


def set_use_heuristic(value: bool) -> None:
    _knobs["use_heuristic"] = value


def learning() -> bool:
    return bool(_knobs["learning"])


def set_learning(on: bool) -> None:
    _knobs["learning"] = on


def keep_maps(on: bool | None = None) -> bool:
    if on is not None:
        _knobs["keep_maps"] = on
    return bool(_knobs["keep_maps"])


def get_copy_warning() -> int:
    return int(_knobs["copy_warning"])


def set_copy_warning(copies: int) -> None:
    _knobs["copy_warning"] = copies


def is_managed(o: object) -> bool:
    return False


def mark(tensor: torch.Tensor, in_module: bool = False) -> torch.Tensor:
    return tensor


def unmark(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def pin(tensor: torch.Tensor, pinned: bool) -> None:
    """Nothing moves by itself, so nothing has to be kept."""


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.nbytes


def object_id(tensor: torch.Tensor | None) -> int:
    return 0


def resume(tensor: torch.Tensor, object_id: int) -> None:
    pass


def pinned(tensor: torch.Tensor) -> bool:
    return False


def advise(tensor: torch.Tensor, advice: int) -> None:
    """Nothing leaves."""


def advice(tensor: torch.Tensor) -> int:
    return 0


def place(tensor: torch.Tensor, placed: bool) -> None:
    """Nothing moves by itself, so no place has to be remembered."""


def placed(tensor: torch.Tensor) -> bool:
    return False


def set_frozen(value: bool) -> bool:
    return True


def attach_sim(capsule: object, devices: int) -> None:
    """Simulated devices are torch's then, and nothing is placed on them by itself."""


def set_host_limit(bytes: int) -> None:
    """Nothing leaves."""


def stats(reset: bool = False) -> dict[str, Any]:
    return {}


def get_on() -> int:
    """managed.on() is in effect nowhere."""
    return 0


def keep_events(all: bool) -> None:
    """Nothing: there are no events."""


def history(tensor: object) -> tuple[list[Any], int]:
    return [], 0


def torture(odds: int, seed: int, at_least: int, overwrite: bool) -> tuple[int, int, int, bool]:
    """Nothing leaves its device."""
    return 0, 0, 0, False


def spill_all() -> int:
    """Nothing leaves its device."""
    return 0


def set_capacity(device: str, bytes: int, spills: bool, host: bool) -> tuple[bool, bool]:
    """No device is capped, because nothing is placed."""
    return True, False


def begin_step(call: bool = False) -> None:
    """Nothing is counted, and no warning waits."""


def plan_budget(index: int, bytes: int, part: float, host: bool) -> None:
    """No device will be capped."""
