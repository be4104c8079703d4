"""Counters as text and as HTML, in groups. Imported when they are shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from managed._backend import C
from managed._views import html as _html
from managed._views.words import OWNERS, columns, size, took

if TYPE_CHECKING:
    from managed._views.stats import Stats

__all__ = ["Group", "by_owner", "groups", "html", "text"]

#: What each group counts; the first moves bytes, the second does not.
_MOVES = ("move", "copy", "write_back", "spill", "drop", "spare", "restore")
_DECISIONS = ("place", "reserve", "release", "waited", "pin", "unpin")


def by_owner(device: str, held: dict[str, int]) -> dict[str, int]:
    """Bytes of a device of stats()["devices"] by owner, as profiles name owners."""
    guests = min(held["managed"], C.residency(device)["guests"])
    found = (held["managed"] - guests, held["replica"], guests, held["reserved"] + held["foreign"])
    return dict(zip(OWNERS, found, strict=True))


class Group(NamedTuple):
    """Some of the counters, as they are shown."""

    head: tuple[str, ...]  #: of columns; the first is the group's name
    rows: Sequence[tuple[str, ...]]


def groups(stats: Stats) -> Iterator[Group]:
    """The counters that are not zero, readable."""
    yield Group(("moves", "times", "size", "took"), _kinds(stats, _MOVES))
    yield Group(("decisions", "times", "size", "took"), _kinds(stats, _DECISIONS))
    links = [(link, size(n)) for link, n in stats.get("links", {}).items() if n]
    yield Group(("links", "size"), links)
    rows = []
    for name, held in stats.get("devices", {}).items():
        told = {k: size(held.get(k, 0)) for k in ("used", "free", "peak", "capacity")}
        rows.append((name, *told.values()))
    yield Group(("devices", "used", "free", "peak", "capacity"), rows)
    host, kinds = stats.get("host", {}), ("used", "pinned", "pageable", "peak", "limit")
    rows = [("cpu", *(size(host[k]) for k in kinds))] if host.get("peak") else []
    yield Group(("host", *kinds), rows)
    figures = ("live", "cached", "asked", "given")
    holders = [
        (f"{name} on {device}", *(size(told[k]) for k in figures))
        for device, held in stats.get("devices", {}).items()
        for name, told in held.get("holders", {}).items()
        if any(told.values())
    ]
    yield Group(("holders", *figures), holders)
    rest = [(k.replace("_", " "), f"{v:,}") for k, v in stats.items() if _is_plain(k, v)]
    yield Group(("counters", "times"), rest)


def _kinds(stats: Stats, kinds: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [
        (
            kind.replace("_", " "),
            f"{stats[kind]:,}",
            size(stats.get(f"{kind}_bytes", 0)),
            took(stats.get(f"{kind}_ns", 0)),
        )
        for kind in kinds
        if stats.get(kind)
    ]


def _is_plain(key: str, value: Any) -> bool:
    kind = key.removesuffix("_bytes").removesuffix("_ns")
    return isinstance(value, int) and value > 0 and kind not in _MOVES + _DECISIONS


def text(stats: Stats) -> str:
    """See Stats."""
    parts = [
        "\n".join(columns([group.head, *group.rows], right=range(1, len(group.head))))
        for group in groups(stats)
        if group.rows
    ]
    return "\n\n".join(parts) or "nothing has been counted"


def html(stats: Stats) -> str:
    """See Stats."""
    tables = [
        _html.table(group.head, group.rows, right=range(1, len(group.head)))
        for group in groups(stats)
        if group.rows
    ]
    return _html.page("managed.stats()", *(tables or [_html.note("nothing has been counted")]))
