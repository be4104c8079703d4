"""Which processes and devices a command shows: what `top` and `status` have in common."""

from __future__ import annotations

import argparse
import os
from typing import Any, NamedTuple

from managed.cli.watch import serve, sockets
from managed.cli.watch.snapshot import rates

__all__ = ["NOBODY", "Shown", "Watch", "add_arguments", "interval"]

#: What a command says where there is no process to look at.
NOBODY = (
    "no process of this user can be looked at",
    "Start one with `managed run script.py`, or with MANAGED_TOP=1 in its environment.",
)

LEAST_INTERVAL = 0.25


def interval(text: str) -> float:
    seconds = float(text)
    if not LEAST_INTERVAL <= seconds < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not at least {LEAST_INTERVAL} seconds")
    return seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-p", "--pid", nargs="+", type=int, metavar="PID", help="only these processes"
    )
    parser.add_argument(
        "-o", "--only", nargs="+", type=int, metavar="INDEX", help="only devices of these indices"
    )
    parser.add_argument(
        "-ov", "--only-visible", action="store_true",
        help="only what CUDA_VISIBLE_DEVICES names here, and simulated devices",
    )  # fmt: skip


class Shown(NamedTuple):
    """A process that was asked, and what it counted a second since the last time."""

    pid: int
    snapshot: dict[str, Any]  #: empty where it did not answer
    rates: dict[str, float]  #: empty the first time
    error: str  #: why it did not


class Watch:
    """The processes that were asked for, again and again."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.before: dict[int, dict[str, Any]] = {}
        serve.stop()  # MANAGED_TOP is for processes that are looked at

    def look(self) -> list[Shown]:
        wanted = self.options.pid
        shown, now = [], {}
        for pid, snapshot, error in sockets.find():
            if wanted and pid not in wanted:
                continue
            told: dict[str, float] = {}
            if snapshot:
                now[pid] = snapshot
                told = rates(self.before[pid], snapshot) if pid in self.before else {}
                devices = [d for d in snapshot["devices"] if self._shows(d, snapshot)]
                snapshot = {**snapshot, "devices": devices}
            shown.append(Shown(pid, snapshot, told, error))
        self.before = now
        return shown

    def _shows(self, device: dict[str, Any], snapshot: dict[str, Any]) -> bool:
        kind, _, index = device["name"].partition(":")
        if self.options.only and int(index) not in self.options.only:
            return False
        if kind != "cuda" or not self.options.only_visible:
            return True
        here = os.environ.get("CUDA_VISIBLE_DEVICES")
        return here is None or _card(snapshot["process"]["visible"], int(index)) in _cards(here)


def _cards(visible: str) -> list[str]:
    return [card.strip() for card in visible.split(",")]


def _card(visible: str | None, index: int) -> str:
    """What CUDA_VISIBLE_DEVICES calls the card that a process knows by this index."""
    cards = _cards(visible) if visible else []
    return cards[index] if index < len(cards) else str(index)
