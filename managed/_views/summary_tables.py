"""A Summary as text and as HTML. Imported when one is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from managed._views import html as _html
from managed._views.words import columns, size

if TYPE_CHECKING:
    from managed._views.summary import Line, Summary

__all__ = ["html", "text"]

_HEAD = ("Layer (type:depth-idx)", "Output Shape", "Param #", "Size", "Device", "Bytes are")
_RIGHT = (2, 3)


def _branches(lines: list[Line]) -> list[str]:
    """The beginning of each line, which shows whose child it is."""
    ended: dict[int, bool] = {}
    found = []
    for line in lines:
        ended[line.depth] = line.last
        above = "".join("    " if ended[i] else "│   " for i in range(1, line.depth))
        found.append(above + ("└── " if line.last else "├── ") if line.depth else "")
    return found


def _where(line: Line) -> str:
    """Nothing where they are at home."""
    where = line.where
    if list(where) == line.devices:
        return ""
    return ", ".join(f"{size(n)} on {device}" for device, n in where.items() if n)


def _rows(s: Summary) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for branch, line in zip(_branches(s.lines), s.lines, strict=True):
        held = line.bytes > 0
        count = f"{line.parameters:,}" if line.parameters else "--"
        told = "(tied)" if line.ties and not held else count
        rows.append(
            (
                branch + line.position,
                line.shape,
                told,
                size(line.bytes) if held else "",
                ", ".join(line.devices),
                _where(line),
            )
        )
    return rows


def _totals(s: Summary) -> list[tuple[str, str]]:
    fixed = s.total_params - s.trainable_params
    where = ", ".join(f"{size(n)} on {device}" for device, n in s.where.items() if n) or "none"
    return [
        ("Total params", f"{s.total_params:,}"),
        ("Trainable params", f"{s.trainable_params:,}"),
        ("Non-trainable params", f"{fixed:,}"),
        ("Parameters and buffers", where if len(s.where) == 1 else f"{size(s.bytes)}: {where}"),
    ]


def _peaks(s: Summary) -> list[tuple[str, str, str]]:
    rows = []
    for device, n in sorted(s.peaks.items()):
        room = s.capacities.get(device)
        told = ""
        if room is not None:
            told = f"of {size(room)}"
            told += f": {size(n - room)} leave at the peak" if n > room else ""
        rows.append((device, size(n), told))
    return rows


def text(s: Summary) -> str:
    """See Summary."""
    lines = columns([_HEAD, *_rows(s)], _RIGHT)
    totals = [f"{name}: {value}" for name, value in _totals(s)]
    peaks = [f"Predicted peak of {s.of}:", *("  " + p for p in columns(_peaks(s), [1]))]
    wide = max(map(len, [*lines, *totals, *peaks]))
    thick, thin = "=" * wide, "-" * wide
    parts = [thick, lines[0], thick, *lines[1:], thick, *totals]
    if s.peaks:
        parts += [thin, *peaks]
    return "\n".join([*parts, thick])


def html(s: Summary) -> str:
    """See Summary."""
    rows = _rows(s)
    used = [i for i in range(len(_HEAD)) if any(row[i] for row in rows)]
    tree = _html.table(
        [_HEAD[i] for i in used],
        [[row[i] for i in used] for row in rows],
        right=[at for at, i in enumerate(used) if i in _RIGHT],
    )
    parts: list[str] = [_html.fold("modules", tree, opened=len(rows) <= 40)]
    parts.append(_html.table((), _totals(s)))
    if s.peaks:
        peaks = [
            (device, told, _html.bar({"peak": s.peaks[device]}, {"peak": color}, room), of)
            for device, told, of in _peaks(s)
            for room in [s.capacities.get(device, 0)]
            for color in ["#d65f5f" if s.peaks[device] > room else "#4878cf"]
        ]
        parts += [_html.note(f"Predicted peak of {s.of}"), _html.table((), peaks, right=[1])]
    return _html.page(f"{s.model}: {s.total_params:,} parameters, {size(s.bytes)}", *parts)
