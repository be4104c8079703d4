"""`managed status`: one line a device of each running process, for eyes and for programs."""

from __future__ import annotations

import argparse
import json
import socket
import time
from typing import Any

from managed._views.words import size
from managed.cli._screen import Line, Piece, Screen, fitted, now, printable
from managed.cli.watch.asked import NOBODY, Shown, Watch, add_arguments, interval
from managed.cli.watch.live import follow
from managed.cli.watch.panels import command
from managed.cli.watch.snapshot import SCHEMA

__all__ = ["describe", "run"]


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON; docs: the command line")
    parser.add_argument(
        "-i", "--interval", "--watch", nargs="?", type=interval, const=1.0, metavar="SEC",
        help="again every so many seconds (1), until q or Ctrl-C is pressed",
    )  # fmt: skip
    parser.add_argument("-U", "--ascii", action="store_true", help="ASCII characters alone")
    colors = parser.add_mutually_exclusive_group()
    colors.add_argument("--force-color", "--color", action="store_true", help="colours in pipes")
    colors.add_argument("--no-color", action="store_true", help="no colours")
    add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Prints once, or until it is told to end. 1 where there is no process to look at."""
    watch = Watch(options)
    if options.json:
        return _print_json(watch, options.interval)
    color = False if options.no_color else options.force_color or None
    screen = Screen(ascii=options.ascii or None, color=color)
    if options.interval is None:
        shown = watch.look()
        screen.show(lines_of(shown, screen.width))
        return 0 if shown else 1
    follow(screen, lambda: lines_of(watch.look(), screen.width), options.interval)
    return 0


def _print_json(watch: Watch, seconds: float | None) -> int:
    """One object a line where it is repeated, so that a reader can take them one by one."""
    while True:
        shown = watch.look()
        print(json.dumps(as_json(shown), indent=None if seconds else 2), flush=True)
        if seconds is None:
            return 0 if shown else 1
        time.sleep(seconds)


def as_json(shown: list[Shown]) -> dict[str, Any]:
    """What --json prints; docs/command_line.md describes it."""
    return {
        "schema": SCHEMA,
        "host": socket.gethostname(),
        "time": time.time(),
        "processes": [
            {"pid": s.pid, **s.snapshot, "rates": s.rates} if s.snapshot
            else {"pid": s.pid, "error": s.error}
            for s in shown
        ],
    }  # fmt: skip


def lines_of(shown: list[Shown], width: int) -> list[Line]:
    when = Piece(now(), "quiet")
    lines = [fitted(width, [Piece(f"{socket.gethostname()}  ", "title"), when], [when])]
    for s in shown:
        if not s.snapshot:
            error = Piece(printable(s.error), "warn")
            lines.append(fitted(width, [Piece(f"{s.pid}  ", "title"), error]))
            continue
        told = [Piece(f"{s.pid}  ", "title"), Piece(command(s.snapshot["process"]))]
        lines.append(fitted(width, told))
        lines += [_device(d, width) for d in s.snapshot["devices"]]
    return lines if shown else [*lines, *(fitted(width, [Piece(words)]) for words in NOBODY)]


def _device(device: dict[str, Any], width: int) -> Line:
    """As much as fits: what is in use, of how much, whose, and what is elsewhere."""
    used, capacity, away = device["used"], device["capacity"], device["storages"]["spilled"]
    percent = 100 * used / capacity if capacity else 0.0
    name = Piece(f"[{device['name']}] ", "managed")
    share = Piece(f"{percent:3.0f}% ", "bad" if percent >= 95 else "good")
    bytes_used = Piece(f"{size(used):>10} / {size(capacity):>10}", "warn")
    elsewhere = Piece(f" | {size(away):>10} away", "bad" if away else "quiet")
    held = {k: n for k, n in device["owners"].items() if n and k != "free"}
    owned = Piece(" | " + ", ".join(f"{k} {size(n)}" for k, n in held.items()) if held else "")
    model = Piece(f"{printable(device['model'])} | ", "quiet")
    return fitted(
        width,
        [name, model, share, bytes_used, elsewhere, owned],
        [name, share, bytes_used, elsewhere, owned],
        [name, share, bytes_used, elsewhere],
        [name, share, Piece(f"{size(used)} / {size(capacity)}", "warn")],
    )
