"""Names of a notebook's cells: what runs in one stands in a file with a number for a name."""

from __future__ import annotations

import re
import sys
from pathlib import PurePath
from typing import Any

__all__ = ["cells", "in_notebook", "named"]

_SITE = r"(?P<file>.+):(?P<line>\d+) in (?P<function>.*)"


def _shell() -> Any:
    """IPython's shell if this program runs in one. IPython is not imported for it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return shell() if shell else None


def in_notebook() -> bool:
    """Whether outputs are shown by a notebook's kernel, and not in a terminal."""
    return hasattr(_shell(), "kernel")


def cells() -> dict[str, int]:
    """The number of the cell of each file that IPython made up; nothing elsewhere."""
    files = getattr(getattr(_shell(), "compile", None), "_filename_map", None) or {}
    return {PurePath(name).name: number for name, number in files.items()}


def named(site: str | None, known: dict[str, int]) -> str | None:
    """ "1234.py:5 in step" as "cell 3, line 5 in step"."""
    found = re.fullmatch(_SITE, site) if site and known else None
    number = known.get(found["file"]) if found else None
    if not found or number is None:
        return site
    function = found["function"]
    inside = "" if function.startswith("<") else f" in {function}"
    return f"cell {number}, line {found['line']}{inside}"
