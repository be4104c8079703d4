"""`managed top`: whose bytes are on which device of a running process, and what moves."""

from __future__ import annotations

import argparse

from managed.cli._screen import Line, Piece, Screen, fitted, now
from managed.cli.watch.asked import NOBODY, Watch, add_arguments, interval
from managed.cli.watch.live import follow
from managed.cli.watch.panels import Look, owners_shown, panel

__all__ = ["describe", "run"]

_HELP = (
    ("q", "quit; so do Q, Esc and Ctrl-C"),
    ("h", "this help; once more, and it goes"),
    ("a", "as many tensors as there is room for"),
    ("f", "the largest tensors, all that are known"),
    ("c", "compact: no tensors"),
)
_MODES = {"a": "auto", "f": "full", "c": "compact"}


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-1", "--once", action="store_true", help="report once and end")
    parser.add_argument(
        "-m", "--monitor", nargs="?", const="auto", default="auto",
        choices=["auto", "full", "compact"], help="what is shown at first; default: auto",
    )  # fmt: skip
    parser.add_argument(
        "--interval", type=interval, default=2.0, metavar="SEC", help="seconds between two looks"
    )
    parser.add_argument(
        "-U", "--ascii", "--no-unicode", action="store_true", help="ASCII characters alone"
    )
    parser.add_argument("--colorful", action="store_true", help="bars from green to red")
    parser.add_argument(
        "--force-color", action="store_true", help="colours also where the output is no terminal"
    )
    parser.add_argument(
        "--mem-util-thresh", nargs=2, type=int, default=(80, 95), metavar=("TH1", "TH2"),
        help="from how many percent on a device is called full in yellow, and in red",
    )  # fmt: skip
    add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Draws until it is told to end. 1 where --once finds no process."""
    screen = Screen(ascii=options.ascii or None, color=options.force_color or None)
    view = _View(options, screen)
    if options.once or not screen.is_terminal:
        lines = view.frame()
        screen.show(lines)
        return 0 if view.found else 1
    follow(screen, view.frame, options.interval, view.press)
    return 0


class _View:
    def __init__(self, options: argparse.Namespace, screen: Screen) -> None:
        self.screen, self.mode, self.helps = screen, options.monitor, False
        self.look = Look(screen, options.colorful, tuple(sorted(options.mem_util_thresh)))
        self.watch = Watch(options)
        self.watched = not options.once and screen.is_terminal
        self.found = 0

    def press(self, key: str) -> None:
        self.helps = key in "h?" and not self.helps
        self.mode = _MODES.get(key, self.mode)

    def frame(self) -> list[Line]:
        width = self.screen.width
        when = Piece(now())
        title = Piece("managed top  ", "title")
        keys = [Piece("  h: help, q: quit", "quiet")] if self.watched else []
        lines = [fitted(width, [title, when, *keys], [title, when], [when])]
        if self.helps:
            return [*lines, *([Piece(f"  {key}  {words}")] for key, words in _HELP)]
        shown = self.watch.look()
        self.found = len(shown)
        if not shown:
            return [*lines, [], *(fitted(width, [Piece(words)]) for words in NOBODY)]
        legend = self.screen.legend(owners_shown(shown))
        room = self.screen.height - len(legend) - 2 if self.watched else 0
        panels = [panel(s, self.look, self._largest()) for s in shown]
        if self.mode == "auto" and room and sum(map(len, panels)) + len(panels) > room:
            panels = [panel(s, self.look, 0) for s in shown]
        for drawn in panels:
            lines += [[], *drawn]
        return [*lines, [], *legend]

    def _largest(self) -> int:
        return {"auto": 8, "full": 1000, "compact": 0}[self.mode]
