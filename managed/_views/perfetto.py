"""A profile as a file in Chrome's trace event format, which ui.perfetto.dev opens."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from managed._views.spans import Span, held

__all__ = ["write"]

PROGRAM, LINKS = 0, 1  # processes of the file; device i is process 2 + i


def _track(s: Span) -> tuple[int, str]:
    """Process and thread of the file."""
    if s.kind == "copy":
        return LINKS, f"{s.device} -> {s.other}"
    if s.kind == "wait":
        return PROGRAM, f"thread {s.stream}"
    return _process(s.device), f"stream {s.stream}"


def _shown(spans: list[Span]) -> list[Span]:
    return [s for s in spans if s.kind != "hold"]


def _thread_number(track: tuple[int, str]) -> int:
    """Of a name such as "stream 3", or of a link: one number for each name."""
    name = track[1]
    if " -> " not in name:
        return int(name.rpartition(" ")[2])
    ends = name.replace("cpu", "sim:99").split(" -> ")
    a, b = (int(end.partition(":")[2] or 0) for end in ends)
    return 100 * a + b


def _slice(s: Span) -> dict[str, Any]:
    track = _track(s)
    told: dict[str, Any] = {}
    if s.kind == "copy":
        told["bytes"] = s.bytes
    if s.event:
        told |= {"why": s.event.reason, "operator": s.event.operator, "line": s.event.site}
    name = f"waits for {s.name}" if s.kind in ("wait", "stall") else s.name
    return {
        "name": name,
        "cat": s.kind,
        "ph": "X",
        "ts": s.begin / 1e3,
        "dur": (s.end - s.begin) / 1e3,
        "pid": track[0],
        "tid": _thread_number(track),
        "args": told,
    }


def _names(spans: list[Span]) -> list[dict[str, Any]]:
    def named(pid: int, what: str, name: str, tid: int = 0) -> dict[str, Any]:
        return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}

    devices = {_track(s)[0]: s.device for s in spans if s.kind in ("run", "stall", "hold")}
    processes = {PROGRAM: "program", LINKS: "links"} | devices
    tracks = sorted({_track(s) for s in _shown(spans)})
    return [named(pid, "process_name", name) for pid, name in sorted(processes.items())] + [
        named(t[0], "thread_name", t[1], _thread_number(t)) for t in tracks
    ]


def _memory(spans: list[Span], until: int) -> list[dict[str, Any]]:
    """Counters: all bytes in use, and the same by owner, which some viewers stack."""

    def counter(device: str, ns: int, name: str, told: dict[str, int]) -> dict[str, Any]:
        return {"name": name, "ph": "C", "ts": ns / 1e3, "pid": _process(device), "args": told}

    devices = sorted({s.device for s in spans if s.kind == "hold"})
    return [
        counter(d, ns, *told)
        for d in devices
        for ns, owners in held(spans, d, until)
        for told in (
            ("bytes in use", {"bytes": sum(owners.values())}),
            ("bytes by owner", owners),
        )
    ]


def _process(device: str) -> int:
    return 2 + int(device.partition(":")[2])


def write(path: Path, spans: list[Span], elapsed: int, told: dict[str, Any]) -> None:
    """All of it or nothing: a file that is there stays until the new one is whole."""
    trace = {
        "traceEvents": [*_names(spans), *map(_slice, _shown(spans)), *_memory(spans, elapsed)],
        "displayTimeUnit": "ns",
        "otherData": told,
    }
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(new, "w", encoding="utf-8") as file:
            json.dump(trace, file)
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
