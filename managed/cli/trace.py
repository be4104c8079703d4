"""`managed trace FILE`: what a profile says, without a browser."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from managed._views.words import columns, counted, size, took
from managed.cli._screen import Line, Piece, Screen, fitted, printable, wrapped
from managed.cli._waits import Profile, Wait, cure, read

__all__ = ["describe", "run"]

SCHEMA = 1
_SHOWN = 10
_INDENT = " " * 6


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="what managed.profile(FILE) has written")
    parser.add_argument("--json", action="store_true", help="as JSON, times in ns")
    parser.add_argument("-U", "--ascii", action="store_true", help="ASCII characters alone")


def run(options: argparse.Namespace) -> int:
    """Prints what the file says; 1 where it cannot be read."""
    try:
        profile = read(options.file)
    except (OSError, ValueError) as error:
        print(f"managed trace: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(_as_json(profile), indent=2))
        return 0
    screen = Screen(ascii=options.ascii or None)
    screen.show(_lines(profile, options.file, screen.width))
    return 0


def _as_json(profile: Profile) -> dict[str, object]:
    """See docs/command_line.md."""

    def ns(us: float) -> int:
        return round(1e3 * us)

    return {
        "schema": SCHEMA,
        "elapsed_ns": ns(profile.elapsed),
        "links": [
            {"link": k.name, "bytes": k.bytes, "copies": k.copies, "busy_ns": ns(k.busy),
             "bytes_by_kind": k.kinds}
            for k in profile.links
        ],
        "waits": [
            {**dataclasses.asdict(w), "longest": ns(w.longest), "total": ns(w.total),
             "cure": cure(w.kind)}
            for w in profile.waits[:_SHOWN]
        ],
    }  # fmt: skip


def _lines(profile: Profile, path: Path, width: int) -> Iterator[Line]:
    elapsed = took(1e3 * profile.elapsed) or "nothing"
    yield fitted(width, [Piece(f"{printable(path.name)}: ", "title"), Piece(elapsed)])
    yield []
    yield from _links(profile, width)
    yield []
    if not profile.simulated:
        yield from wrapped(
            "It has copies of managed's alone, so it does not say who waited: of real devices "
            "torch.profiler tells what kernels do.",
            width,
        )
        return
    yield from _waits(profile, width)


def _links(profile: Profile, width: int) -> Iterator[Line]:
    if not profile.links:
        yield [Piece("Nothing was copied.")]
        return
    rows = []
    for link in profile.links:
        kinds = sorted(link.kinds.items(), key=lambda item: -item[1])
        told = ", ".join(f"{kind.replace('_', ' ')} {size(n)}" for kind, n in kinds)
        busy = f"{100 * link.busy / profile.elapsed:.0f}%" if profile.elapsed else ""
        rows.append((f"  {link.name}", size(link.bytes), f"{link.copies:,}", busy, told))
    head, *lines = columns([("link", "bytes", "copies", "busy", "for"), *rows], right=(1, 2, 3))
    yield fitted(width, [Piece(head, "title")])
    for line in lines:
        yield fitted(width, [Piece(line)])


def _waits(profile: Profile, width: int) -> Iterator[Line]:
    shown = profile.waits[:_SHOWN]
    if not shown:
        yield [Piece("Nobody waited.")]
        return
    yield from wrapped("who waited longest, alike waits together", width, style="title")
    first: dict[str, int] = {}  # where each cure stands
    for number, wait in enumerate(shown, start=1):
        yield from _wait(number, wait, profile.elapsed, width)
        words = cure(wait.kind)
        at = first.setdefault(words, number)
        told = words if at == number else f"see {at}"
        yield from wrapped(told, width, "      cure: ", "good", _INDENT)
    rest = profile.waits[_SHOWN:]
    if rest:
        total = took(1e3 * sum(w.total for w in rest))
        told = f"  and {total} in {counted(len(rest), 'other kind')}"
        yield fitted(width, [Piece(told, "quiet")])


def _wait(number: int, wait: Wait, elapsed: float, width: int) -> Iterator[Line]:
    share = 100 * wait.total / elapsed if elapsed else 0.0
    spent = took(1e3 * wait.total)
    if wait.times > 1:
        spent += f" in {wait.times:,} times, at most {took(1e3 * wait.longest)}"
    head = f"{number:4}. {spent} ({share:.0f}%): "
    yield from wrapped(f"{wait.who}, {wait.what}", width, head, "warn", _INDENT)
    at = f" (at {wait.line})" if wait.line else ""
    yield from wrapped(wait.cause + at, width, "      cause: ", below=_INDENT)
