"""Pictures of a profile, of memory and of moves. Imported when one is wanted: it needs
matplotlib.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from managed._views.colors import COLORS, OWNED
from managed._views.spans import Span, held
from managed._views.stats_tables import by_owner
from managed._views.words import OWNERS, size

if TYPE_CHECKING:
    from managed.profile import profile

__all__ = ["draw", "draw_held", "draw_memory", "draw_moves"]

LEGEND = {"loc": "lower right", "bbox_to_anchor": (1, 1), "fontsize": "small"}  # above the axes


class Picture(Figure):
    """A figure that a notebook shows, whether or not pyplot is imported there."""

    def _repr_png_(self) -> bytes:
        written = io.BytesIO()
        self.savefig(written, format="png", dpi=72)
        return written.getvalue()


def _row(s: Span) -> str:
    if s.kind == "copy":
        return f"{s.device} -> {s.other}"
    return f"thread {s.stream}" if s.kind == "wait" else f"{s.device} stream {s.stream}"


def _color(s: Span) -> str:
    return COLORS.get(s.name, COLORS["copy"]) if s.kind == "copy" else COLORS[s.kind]


def _draw_rows(axes: Any, spans: Sequence[Span], edge: float = 0) -> None:
    """A row for each stream, link and thread; an edge lets short ones be seen in a long time."""
    shown = [s for s in spans if s.kind != "hold"]
    order = {"wait": 0, "run": 1, "stall": 1, "copy": 2}
    rows = list(
        dict.fromkeys(_row(s) for s in sorted(shown, key=lambda s: (order[s.kind], _row(s))))
    )
    bars: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for s in shown:
        place = (rows.index(_row(s)), _color(s))
        bars.setdefault(place, []).append((s.begin / 1e6, (s.end - s.begin) / 1e6))
    for (row, color), times in bars.items():
        axes.broken_barh(times, (row - 0.4, 0.8), facecolors=color, edgecolor=color, linewidth=edge)
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


def _figure(heights: Sequence[float], width: float = 12, **shared: Any) -> tuple[Picture, Any]:
    """A figure with parts below each other, and these."""
    figure = Picture(figsize=(width, 1.5 + sum(heights)), layout="constrained")
    parts = figure.subplots(len(heights), squeeze=False, height_ratios=heights, **shared)
    return figure, parts[:, 0]


def _end(figure: Picture, path: str | os.PathLike[str] | None) -> Picture:
    if path is not None:
        figure.savefig(path)
    return figure


def _holders(p: profile) -> list[str]:
    return sorted({s.device for s in p.spans if s.kind == "hold"})


def _time_below(axes: Any, p_elapsed: int) -> None:
    axes.set_xlabel("ms")
    axes.set_xlim(0, max(p_elapsed / 1e6, 1e-6))


def draw(p: profile, path: str | os.PathLike[str] | None) -> Figure:
    """See managed.plot_timeline()."""
    devices = _holders(p)
    rows = max(1.0, 0.35 * len({_row(s) for s in p.spans if s.kind != "hold"}))
    figure, parts = _figure([rows] + [2.0] * len(devices), sharex=True)
    _draw_rows(parts[0], p.spans)
    for axes, device in zip(parts[1:], devices, strict=True):
        _draw_memory(axes, p, device)
    _time_below(parts[-1], p.elapsed)
    return _end(figure, path)


def draw_memory(p: profile, path: str | os.PathLike[str] | None) -> Figure:
    """See managed.plot_memory(): the devices of a profile over time."""
    devices = _holders(p)
    figure, parts = _figure([1.6] * max(1, len(devices)), width=9, sharex=True)
    for axes, device in zip(parts, devices, strict=False):
        _draw_memory(axes, p, device)
    if not devices:
        _say(parts[0], "the profile has no bytes: only simulated devices tell them over time")
    else:
        _time_below(parts[-1], p.elapsed)
    return _end(figure, path)


def _say(axes: Any, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center")
    axes.set_axis_off()


def draw_held(devices: dict[str, dict[str, Any]], path: str | os.PathLike[str] | None) -> Figure:
    """See managed.plot_memory(): what devices hold now, from stats()["devices"]."""
    figure, (axes,) = _figure([max(0.6, 0.45 * len(devices))], width=9)
    if not devices:
        _say(axes, "no accelerator has been used yet")
        return _end(figure, path)
    names = list(devices)
    left = [0.0] * len(names)
    owned = [by_owner(*device) for device in devices.items()]
    kept = [
        {name: held["live"] + held["cached"] for name, held in device["holders"].items()}
        for device in devices.values()
    ]
    for one, holders in zip(owned, kept, strict=True):
        one["other"] = max(0, one["other"] - sum(holders.values()))
    looks = {owner: {"color": OWNED[owner]} for owner in OWNERS}
    looks |= {name: {"color": "#f0f0f0", "hatch": "//"} for holders in kept for name in holders}
    for owner, look in looks.items():
        widths = [(a | b).get(owner, 0) / 2**20 for a, b in zip(owned, kept, strict=True)]
        if any(widths):
            axes.barh(names, widths, 0.6, left=left, label=owner, edgecolor="#606060", lw=0, **look)
        left = [x + w for x, w in zip(left, widths, strict=True)]
    for row, held_there in enumerate(devices.values()):
        for key, style in (("capacity", "solid"), ("peak", "dotted")):
            at = held_there[key] / 2**20
            label = key if row == 0 else None
            axes.plot([at, at], [row - 0.4, row + 0.4], color="#606060", ls=style, label=label)
    axes.invert_yaxis()
    axes.set_xlabel("MiB")
    axes.set_xlim(left=0)
    axes.legend(**LEGEND, ncols=6)
    return _end(figure, path)


def draw_moves(spans: list[Span], elapsed: int, path: str | os.PathLike[str] | None) -> Figure:
    """See managed.plot_moves()."""
    copies = [s for s in spans if s.kind == "copy"]
    rows = max(0.8, 0.35 * len({_row(s) for s in copies}))
    figure, (above, below) = _figure([rows, rows], width=9)
    if not copies:
        for axes in (above, below):
            _say(axes, "nothing has moved" if axes is above else "")
        return _end(figure, path)
    _draw_rows(above, copies, edge=1.0)
    _time_below(above, elapsed)
    _draw_links(below, copies)
    return _end(figure, path)


def _draw_links(axes: Any, copies: list[Span]) -> None:
    """Bytes of each link, by what moved them."""
    sums: dict[str, dict[str, int]] = {}
    for s in sorted(copies, key=_row):
        by_color = sums.setdefault(_row(s), {})
        by_color[_color(s)] = by_color.get(_color(s), 0) + s.bytes
    for row, by_color in enumerate(sums.values()):
        left = 0.0
        for color, n in by_color.items():
            axes.barh(row, n / 2**20, 0.7, left=left, color=color)
            left += n / 2**20
        axes.text(left, row, f" {size(sum(by_color.values()))}", va="center", fontsize="small")
    axes.set_yticks(range(len(sums)), list(sums))
    axes.invert_yaxis()
    axes.set_xlabel("MiB")
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
