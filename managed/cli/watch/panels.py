"""What `managed top` draws of a process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

from managed._views.words import columns, size, took
from managed.cli._screen import OWNERS, Line, Piece, Screen, fitted, printable
from managed.cli.watch.asked import Shown

__all__ = ["Look", "command", "panel"]

#: Counters and what they are called; those of the second row are shown when they are not zero.
_ALWAYS = {"spill": "spilled", "restore": "restored"}
_IF_ANY = {
    "drop": "given up",
    "spare": "copied ahead",
    "copy": "copied",
    "move": "moved",
    "write_back": "written back",
}
_ONE_LINE = 72  # columns that a device's figures and its bar take beside each other


class Look:
    """How it is drawn."""

    def __init__(self, screen: Screen, colorful: bool, thresholds: tuple[int, int]) -> None:
        self.screen, self.colorful, self.thresholds = screen, colorful, thresholds

    def level(self, percent: float) -> str:
        return ("good", "warn", "bad")[sum(percent >= t for t in self.thresholds)]

    def bar(self, width: int, parts: dict[str, int]) -> Line:
        """Of owners' bytes; from green to red where it is to be colourful."""
        bar = self.screen.bar(width, parts)
        if not self.colorful:
            return bar
        cells = [Piece(c, p.style) for p in bar for c in p.text]
        return [
            c if c.style == "free" else c._replace(style=f"level{min(2, 3 * i // max(width, 1))}")
            for i, c in enumerate(cells)
        ]


def command(process: dict[str, Any]) -> str:
    """Its command line, the interpreter by its name alone."""
    first, *rest = process["command"] or ["?"]
    return printable(" ".join([os.path.basename(first), *rest]))


def panel(shown: Shown, look: Look, largest: int) -> list[Line]:
    """A process: its devices, what moved, and as many of its largest tensors."""
    width = look.screen.width
    if not shown.snapshot:
        return [fitted(width, [Piece(f"{shown.pid}  "), Piece(printable(shown.error), "warn")])]
    snapshot = shown.snapshot
    process = snapshot["process"]
    age = time.strftime("%H:%M:%S", time.gmtime(max(0, snapshot["time"] - process["since"])))
    lines = [fitted(width, [Piece(f"{process['pid']}  ", "title"), Piece(command(process), "title"),
                            Piece(f"  {age}", "quiet")])]  # fmt: skip
    if not snapshot["devices"]:
        return [*lines, fitted(width, [Piece("  it has no devices to show", "quiet")])]
    name_width = max(len(d["name"]) for d in snapshot["devices"])
    for device in snapshot["devices"]:
        lines += _device(device, name_width, look)
    lines += _holders(snapshot["devices"], width)
    lines += _host(snapshot["host"], name_width, width)
    lines += _moves(snapshot, shown.rates, width)
    if largest:
        lines += _largest(snapshot["devices"], largest, width)
    return lines


def _device(device: dict[str, Any], name_width: int, look: Look) -> list[Line]:
    width, capacity = look.screen.width, device["capacity"]
    percent = 100 * device["used"] / capacity if capacity else 0.0
    away = device["storages"]["spilled"]
    name = [Piece(f"  {device['name']:{name_width}} ", "title")]
    share = Piece(f" {percent:5.1f}%", look.level(percent))
    figures = f"  {size(device['used'])} / {size(capacity)}"
    told = [Piece(f"  {size(away)} away", "warn")] if away else []
    if width < _ONE_LINE:
        return [
            fitted(width, [*name, share, Piece(figures)]),
            *([fitted(width, [Piece("  "), *told])] if told else []),
            [Piece("  "), *look.bar(max(width - 2, 1), device["owners"])],
        ]
    ends = [share, Piece(f"{figures:24}"), *(told or [Piece("")])]
    used = sum(len(p.text) for p in [*name, share]) + 24 + 18  # the same for all devices
    return [fitted(width, [*name, *look.bar(max(width - used, 8), device["owners"]), *ends])]


def _holders(devices: Iterable[dict[str, Any]], width: int) -> list[Line]:
    """What other allocators have, as they reported it last; nothing where none has anything."""
    lines = []
    for device in devices:
        for name, held in device["holders"].items():
            if held["live"] or held["cached"]:
                told = f"{size(held['live'])} live, {size(held['cached'])} cached"
                lines.append(
                    fitted(width, [Piece(f"  {printable(name)} on {device['name']}  {told}")])
                )
    return lines


def _host(host: dict[str, int], name_width: int, width: int) -> list[Line]:
    """Bytes of the host; nothing where nothing has ever left a device."""
    if not host["peak"]:
        return []
    told = f"{size(host['used'])} of tensors that left, at most {size(host['limit'])}"
    short = f"{size(host['used'])} / {size(host['limit'])}"
    name = Piece(f"  {'cpu':{name_width}}  ", "title")
    return [fitted(width, [name, Piece(told)], [name, Piece(short)])]


def _moves(snapshot: dict[str, Any], rates: dict[str, float], width: int) -> list[Line]:
    """What moved, now and so far, and what was waited for."""
    counters = snapshot["counters"]
    rows = []
    for kind, words in (_ALWAYS | _IF_ANY).items():
        if kind in _ALWAYS or counters[kind]:
            now = rates.get(f"{kind}_bytes")
            rows.append((f"  {words}", "" if now is None else f"{size(now)}/s",
                         size(counters[f"{kind}_bytes"]), f"{counters[kind]:,} times"))  # fmt: skip
    for link, nbytes in sorted(snapshot["links"].items(), key=lambda item: -item[1])[:6]:
        now = rates.get(f"link {link}")
        rows.append((f"  {link}", "" if now is None else f"{size(now)}/s", size(nbytes), ""))
    for kind, words in (("waited", "waits for room"), ("host_waits", "waits for copies")):
        if counters[kind]:
            now = rates.get(kind)
            spent = took(counters.get(f"{kind}_ns", 0))
            rows.append((f"  {words}", "" if now is None else f"{now:.1f}/s",
                         spent, f"{counters[kind]:,} times"))  # fmt: skip
    head = ("  what moved", "now" if rates else "", "so far", "")
    head_line, *lines = columns([head, *rows], right=(1, 2, 3))
    return [fitted(width, [Piece(head_line, "quiet")]), *(fitted(width, [Piece(s)]) for s in lines)]


def _largest(devices: Iterable[dict[str, Any]], n: int, width: int) -> list[Line]:
    every = [(t["bytes"], d["name"], t) for d in devices for t in d["largest"]]
    every.sort(key=lambda one: (-one[0], one[1]))
    rows = []
    for nbytes, home, tensor in every[:n]:
        way = home if tensor["where"] == home else f"{home}, now {tensor['where']}"
        rows.append((f"  {size(nbytes)}", way, _name(tensor), _fate(tensor)))
    if not rows:
        return []
    head, *lines = columns([("  largest", "of", "tensor", "last"), *rows], right=(0,))
    return [fitted(width, [Piece(head, "quiet")]), *(fitted(width, [Piece(s)]) for s in lines)]


def _name(tensor: dict[str, Any]) -> str:
    count = f"{tensor['count']} times " if tensor["count"] > 1 else ""
    return count + printable(tensor["name"] or "(no name)")


def _fate(tensor: dict[str, Any]) -> str:
    """Why it stays, and what happened to it last."""
    last = tensor["last"] or {}
    told = [
        tensor["stays"] and f"stays: {tensor['stays']};",
        (last.get("kind") or "").replace("_", " "),
        last.get("operator") and f"for {last['operator']}",
        last.get("line") and f"at {last['line']}",
    ]
    return printable(" ".join(t for t in told if t)).rstrip(";")


def owners_shown(shown: Iterable[Shown]) -> list[str]:
    """Those that occur, in the order of OWNERS."""
    held = [d["owners"] for s in shown if s.snapshot for d in s.snapshot["devices"]]
    return [owner for owner in OWNERS if any(o[owner] for o in held)]
