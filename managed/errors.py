"""The exceptions of managed, and its warning.

`except managed.errors.ManagedError` catches what only managed raises.
Bad arguments are plain ValueError and TypeError and leave everything as it was.
"""

import torch

__all__ = ["CopyWarning", "ManagedError", "OutOfMemoryError", "PinConflictError"]

# By these words Lightning's BatchSizeFinder, for one, knows the error, on whatever device it is.
_KNOWN_BY = "CUDA out of memory."
_KNOWN_BY_OF_HOST = "DefaultCPUAllocator: can't allocate memory"


class ManagedError(Exception):
    """Base of what managed raises beside ValueError and TypeError."""


class PinConflictError(ManagedError, RuntimeError):
    """A pinned tensor was asked to move, or operands are pinned to different devices."""


class OutOfMemoryError(ManagedError, torch.OutOfMemoryError):
    """No room appeared on a device in time; the text says what was asked and what is free.

    Programs that look for a batch size know the error by its class or by its text: it has the words
    "CUDA out of memory.", of CUDA's allocator itself or added at the end. If the host had no room
    for what would have to leave the device, the words are "the host is out of memory." and those of
    the CPU's allocator.
    """

    def __init__(self, *args: object) -> None:
        known = [words in str(arg) for arg in args for words in (_KNOWN_BY, _KNOWN_BY_OF_HOST)]
        if len(args) == 1 and not any(known):
            args = (f'{args[0]} CUDA\'s allocator would say "{_KNOWN_BY}"',)
        super().__init__(*args)

    def _repr_html_(self) -> str:
        from managed._torch_patches import reprs

        return reprs.out_of_memory_html(self)


class CopyWarning(UserWarning):
    """A tensor was copied to one device more than managed.COPY_WARNING times.

    The count begins anew when an optimizer steps and when a backward pass ends; in a program
    without these it is that of the whole run. Each line of the program gives one warning. See the
    page "Why did this move?".
    """
