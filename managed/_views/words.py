"""Bytes, times and tables as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["OWNERS", "columns", "counted", "size", "took"]

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))


#: Whose bytes of a device can be: of tensors that managed may move; of copies of other devices'
#: tensors that it keeps for their next use; of other devices, which these had no room for; and the
#: rest: plain tensors, small ones, what operators need to work.
OWNERS = ("managed", "replica", "guest", "other")


def size(nbytes: float) -> str:
    """ "12 bytes", "12.0 MiB" (1024s)."""
    unit = 0
    while abs(round(nbytes, 1)) >= 1024 and unit < len(_UNITS) - 1:
        nbytes, unit = nbytes / 1024, unit + 1
    return f"{nbytes:.1f} {_UNITS[unit]}" if unit else f"{nbytes:.0f} {_UNITS[0]}"


def took(ns: float) -> str:
    """ "25.0 us", "1.2 s"; nothing when it was not timed."""
    for scale, unit in _TIMES:
        if ns >= scale:
            return f"{ns / scale:.1f} {unit}"
    return f"{ns:.0f} ns" if ns else ""


def counted(n: int, thing: str) -> str:
    """ "1 copy", "3 copies"."""
    if n == 1:
        return f"1 {thing}"
    return f"{n:,} {thing[:-1]}ies" if thing.endswith("y") else f"{n:,} {thing}s"


def columns(rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Lines with the cells of each column below each other, those of `right` at its right end.

    A column in which nothing is said is left out.
    """
    kept = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*kept, strict=True)]
    ends = set(right)

    def line(row: list[str]) -> str:
        cells = (
            cell.rjust(width) if i in ends else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            if width
        )
        return "  ".join(cells).rstrip()

    return [line(row) for row in kept]
