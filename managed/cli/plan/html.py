"""A plan as HTML: for notebooks, and for a file that a browser opens. No script is in it."""

from __future__ import annotations

from html import escape

from managed._views import html as _html
from managed.cli.plan import report
from managed.cli.plan.report import Report

__all__ = ["document", "shown"]

_COLORS = {"fits": "#4878cf", "leaves": "#d65f5f"}


def shown(plan: Report) -> str:
    """The tables of a plan, the first with a bar of what is full at the peak, and its notes."""
    (columns, rows), *others = report.tables(plan)
    bars = [_bar(c) for c in report.wholes(plan).values()]
    first = [[row[0], bar, *row[1:]] for row, bar in zip(rows, bars, strict=True)]
    parts = [_html.table([columns[0], "", *columns[1:]], first, right=[2, 3, 4], wide=[5])]
    for names, lines in others:
        right = [i for i, name in enumerate(names) if name and i]
        parts.append(_html.table(names, lines, right=right))
    told = map(_html.note, report.notes(plan["configurations"]))
    return _html.page(report.head(plan), *parts, *told)


def _bar(found: Report) -> str:
    """How much of the fullest device is in use at the peak; red where bytes have to leave."""
    peak = max(found.get("peak_bytes") or [0])
    kind = "leaves" if found["steps"] and report.spilled(found, "all") else "fits"
    room = found["devices"] == "room for all"
    return "" if room else _html.bar({kind: peak}, _COLORS, found["memory_bytes"])


def document(plan: Report) -> str:
    """A page of its own, which is dark where the browser's user wants pages to be."""
    title = escape(report.head(plan))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="color-scheme" content="light dark">'
        "<style>body{font-family:sans-serif;margin:2em}</style></head>"
        f"<body>{shown(plan)}</body></html>\n"
    )
