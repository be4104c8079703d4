"""Chooses what does the work: the compiled module, or nothing at all under NO_MANAGED=1."""

import importlib
import os
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

from managed import _built

__all__ = ["BROKEN", "INERT", "C"]


def _is_doctor() -> bool:
    """Whether `managed doctor` was started, which has to say why something cannot be imported."""
    started = pairwise(sys.orig_argv)
    return any(os.path.basename(a) == "managed" and b == "doctor" for a, b in started)


def _find_broken() -> ImportError | None:
    try:
        _built.check()
        try:
            importlib.import_module("managed._C")
        except ImportError as error:
            raise _built.explained(error) from error
    except ImportError as error:
        if not _is_doctor():
            raise
        return error
    return None


_ASKED = os.environ.get("NO_MANAGED", "0") not in ("", "0")

#: Why the compiled module cannot be imported: of interest to `managed doctor` alone.
BROKEN = None if _ASKED else _find_broken()

#: Whether the package was imported with NO_MANAGED set to anything but 0 or nothing.
INERT = _ASKED or BROKEN is not None

if TYPE_CHECKING or not INERT:
    from managed import _C as C
else:
    from managed import _inert as C
