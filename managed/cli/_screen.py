"""What a terminal can show: its width, its characters, its colours; one frame after the other.

Commands make lines of pieces of text with a style; a screen prints them as its terminal can.
Colours need rich (the extra `terminal`). Without it, and for pipes and NO_COLOR, text is plain.
"""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

__all__ = ["OWNERS", "Line", "Piece", "Screen", "fitted", "now", "printable", "text_of", "wrapped"]


class Piece(NamedTuple):
    """A part of a line. The style is one of STYLES, or "" for none."""

    text: str
    style: str = ""


Line = list[Piece]

#: Owners of a device's bytes, as a snapshot has them: what a bar draws for each, where there is
#: Unicode and where there is not, and what the legend calls them.
OWNERS = {
    "managed": ("█", "#", "tensors that may leave"),
    "other": ("▓", "=", "plain tensors, room to work in"),
    "guest": ("▒", "+", "other devices' tensors"),
    "replica": ("░", "%", "kept copies"),
    "reserved": ("▚", "-", "promised"),
    "foreign": ("▞", "x", "other libraries and programs"),
    "free": ("·", ".", "free"),
}

#: Of rich. The first few are those of an owner's bar.
STYLES = {
    "managed": "blue",
    "other": "white",
    "guest": "magenta",
    "replica": "green",
    "reserved": "yellow",
    "foreign": "bright_black",
    "free": "bright_black",
    "title": "bold",
    "quiet": "bright_black",
    "good": "green",
    "warn": "yellow",
    "bad": "red",
    "level0": "bright_green",
    "level1": "bright_yellow",
    "level2": "bright_red",
}


def now() -> str:
    """The time, as the first line of a frame has it."""
    return time.strftime("%a %b %d %H:%M:%S %Y")


def text_of(line: Line) -> str:
    return "".join(piece.text for piece in line)


def wrapped(
    text: str, width: int, head: str = "", style: str = "", below: str = ""
) -> Iterator[Line]:
    """The text behind `head`, on as many lines as it takes: those after the first begin with
    `below`. The style is that of all of it. Terminals of less than 24 columns get 24."""
    for line in textwrap.wrap(
        head + printable(text), max(width, 24), subsequent_indent=below, break_on_hyphens=False,
        replace_whitespace=False,
    ):  # fmt: skip
        yield [Piece(line, style)]


def printable(text: str) -> str:
    """Without characters that a terminal would obey: names and commands come from outside."""
    return "".join(c if c.isprintable() else "?" for c in text)


def fitted(width: int, *choices: Line) -> Line:
    """The first that fits, or the last, cut."""
    for line in choices:
        if len(text_of(line)) <= width:
            return line
    left, cut = width, []
    for piece in choices[-1]:
        cut.append(piece._replace(text=piece.text[:left]))
        left -= len(cut[-1].text)
    return cut


class Screen:
    """The standard output and what its terminal can do.

    ascii: no character beyond ASCII; None finds out. color: True and False overrule what the
    environment says (NO_COLOR before FORCE_COLOR before whether it is a terminal).
    """

    def __init__(
        self,
        *,
        ascii: bool | None = None,
        color: bool | None = None,
        stream: TextIO | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.stream = sys.stdout if stream is None else stream
        self.environment = environment
        self.is_terminal = self.stream.isatty()
        self.unicode = _has_unicode(self.stream, environment) if ascii is None else not ascii
        self.colored = self._wants_color() if color is None else color
        self._rich = _rich() if self.colored else None

    def _wants_color(self) -> bool:
        if self.environment.get("NO_COLOR"):
            return False
        if self.environment.get("FORCE_COLOR"):
            return True
        return self.is_terminal and self.environment.get("TERM", "") not in ("", "dumb")

    @property
    def width(self) -> int:
        """Columns, as they are now; COLUMNS overrules, and what is no terminal has 100."""
        told = self.environment.get("COLUMNS", "")
        if told.isdecimal() and int(told) > 0:
            return int(told)
        try:
            return os.get_terminal_size(self.stream.fileno()).columns or 80
        except (OSError, ValueError):  # a pipe, or no file at all
            return 80 if self.is_terminal else 100

    @property
    def height(self) -> int:
        """Lines; 0 for what is no terminal."""
        try:
            return os.get_terminal_size(self.stream.fileno()).lines
        except (OSError, ValueError):
            return 0

    def bar(self, width: int, parts: Mapping[str, int], style: str = "") -> Line:
        """As many cells; each owner has those from its first byte to its last. Styled as owners are
        unless there is another style."""
        total, before, cells = max(sum(parts.values()), 1), 0, []
        for owner, nbytes in parts.items():
            begin, before = before, before + nbytes
            n = round(width * before / total) - round(width * begin / total)
            own = style if style and owner != "free" else owner
            cells.append(Piece(OWNERS[owner][0 if self.unicode else 1] * n, own))
        return [piece for piece in cells if piece.text]

    def legend(self, owners: Iterable[str]) -> list[Line]:
        """What the characters of bars stand for, on as many lines as that takes."""
        lines: list[Line] = [[]]
        for owner in owners:
            sign, plain, words = OWNERS[owner]
            told = [Piece(sign if self.unicode else plain, owner), Piece(f" {words}  ", "quiet")]
            if lines[-1] and len(text_of([*lines[-1], *told]).rstrip()) > self.width:
                lines.append([])
            lines[-1] += told
        return [fitted(self.width, line) for line in lines]

    # ---- output

    def render(self, lines: Iterable[Line]) -> str:
        """What is written for the lines."""
        rich = self._rich
        if rich is None:
            return "".join(self._encodable(text_of(line)).rstrip() + "\n" for line in lines)
        console = rich.Console(
            file=None, force_terminal=True, no_color=False, width=10_000, highlight=False,
            legacy_windows=False, color_system="standard",  # the colours that the user has chosen
        )  # fmt: skip
        with console.capture() as captured:
            for line in lines:
                text = rich.Text(no_wrap=True, end="\n")
                for piece in line:
                    text.append(self._encodable(piece.text), STYLES.get(piece.style, ""))
                text.rstrip()
                console.print(text, crop=False, overflow="ignore")
        return str(captured.get())

    def _encodable(self, text: str) -> str:
        """Nothing that the stream cannot write, and no Unicode where it is not wanted."""
        encoding = (getattr(self.stream, "encoding", None) or "ascii") if self.unicode else "ascii"
        return text.encode(encoding, "replace").decode(encoding)

    def show(self, lines: Iterable[Line]) -> None:
        self.stream.write(self.render(lines))
        self.stream.flush()

    def show_frame(self, lines: Sequence[Line]) -> None:
        """In place of the frame before, as much of it as there is room for."""
        height = self.height
        rows = self.render(lines[: height - 1] if height else lines).splitlines()
        # Each row overwrites the old one, so that nothing flickers.
        self.stream.write("\x1b[H" + "".join(f"{row}\x1b[K\r\n" for row in rows) + "\x1b[J")
        self.stream.flush()

    def __enter__(self) -> Screen:
        """A screen for frames: the terminal's other one, without a cursor."""
        self.stream.write("\x1b[?1049h\x1b[?25l\x1b[2J")
        return self

    def __exit__(self, *exception: object) -> None:
        self.stream.write("\x1b[?25h\x1b[?1049l")
        self.stream.flush()


def _has_unicode(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether its encoding has what bars need. Python writes UTF-8 in the locale "C", too."""
    names = (environment.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    if next(filter(None, names), "") in ("C", "POSIX"):
        return False
    try:
        "".join(sign for sign, _, _ in OWNERS.values()).encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class _Rich(NamedTuple):
    Console: Any
    Text: Any


def _rich() -> _Rich | None:
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        return None
    return _Rich(Console, Text)
