"""Frames that follow each other in a terminal, and the keys that are pressed meanwhile."""

from __future__ import annotations

import contextlib
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType

from managed.cli._screen import Line, Screen

__all__ = ["follow"]

#: What ends: q, Q and the escape key.
_QUIT = ("q", "Q", "\x1b")


def follow(
    screen: Screen,
    frame: Callable[[], list[Line]],
    interval: float,
    pressed: Callable[[str], None] = lambda key: None,
) -> None:
    """Shows frame() every `interval` seconds, until q or Ctrl-C is pressed.

    Where the output is no terminal one frame comes below the other.
    """
    with contextlib.suppress(KeyboardInterrupt):
        if not screen.is_terminal:
            while True:
                screen.show(frame())
                time.sleep(interval)
        with _ended_by_signal(), screen, _keys() as wait:
            while True:
                screen.show_frame(frame())
                for key in wait(interval):
                    if key in _QUIT:
                        return
                    pressed(key)


@contextlib.contextmanager
def _ended_by_signal() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does, so that the terminal is left as it was."""

    def end(number: int, where: FrameType | None) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits so many seconds or for a key, and returns what was pressed."""
    if not sys.stdin.isatty():

        def sleep(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield sleep
        return
    import os
    import termios
    import tty

    there = sys.stdin.fileno()
    old = termios.tcgetattr(there)

    def wait(seconds: float) -> str:
        ready, _, _ = select.select([there], [], [], seconds)
        if not ready:
            return ""
        told = os.read(there, 64).decode(errors="ignore")
        return "" if told.startswith("\x1b") and len(told) > 1 else told  # an arrow is no escape

    try:
        tty.setcbreak(there)
        yield wait
    finally:
        termios.tcsetattr(there, termios.TCSADRAIN, old)
