"""`managed doctor`: what this machine has, and what will not work; text for an issue."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from managed._views.words import columns, size
from managed.cli import _machine, _problems
from managed.cli._screen import Line, Piece, Screen, wrapped

__all__ = ["describe", "run"]

SCHEMA = 1


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON, sizes in bytes")
    parser.add_argument("-U", "--ascii", action="store_true", help="ASCII characters alone")


def run(options: argparse.Namespace) -> int:
    """Prints what is there and what is wrong; 0 also where much is wrong."""
    facts = _machine.collect()
    facts["conflicts"] = _problems.conflicts()
    problems = _problems.find(facts)
    if options.json:
        told = {"schema": SCHEMA, **facts, "problems": [p._asdict() for p in problems]}
        print(json.dumps(told, indent=2))
        return 0
    screen = Screen(ascii=options.ascii or None)
    screen.show(lines_of(facts, problems, screen.width))
    return 0


def lines_of(
    facts: dict[str, Any], problems: list[_problems.Problem], width: int
) -> Iterator[Line]:
    yield from _section("versions", _versions(facts["versions"]), width)
    yield from _section("cards", _cards(facts["cards"]), width)
    if facts["topology"]:
        yield from _section("links", [(line,) for line in facts["topology"].splitlines()], width)
    yield from _section("memory of the host", _memory(facts["memory"]), width)
    for name in ("libraries", "environment", "conflicts"):
        if facts[name]:
            yield from _section(name, list(facts[name].items()), width)
    yield [Piece("what will not work", "title")]
    if not problems:
        yield [Piece("  nothing is known", "good")]
    for p in problems:
        yield from wrapped(p.what, width, "  - ", "bad", "    ")
        yield from wrapped(p.why, width, "    why: ", below="    ")
        for cure in p.cure.splitlines():
            yield from wrapped(cure, width, "    cure: ", "good", "    ")


def _section(title: str, rows: list[tuple[str, ...]], width: int) -> Iterator[Line]:
    yield [Piece(title, "title")]
    for line in columns(rows):
        yield from wrapped(line, width, "  ", below="      ")  # not cut: the text is to be complete
    yield []


def _versions(versions: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = [(k, str(v)) for k, v in versions.items() if v is not None and k != "extensions"]
    works = [name for name, told in versions["extensions"].items() if told == "works"]
    fails = [name for name, told in versions["extensions"].items() if told != "works"]
    told = ", ".join([*works, *(f"{name} fails" for name in fails)]) or "none asked for"
    return [*rows, ("extensions", told)]


def _memory(memory: dict[str, int | None]) -> list[tuple[str, ...]]:
    limits = ("control group", "may be locked")
    told = {k: "no limit" if n is None and k in limits else n for k, n in memory.items()}
    return [(k, n if isinstance(n, str) else size(n)) for k, n in told.items() if n is not None]


def _cards(cards: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for i, card in enumerate(cards["found"]):
        peers = ", ".join(f"cuda:{j}" for j in cards["peers"][i]) or "none"
        told = (card["model"], size(card["memory"]), f"capability {card['compute capability']}",
                card["bus"], card["link"] or "link unknown", f"peers: {peers}")  # fmt: skip
        rows.append((card["name"], "  ".join(told)))
    rows += [(d["name"], f"simulated  {size(d['memory'])}") for d in cards["simulated"]]
    return rows or [("none", cards["why_none"] or "")]
