"""The counters of stats(): a dict, which people see in groups and with readable sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from managed._backend import C
from managed._words import columns, size, took

__all__ = ["OWNERS", "Group", "Stats", "by_owner"]

#: Whose bytes of a device can be: of tensors that managed may move; of copies of other devices'
#: tensors that it keeps for their next use; of other devices, which these had no room for; and the
#: rest: plain tensors, small ones, what operators need to work.
OWNERS = ("managed", "replica", "guest", "other")

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


class Stats(dict[str, Any]):
    """What managed.stats() gives: a dict of numbers in bytes and ns. Shown, it leaves out zeros."""

    def groups(self) -> Iterator[Group]:
        """The counters that are not zero, readable."""
        yield Group(("moves", "times", "size", "took"), self._kinds(_MOVES))
        yield Group(("decisions", "times", "size", "took"), self._kinds(_DECISIONS))
        links = [(link, size(n)) for link, n in self.get("links", {}).items() if n]
        yield Group(("links", "size"), links)
        rows = []
        for name, held in self.get("devices", {}).items():
            told = {k: size(held.get(k, 0)) for k in ("used", "free", "peak", "capacity")}
            rows.append((name, *told.values()))
        yield Group(("devices", "used", "free", "peak", "capacity"), rows)
        rest = [(k.replace("_", " "), f"{v:,}") for k, v in self.items() if self._is_plain(k, v)]
        yield Group(("counters", "times"), rest)

    def _kinds(self, kinds: tuple[str, ...]) -> list[tuple[str, ...]]:
        return [
            (
                kind.replace("_", " "),
                f"{self[kind]:,}",
                size(self.get(f"{kind}_bytes", 0)),
                took(self.get(f"{kind}_ns", 0)),
            )
            for kind in kinds
            if self.get(kind)
        ]

    @staticmethod
    def _is_plain(key: str, value: Any) -> bool:
        kind = key.removesuffix("_bytes").removesuffix("_ns")
        return isinstance(value, int) and value > 0 and kind not in _MOVES + _DECISIONS

    def __repr__(self) -> str:
        parts = [
            "\n".join(columns([group.head, *group.rows], right=range(1, len(group.head))))
            for group in self.groups()
            if group.rows
        ]
        return "\n\n".join(parts) or "nothing has been counted"

    def _repr_html_(self) -> str:
        from managed import _html

        tables = [
            _html.table(group.head, group.rows, right=range(1, len(group.head)))
            for group in self.groups()
            if group.rows
        ]
        return _html.page("managed.stats()", *(tables or [_html.note("nothing has been counted")]))
