"""What waited in a profile, for what, and what helps.

A profile's file says when each wait ended. What ended at that moment is its cause: a copy, or an
operator of another stream.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Link", "Profile", "Wait", "cure", "read"]

#: Times are us with three digits after the point; sums of two are that exact.
_SAME = 0.002

_MORE_ROOM = (
    "There is too little room. Try a smaller batch, torch.utils.checkpoint around large blocks, a "
    "larger managed.budget(), or more devices: module.cuda(disperse=True)."
)
_AHEAD = (
    "The program stands still until a copy is done. Bring the next batch over while this one is "
    "worked on: x.pin_memory().to(device, non_blocking=True) on a stream of its own."
)
_READ_LESS = (
    "The program reads a result, and waits until it is there. Read it less often, or after the "
    "loop: item(), tolist(), cpu(), print() and `if tensor:` all wait."
)
_APART = (
    "Operands stand on different devices. Bring them together once, before the loop: "
    "x.to(device), or one device for the modules that share them."
)
_WORK = (
    "The program waits for work of the device: synchronize(), or a result that it reads. In a loop "
    "do so less often; at the end of a run it is no loss."
)
_STREAMS = (
    "One stream waits for work of another. Where that work is copies, begin them earlier; else "
    "let both do less between their events."
)
_NO_LOSS = (
    "The device has work for long, and the thread goes on when half of it is done. Cards have "
    "queues as long: it is no loss."
)
_UNKNOWN = "Nothing in the file ended when this wait did: look at it in Perfetto."


class Slice(NamedTuple):
    """A bar of the timeline; times in us."""

    kind: str  #: "run", "copy", "wait" or "stall"
    name: str
    process: str  #: a device, "program" or "links"
    track: str  #: "stream 0", "thread 0", or of a copy "cpu -> sim:0"
    begin: float
    end: float
    told: dict[str, Any]


@dataclass
class Link:
    """What went over a link in one direction."""

    name: str
    bytes: int = 0
    copies: int = 0
    busy: float = 0.0  #: us
    kinds: dict[str, int] = field(default_factory=dict)  #: bytes by what they were copied for


@dataclass
class Wait:
    """Waits that are alike."""

    who: str  #: "thread 0" or "sim:0 stream 0"
    what: str  #: the operator that had to wait
    cause: str  #: in words
    kind: str  #: of the cause: see cure()
    line: str  #: of the program, or ""
    longest: float = 0.0  #: us
    total: float = 0.0
    times: int = 0


class Profile(NamedTuple):
    """What a file says."""

    elapsed: float  #: us
    links: list[Link]  #: most bytes first
    waits: list[Wait]  #: most time first
    simulated: bool  #: else it has copies alone


def cure(kind: str) -> str:
    """What helps against waits with a cause of this kind."""
    return {
        "restore": _MORE_ROOM, "spill": _MORE_ROOM, "drop": _MORE_ROOM, "spare": _MORE_ROOM,
        "room": _MORE_ROOM, "asked": _AHEAD, "read": _READ_LESS, "copy": _APART,
        "write_back": _APART, "run": _WORK, "stream": _STREAMS,
        "queue": _NO_LOSS,
    }.get(kind, _UNKNOWN)  # fmt: skip


def read(path: Path) -> Profile:
    """ValueError for what managed.profile() has not written, OSError for what cannot be read."""
    try:
        trace = json.loads(path.read_text(encoding="utf-8"))
        stats = trace["otherData"]["stats"]
        slices = list(_slices(trace["traceEvents"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no file of managed.profile()") from error
    if not isinstance(stats, dict):
        raise ValueError(f"{path} is no file of managed.profile()")
    elapsed = max((s.end for s in slices), default=0.0)
    simulated = any(s.kind == "run" for s in slices)
    return Profile(elapsed, _links(slices), _Causes(slices).waits(), simulated)


def _slices(events: list[dict[str, Any]]) -> Iterable[Slice]:
    names = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    for e in events:
        if e["ph"] == "X":
            process = names["process_name", e["pid"], 0]
            track = names["thread_name", e["pid"], e["tid"]]
            told = (e["ts"], e["ts"] + e["dur"], e["args"])
            yield Slice(e["cat"], e["name"], process, track, *told)


def _links(slices: list[Slice]) -> list[Link]:
    links: dict[str, Link] = {}
    for s in slices:
        if s.kind == "copy":
            link = links.setdefault(s.track, Link(s.track))
            link.bytes += s.told["bytes"]
            link.copies += 1
            link.busy += s.end - s.begin
            kind = s.name if s.told.get("why") else "plain"
            link.kinds[kind] = link.kinds.get(kind, 0) + s.told["bytes"]
    return sorted(links.values(), key=lambda link: -link.bytes)


class _Causes:
    """What ended when, and what began next on each stream."""

    def __init__(self, slices: list[Slice]) -> None:
        self.slices = slices
        done = [s for s in slices if s.kind in ("copy", "run")]
        # Of those that ended together the one that says most comes first.
        self.ended = sorted(done, key=lambda s: s.end)
        self.ends = [s.end for s in self.ended]
        self.tracks: dict[tuple[str, str], list[Slice]] = {}
        for s in sorted(slices, key=lambda s: s.begin):
            if s.kind == "run":
                self.tracks.setdefault((s.process, s.track), []).append(s)

    def waits(self) -> list[Wait]:
        """Of threads, and of streams on which operators run: others stand still for good."""
        found: dict[tuple[str, ...], Wait] = {}
        for s in self.slices:
            if s.kind == "wait" or (s.kind == "stall" and (s.process, s.track) in self.tracks):
                who, what, cause, kind, line = told = self._told(s)
                wait = found.setdefault(told, Wait(who, what, cause, kind, line))
                wait.longest = max(wait.longest, s.end - s.begin)
                wait.total += s.end - s.begin
                wait.times += 1
        return sorted(found.values(), key=lambda wait: -wait.total)

    def _told(self, s: Slice) -> tuple[str, str, str, str, str]:
        name = s.name.removeprefix("waits for ")
        cause = self._cause(s)
        line = (cause.told.get("line") if cause else None) or ""
        if s.kind == "wait":
            words, kind = _of_thread(cause, name)
            if cause and cause.kind == "copy" and cause.end - cause.begin < (s.end - s.begin) / 2:
                words += "; most of the time it stood behind earlier work"
            return s.track, name, words, kind, line
        words, kind = _of_stream(cause, name)
        return f"{s.process} {s.track}", self._next(s), words, kind, line

    def _cause(self, s: Slice) -> Slice | None:
        at = bisect_left(self.ends, s.end - _SAME)
        found = []
        while at < len(self.ends) and self.ends[at] <= s.end + _SAME:
            if (self.ended[at].process, self.ended[at].track) != (s.process, s.track):
                found.append(self.ended[at])
            at += 1
        # A copy of managed's says why, another copy which link; an operator may end by chance.
        found.sort(key=lambda c: (c.kind != "copy", not c.told.get("why")))
        return found[0] if found else None

    def _next(self, s: Slice) -> str:
        """The operator that could begin when the stall ended."""
        runs = self.tracks[s.process, s.track]
        at = bisect_left([r.begin for r in runs], s.end - _SAME)
        return runs[at].name if at < len(runs) else "what came next"


def _of_copy(copy: Slice) -> tuple[str, str]:
    """What was copied and why, and the kind of its cure."""
    kind, why = copy.name, copy.told.get("why")
    if not why or kind == "move" or "asked" in why:
        reads = copy.track.endswith("-> cpu")
        return f"a copy {copy.track} that the program asked for", "read" if reads else "asked"
    words = f"{kind.replace('_', ' ')} {copy.track}: {why}"
    return words, "asked" if kind == "copy" and copy.track.startswith("cpu ") else kind


def _of_thread(cause: Slice | None, name: str) -> tuple[str, str]:
    if name == "full queue":
        return "1,024 operations that were not done", "queue"
    if cause is None:
        return "not told", ""
    if cause.kind == "copy":
        return _of_copy(cause)
    return f"work of {cause.process}: {cause.name} was the last of it", "run"


def _of_stream(cause: Slice | None, name: str) -> tuple[str, str]:
    if cause is None:
        words = "room that others still used" if name == "room" else "not told"
        return words, "room" if name == "room" else ""
    if cause.kind == "copy":
        return _of_copy(cause)
    return f"{cause.name} on {cause.track}", "stream"
