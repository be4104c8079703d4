"""What the kernel does for a process: it refuses writes outside a few folders (Landlock), for its
children too, and ends the process with the one that started it.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable

__all__ = ["allow_writes_below", "end_with_parent"]

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_PDEATHSIG, _NO_NEW_PRIVS = 1, 38  # prctl
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
#: Bits of linux/landlock.h: remove and make files of all kinds; rename and truncate came later.
_FIRST = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))
_BY_VERSION = {1: _FIRST, 2: _FIRST | 1 << 13, 3: _FIRST | 1 << 13 | _TRUNCATE}


class _Below(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"  # Python 3.14 asks for it beside _pack_
    _fields_ = (("access", ctypes.c_uint64), ("parent", ctypes.c_int32))


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def allow_writes_below(folders: Iterable[str]) -> bool:
    """Refuses all other writes from now on; False where the kernel cannot, and nothing changes.

    Folders that do not exist are left out.
    """
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    version = call(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    handled = ctypes.c_uint64(_BY_VERSION[min(version, 3)])
    rules = call(_CREATE_RULESET, ctypes.byref(handled), ctypes.c_size_t(8), 0)
    if rules < 0:
        return False
    try:
        for folder in folders:
            try:
                parent = os.open(folder, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            below = _Below(handled.value, parent)
            added = call(_ADD_RULE, rules, 1, ctypes.byref(below), 0)
            os.close(parent)
            if added:
                return False
        if ctypes.CDLL(None).prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
            return False
        return not call(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)
