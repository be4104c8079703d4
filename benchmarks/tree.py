"""Where the tree is, and its package for those who have not installed it."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["ROOT"]

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # at the end: an installed package wins
