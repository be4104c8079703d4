"""The picture of a profile. Imported when somebody asks for one: it needs matplotlib."""

from __future__ import annotations

import os
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from managed._spans import Span, held
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
    axes.legend(
        handles=named,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=len(named) or 1,
        fontsize="small",
    )


def _draw_memory(axes: Any, p: profile, devices: list[str]) -> None:
    for device in devices:
        steps = held(p.spans, device, p.elapsed)
        times = [ns / 1e6 for ns, _ in steps] + [p.elapsed / 1e6]
        totals = [total / 2**20 for _, total in steps]
        axes.step(times, totals + totals[-1:], where="post", label=device)
    axes.set_ylabel("MiB in use")
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right", fontsize="small")


def draw(p: profile, path: str | os.PathLike[str] | None) -> Figure:
    """See managed.plot_timeline()."""
    devices = sorted({s.device for s in p.spans if s.kind == "hold"})
    rows = len({_row(s) for s in p.spans if s.kind != "hold"})
    figure = Figure(figsize=(12, 1.5 + 0.35 * rows + (2.5 if devices else 0)), layout="constrained")
    parts = figure.subplots(
        2 if devices else 1,
        sharex=True,
        squeeze=False,
        height_ratios=[max(1.0, 0.35 * rows), 2.0][: 2 if devices else 1],
    )[:, 0]
    _draw_rows(parts[0], p)
    if devices:
        _draw_memory(parts[1], p, devices)
    parts[-1].set_xlabel("ms")
    parts[-1].set_xlim(0, max(p.elapsed / 1e6, 1e-6))
    if path is not None:
        figure.savefig(path)
    return figure
