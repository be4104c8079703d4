"""How the benchmarks report: tables for people, one JSON file for machines."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tree import ROOT

__all__ = ["Report", "machine", "print_table", "verdicts", "write"]

Report = dict[str, Any]


def machine() -> Report:
    """What a reader needs to judge the figures."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpus = {line.split(":")[1].strip() for line in lines if line.startswith("model name")}
    return {
        "cpu": sorted(cpus),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first column to the left, the others to the right."""
    table = [["", *columns], *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    print(f"\n{title}")
    for first, *others in table:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *cells]))


def verdicts(targets: Sequence[tuple[str, float, float]]) -> list[Report]:
    """Prints (name, measured, limit) as passed or failed, and returns the same as records."""
    records = [
        {"target": name, "measured": value, "limit": limit, "pass": value <= limit}
        for name, value, limit in targets
    ]
    rows = [
        [r["target"], f"{r['measured']:.4g}", f"{r['limit']:g}", "pass" if r["pass"] else "FAIL"]
        for r in records
    ]
    print_table("targets", ["measured", "limit", ""], rows)
    return records


def write(results: Report, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nwritten: {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")
