"""The counters of stats(): a dict, which people see in groups and with readable sizes."""

from __future__ import annotations

from typing import Any

__all__ = ["Stats"]


class Stats(dict[str, Any]):
    """What managed.stats() gives: a dict of numbers in bytes and ns. Shown, it leaves out zeros."""

    def __repr__(self) -> str:
        from managed._views import stats_tables

        return stats_tables.text(self)

    def _repr_html_(self) -> str:
        from managed._views import stats_tables

        return stats_tables.html(self)
