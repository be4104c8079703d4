"""Chooses what does the work: the compiled module, or nothing at all under NO_MANAGED=1."""

import os
from typing import TYPE_CHECKING

__all__ = ["INERT", "C"]

#: Whether the package was imported with NO_MANAGED set to anything but 0 or nothing.
INERT = os.environ.get("NO_MANAGED", "0") not in ("", "0")

if TYPE_CHECKING or not INERT:
    from managed import _C as C
else:
    from managed import _inert as C
