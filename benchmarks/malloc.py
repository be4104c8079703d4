"""Memory that is freed stays with the process, as that of a device stays with its allocator.

By default the C library returns large blocks to the system when they are freed, and each page of
the next one is found and cleared when it is first touched, which takes several times as long as
writing it. On a simulated device every allocation would cost that, or not, by sizes and luck.
"""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h


def keep_freed_memory() -> None:
    """From now on; only the GNU C library has the call."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or not (mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, 2**31 - 1)):
        print("malloc returns freed memory to the system: times vary by the cost of new pages")
