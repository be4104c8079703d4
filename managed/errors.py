"""The exceptions of managed; `except managed.errors.ManagedError` catches what only managed raises.

Bad arguments are plain ValueError and TypeError and leave everything as it was.
"""

import torch

__all__ = ["ManagedError", "OutOfMemoryError", "PinConflictError"]


class ManagedError(Exception):
    """Base of what managed raises beside ValueError and TypeError."""


class PinConflictError(ManagedError, RuntimeError):
    """A pinned tensor was asked to move, or operands are pinned to different devices."""


class OutOfMemoryError(ManagedError, torch.OutOfMemoryError):
    """No room appeared on a device in time; the text says what was asked and what is free."""
