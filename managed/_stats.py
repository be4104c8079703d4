"""The counters of stats(): a dict, which people see in groups and with readable sizes."""

from __future__ import annotations

from typing import Any

__all__ = ["OWNERS", "Stats"]

#: Whose bytes of a device can be: of tensors that managed may move; of copies of other devices'
#: tensors that it keeps for their next use; of other devices, which these had no room for; and the
#: rest: plain tensors, small ones, what operators need to work.
OWNERS = ("managed", "replica", "guest", "other")


class Stats(dict[str, Any]):
    """What managed.stats() gives: a dict of numbers in bytes and ns. Shown, it leaves out zeros."""

    def __repr__(self) -> str:
        from managed import _stats_tables

        return _stats_tables.text(self)

    def _repr_html_(self) -> str:
        from managed import _stats_tables

        return _stats_tables.html(self)
