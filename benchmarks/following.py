"""What learning costs the host: an operator that is logged, and one that is followed.

    python benchmarks/following.py [--check] [--json FILE]

The core alone, without torch, in steps of 1,000 operators on two weights each (following.c). Times
are of the call that each operator makes where a device is short of room; elsewhere there is none.
`followed` has few copies in a step, `copied` nearly one an operator. A plan is made once for a
step, takes some 20 ms, and is not in them.

--check: the exit status is 1 where an operator takes more than 0.1 us, and 0.2 us for each copy.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from report import print_table, verdicts, write
from tree import ROOT, build_on_core

OPERATOR, COPY = 100.0, 200.0  # ns


def measured() -> list[tuple[str, float, float]]:
    """What, nanoseconds an operator, copies an operator."""
    with tempfile.TemporaryDirectory() as folder:
        program = build_on_core("following", Path(folder))
        out = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    rows = (line.split() for line in out.splitlines())
    return [(what, float(ns), float(copies)) for what, ns, copies in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    default = ROOT / "build" / "bench" / "following.json"
    parser.add_argument("--out", "--json", type=Path, default=default, metavar="FILE")
    asked = parser.parse_args()
    found = measured()
    table = [[what, f"{ns:.0f}", f"{copies:.3f}"] for what, ns, copies in found]
    print_table("what learning costs", ["ns an operator", "copies an operator"], table)
    limits = [(what, ns, OPERATOR + COPY * copies) for what, ns, copies in found]
    missed = [t for t in verdicts(limits) if not t["pass"]]
    write({"found": found, "missed": missed}, asked.out)
    return int(asked.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
