"""The colours of events and of owners, the same in every picture and table."""

from __future__ import annotations

from managed._views.words import OWNERS

__all__ = ["COLORS", "OWNED"]

COLORS = {
    "run": "#4878cf",
    "copy": "#6acc65",
    "move": "#956cb4",
    "write_back": "#8c613c",
    "spill": "#d65f5f",
    "spare": "#d68fb8",
    "restore": "#ee854a",
    "wait": "#b0b0b0",
    "stall": "#d8d8d8",
}
OWNED = dict(zip(OWNERS, ("#4878cf", "#6acc65", "#ee854a", "#c8c8c8"), strict=True))
