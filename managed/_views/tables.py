"""Histories as tables, for a prompt and for a notebook. Imported when one is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from managed._views import html
from managed._views.words import columns, counted, size, took

if TYPE_CHECKING:
    from managed.explain import Event, History

__all__ = ["history_html", "history_text"]

#: How many events a table shows, the newest ones; print() shows all.
_SHOWN = 50

_HEAD = ("ms", "what", "tensor", "from -> to", "size", "took", "operator", "where", "why")
_RIGHT = (0, 4, 5)


def _row(e: Event, start: int) -> tuple[str, ...]:
    way = " -> ".join(dict.fromkeys(d for d in (e.source, e.target) if d))
    ms = f"{(e.time - start) / 1e6:.3f}"
    told = (e.operator or "", e.site or "", e.reason)
    return (ms, e.kind.replace("_", " "), e.tensor, way, size(e.bytes), took(e.duration), *told)


def _rows(history: History) -> tuple[list[tuple[str, ...]], str]:
    """The rows of the newest events, and what to say of the others."""
    shown = list(history[-_SHOWN:])
    rows = [_row(e, history[0].time) for e in shown]
    earlier = len(history) - len(shown)
    told = []
    if history.dropped:
        told.append(f"{counted(history.dropped, 'older event')} of any tensor are no longer held")
    if earlier:
        told.append(f"{counted(earlier, 'earlier event')} not shown: print() shows all")
    return rows, "; ".join(told)


def _head(history: History) -> str:
    moved = counted(len(history), "event")
    return f"{moved}, {size(history.bytes)} from one device to another"


def _used(rows: Sequence[Sequence[str]]) -> list[int]:
    """The columns in which something is said."""
    return [i for i in range(len(_HEAD)) if any(row[i] for row in rows)]


def history_text(history: History) -> str:
    """See History."""
    if not history:
        return str(history)
    rows, told = _rows(history)
    used = _used(rows)
    lines = columns(
        [[row[i] for i in used] for row in (_HEAD, *rows)],
        right=[at for at, i in enumerate(used) if i in _RIGHT],
    )
    return "\n".join([_head(history), *lines, *([f"({told})"] if told else [])])


def history_html(history: History) -> str:
    """See History."""
    if not history:
        return html.page(str(history))
    rows, told = _rows(history)
    used = _used(rows)
    table = html.table(
        [_HEAD[i] for i in used],
        [[row[i] for i in used] for row in rows],
        right=[at for at, i in enumerate(used) if i in _RIGHT],
        wide=[used.index(8)] if 8 in used else [],
    )
    return html.page(_head(history), table, *([html.note(told)] if told else []))
