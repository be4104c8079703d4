"""The module attributes with effect: what is assigned to them reaches the C core."""

import warnings
from collections.abc import Callable
from types import ModuleType

from managed._backend import C

__all__ = ["Attributes"]


def _warn() -> None:
    warnings.warn(
        "managed.HEUSRISTIC_FUNCTION is a misspelling that is kept for old programs; "
        "use managed.HEURISTIC_FUNCTION",
        DeprecationWarning,
        stacklevel=3,
    )


class Attributes(ModuleType):
    """The class that the package `managed` gives itself."""

    @property
    def USE_HEURISTIC(self) -> bool:
        """Whether sizes pass through HEURISTIC_FUNCTION. TypeError for anything but a bool."""
        return C.get_use_heuristic()

    @USE_HEURISTIC.setter
    def USE_HEURISTIC(self, value: bool) -> None:
        C.set_use_heuristic(value)

    @property
    def HEURISTIC_FUNCTION(self) -> Callable[[int], int]:
        """Bytes to look for when a tensor has that many: size + int(1.5 * sqrt(size)) at first."""
        return C.get_heuristic()

    @HEURISTIC_FUNCTION.setter
    def HEURISTIC_FUNCTION(self, function: Callable[[int], int]) -> None:
        C.set_heuristic(function)

    @property
    def HEUSRISTIC_FUNCTION(self) -> Callable[[int], int]:
        _warn()
        return C.get_heuristic()

    @HEUSRISTIC_FUNCTION.setter
    def HEUSRISTIC_FUNCTION(self, function: Callable[[int], int]) -> None:
        _warn()
        C.set_heuristic(function)

    @property
    def COPY_WARNING(self) -> int:
        """Copies of one tensor to one device within a step that go without a warning; 0: all."""
        return C.get_copy_warning()

    @COPY_WARNING.setter
    def COPY_WARNING(self, copies: int) -> None:
        C.set_copy_warning(copies)

    @property
    def KEEP_MAPS(self) -> bool:
        """Whether a mapped file serves as the host's copy of bytes that go to a device. TypeError
        for anything but a bool. Storages that have such a copy already keep it."""
        return C.keep_maps()

    @KEEP_MAPS.setter
    def KEEP_MAPS(self, value: bool) -> None:
        C.keep_maps(value)

    @property
    def LEARN_STEPS(self) -> bool:
        """Whether devices that are short of room learn from steps that repeat. TypeError for
        anything but a bool. Setting it to False forgets what was learned."""
        return C.learning()

    @LEARN_STEPS.setter
    def LEARN_STEPS(self, value: bool) -> None:
        C.set_learning(value)

    @property
    def device_manager(self) -> C.DeviceManager:
        """The DeviceManager that `x.cuda()` and `module.cuda()` ask; assign another one."""
        return C.get_manager()

    @device_manager.setter
    def device_manager(self, manager: C.DeviceManager) -> None:
        C.set_manager(manager)
