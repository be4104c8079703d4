"""What happened to a tensor or a module, and why; and the counters of the whole process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex, overload

import torch
from torch.nn.parameter import is_lazy

from managed._backend import C
from managed._views.stats import Stats

__all__ = ["Event", "History", "explain", "stats", "whereabouts"]

#: The kinds of events that carry bytes from one device to another.
TRANSFERS = ("move", "copy", "write_back", "spill", "spare", "restore")


@dataclass(frozen=True)
class Event:
    """One thing that happened. Times are in ns of a monotonic clock, sizes in bytes."""

    sequence: int  #: 1, 2, ... over all tensors
    time: int  #: when it began
    duration: int  #: 0 when it was not timed
    kind: str  #: "move", "copy", "write_back", "place", "pin", "unpin", ...
    reason: str  #: why, in words
    operator: str | None  #: the operator that needed it; "gradient" when one goes home
    bytes: int
    source: str | None  #: device name
    target: str | None  #: device name
    site: str | None = None  #: the line that asked for it: "train.py:12 in step"
    transfer: int = 0  #: in a profile of simulated devices, the number of the copy on their clock
    tensor: str = ""  #: name of the parameter or buffer, when a module was asked about

    def __str__(self) -> str:
        way = " -> ".join(dict.fromkeys(d for d in (self.source, self.target) if d))
        place = f"at {self.site}" if self.site else ""
        parts = [self.tensor, self.kind, way, f"{self.bytes} bytes", self.operator or "", place]
        took = f", {self.duration / 1e3:.1f} us" if self.duration else ""
        return " ".join(p for p in parts if p) + took + (f": {self.reason}" if self.reason else "")


class History(list[Event]):
    """Events, oldest first; `dropped` counts those the ring no longer holds, of any tensor.

    `str()` is a line an event. A prompt shows the newest as a table, and so does a notebook.
    """

    def __init__(self, events: Iterable[Event], dropped: int = 0) -> None:
        super().__init__(events)
        self.dropped = dropped

    @overload
    def __getitem__(self, i: SupportsIndex) -> Event: ...
    @overload
    def __getitem__(self, i: slice) -> History: ...
    def __getitem__(self, i: SupportsIndex | slice) -> Event | History:
        if isinstance(i, slice):
            return History(super().__getitem__(i), self.dropped)
        return super().__getitem__(i)

    @property
    def copies(self) -> int:
        """How often a tensor was copied to another device: see the reason of each event."""
        return sum(e.kind == "copy" for e in self)

    @property
    def bytes(self) -> int:
        """Bytes that went from one device to another."""
        return sum(e.bytes for e in self if e.kind in TRANSFERS)

    def since(self, sequence: int) -> History:
        """The events after that one; `stats()["events"]` is the number of the newest."""
        events = (e for e in self if e.sequence > sequence)
        return History(events, max(0, self.dropped - sequence))  # the ring forgets in order

    def totals(self) -> dict[str, Any]:
        """These events counted as `stats()` counts: `kind`, `kind_bytes`, `kind_ns` and "links".

        Only what occurs has an entry.
        """
        found: dict[str, Any] = {"links": {}}
        for e in self:
            values = {e.kind: 1, f"{e.kind}_bytes": e.bytes, f"{e.kind}_ns": e.duration}
            for name, value in values.items():
                found[name] = found.get(name, 0) + value
            if e.kind in TRANSFERS and e.source and e.target:
                link = f"{e.source}->{e.target}"
                found["links"][link] = found["links"].get(link, 0) + e.bytes
        return found

    def __str__(self) -> str:
        if not self:
            return "nothing has been recorded"
        start = self[0].time
        lines = [f"{(e.time - start) / 1e6:10.3f} ms  {e}" for e in self]
        if self.dropped:
            lines.insert(0, f"({self.dropped} older events are no longer held)")
        return "\n".join(lines)

    def __repr__(self) -> str:
        from managed._views import tables

        return tables.history_text(self)

    def _repr_html_(self) -> str:
        from managed._views import tables

        return tables.history_html(self)


def whereabouts(tensor: torch.Tensor) -> str:
    """The device where the tensor's bytes are now: its own, or where they wait for their use.

    Nothing moves and no device is asked. "elsewhere" when the ring no longer knows.
    """
    home = str(tensor.device)
    if tensor.is_meta or is_lazy(tensor) or not C.is_managed(tensor) or not C.is_spilled(tensor):
        return home
    gone = [e for e in _history(tensor) if e.kind in ("spill", "drop")]
    return (gone[-1].target if gone else None) or "elsewhere"


def _history(tensor: torch.Tensor | None) -> History:
    events, dropped = C.history(tensor)
    from managed._views.cells import cells, named  # what an import need not take

    known = cells()
    return History((Event(*e[:9], named(e[9], known), *e[10:]) for e in events), dropped)


def _module_history(module: torch.nn.Module) -> History:
    named = [*module.named_parameters(), *module.named_buffers()]
    found = [(name, _history(t)) for name, t in named]
    named_events: dict[int, Event] = {}  # tensors over the same bytes share their history
    for name, history in found:
        for e in history:
            named_events.setdefault(e.sequence, replace(e, tensor=name))
    ordered = (named_events[sequence] for sequence in sorted(named_events))
    return History(ordered, max((h.dropped for _, h in found), default=0))


def explain(x: torch.Tensor | torch.nn.Module | None = None) -> History:
    """The history of a tensor, of a module's tensors, or of everything, with reasons.

    `print(managed.explain(x))` shows one line an event: what happened, which operator on which line
    of the program asked for it, and why; at a prompt and in a notebook it is a table. The ring
    holds the last 4096 events.

    Args:
        x: a tensor, a module, or `None` for everything.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(x, torch.nn.Module):
        return _module_history(x)
    return _history(x)


def stats(reset: bool = False) -> dict[str, Any]:
    """Counters since the start or the last reset: a dict that is shown in groups, without zeros.

    Each kind of event has three: `copy` says how often, `copy_bytes` and `copy_ns` tell bytes and
    duration. The kinds:

    - `move`: something moved because it was asked for.
    - `copy`: a copy aligned an operand, brought a gradient home, or was asked for by an operator of
      torch that the program calls (`x.cpu()`, `a.copy_(b)`, `a[:10] = b`, `x.item()`), which the
      reasons of events tell apart.
    - `write_back`: a written copy was taken home.
    - `spill`: bytes left their device; `spare`: they were copied before they leave; `drop`: they
      left without a copy; `restore`: they came back.
    - `place`, `pin`, `unpin`, `waited`, `reserve`, `release`.

    And besides:

    - `links`: bytes per link used, like `{"cpu->sim:0": 4096}`.
    - `events`: the number of the newest event; a reset leaves it as it is.
    - `devices`: bytes per device: `capacity`, `used`, `free`, `peak` (the highest `used` that
      placement or `stats` has seen), and `used` by owner: `managed`, `replica`, `reserved`,
      `foreign`. `holders`: what each of `managed.holders` reported last (`live`, `cached`), was
      asked for and gave, in bytes, and how often it was asked (`asks`).
    - `host`: bytes of the host now. `used`: of storages that left, or of copies of them, at most
      `limit`, the highest so far is `peak`. Without copies under way that is `pinned`, in
      page-locked memory, plus `pageable`, in any other: what the driver refused to lock, and all of
      simulated devices, unless the process has CUDA. `kept`: free, for what leaves next.
    - `misaligned_calls`: operator calls whose operands stood apart; `aligned_calls`: those for
      which something was copied; `grouped_calls`: list operators that were split by device;
      `calls_on_host`: those that ran on the host for want of room (`hint(on_host=True)`).
    - `replica_hits`: operands for which a copy of an earlier use served.
    - `host_waits`: how often a thread waited for a copy of managed's.

    Args:
        reset: gives the figures, and starts again from zero.
    """
    return Stats(C.stats(reset=reset))
