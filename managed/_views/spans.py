"""Spans of a profile: what took from when to when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from managed._views.words import OWNERS
from managed.explain import TRANSFERS, Event

__all__ = ["Span", "held", "real", "simulated"]


class Span(NamedTuple):
    """Something that took from `begin` to `end`, in ns since the profile began."""

    kind: str  #: "run", "copy", "wait" (of a thread), "stall" (of a stream), or "hold" (of bytes)
    name: str  #: the operator; of a copy what it was for; of a wait for what; of bytes whose
    device: str  #: where; of a copy the source, of a wait "cpu"
    other: str  #: of a copy the target
    stream: int  #: of a wait the number of the thread
    begin: int
    end: int
    bytes: int
    event: Event | None  #: what managed says of a copy


def simulated(raw: list[Any], events: Iterable[Event], begin: int) -> list[Span]:
    """Spans of the clock, with what managed says of the copies."""
    told = {e.transfer: e for e in events if e.kind in TRANSFERS}

    def place(device: int) -> str:
        return "cpu" if device < 0 else f"sim:{device}"

    found = []
    last = max((end for *_, end, _, _ in raw if end is not None), default=begin)
    for kind, name, device, other, stream, start, end, nbytes, number in raw:
        event = told.get(number) if kind == "copy" else None
        if event and (event.source, event.target) != (place(device), place(other)):
            event = None
        named = event.kind if event else name or kind
        first, until = max(0, start - begin), (last if end is None else end) - begin
        ends = (first, max(first, until))
        found.append(Span(kind, named, place(device), place(other), stream, *ends, nbytes, event))
    return sorted(found, key=lambda s: (s.begin, s.end))


def real(events: Iterable[Event]) -> list[Span]:
    """managed's own copies, where no clock is simulated."""
    moved = [e for e in events if e.kind in TRANSFERS and e.source and e.target]
    begin = min((e.time for e in moved), default=0)
    return [
        Span("copy", e.kind, e.source or "", e.target or "", 0, e.time - begin,
             e.time - begin + e.duration, e.bytes, e)
        for e in moved
    ]  # fmt: skip


def held(spans: list[Span], device: str, until: int) -> list[tuple[int, dict[str, int]]]:
    """(ns, bytes in use from then on by owner) of a device."""
    changes: dict[int, list[tuple[str, int]]] = {}
    for s in spans:
        if s.kind == "hold" and s.device == device:
            changes.setdefault(s.begin, []).append((s.name, s.bytes))
            if s.end < until:
                changes.setdefault(s.end, []).append((s.name, -s.bytes))
    held, steps = dict.fromkeys(OWNERS, 0), []
    for ns in sorted(changes):
        for owner, nbytes in changes[ns]:
            held[owner] += nbytes
        steps.append((ns, held.copy()))
    return steps
