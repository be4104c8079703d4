"""The picture of a profile. Imported when somebody asks for one: it needs matplotlib."""

from __future__ import annotations

import os
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from managed._spans import OWNERS, Span, held
from managed.profile import profile

__all__ = ["draw"]

COLORS = {
    "run": "#4878cf",
    "copy": "#6acc65",
    "spill": "#d65f5f",
    "spare": "#d68fb8",
    "restore": "#ee854a",
    "wait": "#b0b0b0",
    "stall": "#d8d8d8",
}
OWNED = dict(zip(OWNERS, ("#4878cf", "#6acc65", "#ee854a", "#c8c8c8"), strict=True))
LEGEND = {"loc": "lower right", "bbox_to_anchor": (1, 1), "fontsize": "small"}  # above the axes


def _row(s: Span) -> str:
    if s.kind == "copy":
        return f"{s.device} -> {s.other}"
    return f"thread {s.stream}" if s.kind == "wait" else f"{s.device} stream {s.stream}"


def _color(s: Span) -> str:
    return COLORS.get(s.name, COLORS["copy"]) if s.kind == "copy" else COLORS[s.kind]


def _draw_rows(axes: Any, p: profile) -> None:
    shown = [s for s in p.spans if s.kind != "hold"]
    order = {"wait": 0, "run": 1, "stall": 1, "copy": 2}
    rows = list(
        dict.fromkeys(_row(s) for s in sorted(shown, key=lambda s: (order[s.kind], _row(s))))
    )
    bars: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for s in shown:
        place = (rows.index(_row(s)), _color(s))
        bars.setdefault(place, []).append((s.begin / 1e6, (s.end - s.begin) / 1e6))
    for (row, color), spans in bars.items():
        axes.broken_barh(spans, (row - 0.4, 0.8), facecolors=color, linewidth=0)
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    used = {c for _, c in bars}
    named = [Patch(color=c, label=name) for name, c in COLORS.items() if c in used]
    axes.legend(**LEGEND, handles=named, ncols=len(named) or 1)


def _draw_memory(axes: Any, p: profile, device: str) -> None:
    """Bytes in use, one owner on top of the other."""
    steps = held(p.spans, device, p.elapsed)
    times = [ns / 1e6 for ns, _ in steps] + [p.elapsed / 1e6]
    owners = [o for o in OWNERS if any(by[o] for _, by in steps)] or [*OWNERS[-1:]]
    totals = [[by[owner] / 2**20 for _, by in [*steps, steps[-1]]] for owner in owners]
    axes.stackplot(times, *totals, labels=owners, colors=[OWNED[o] for o in owners], step="post")
    axes.set_ylabel(f"MiB of {device}")
    axes.set_ylim(bottom=0)
    axes.legend(**LEGEND, ncols=len(owners))


def draw(p: profile, path: str | os.PathLike[str] | None) -> Figure:
    """See managed.plot_timeline()."""
    devices = sorted({s.device for s in p.spans if s.kind == "hold"})
    rows = max(1.0, 0.35 * len({_row(s) for s in p.spans if s.kind != "hold"}))
    heights = [rows] + [2.0] * len(devices)
    figure = Figure(figsize=(12, 1.5 + sum(heights)), layout="constrained")
    parts = figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    _draw_rows(parts[0], p)
    for axes, device in zip(parts[1:], devices, strict=True):
        _draw_memory(axes, p, device)
    parts[-1].set_xlabel("ms")
    parts[-1].set_xlim(0, max(p.elapsed / 1e6, 1e-6))
    if path is not None:
        figure.savefig(path)
    return figure
