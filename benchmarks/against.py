"""Whether operators that move nothing cost more than in another tree of this project.

    python benchmarks/against.py PATH [--rounds N] [--sim]

PATH is a checkout with its extensions built (`setup.py build_ext --inplace`). Runs
`overhead.py --only operators --quick` from this tree on both packages in turn, each in a
process of its own, and prints how many nanoseconds more than plain each operator takes: the
median of the rounds, and of the differences within a round. With --sim on a simulated device.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from report import Report, print_table
from tree import ROOT


def measure(tree: Path, flags: list[str]) -> Report:
    """The report of overhead.py with the package of `tree`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        subprocess.run(
            [
                sys.executable,
                str(ROOT / "benchmarks" / "overhead.py"),
                *("--only", "operators", "--quick", "--out", str(out), *flags),
            ],
            env=os.environ | {"PYTHONPATH": str(tree)},
            cwd=tree,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        report: Report = json.loads(out.read_text())
        return report


def costs(report: Report, device: str, mode: str) -> dict[str, float]:
    table = report[f"operators, {device}, {mode}"]
    return {name: row["managed"]["median"] for name, row in table.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("other", type=Path, metavar="PATH", help="the other tree")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sim", action="store_true", help="on a simulated device, with handles")
    options = parser.parse_args()
    flags, device = (["--sim"], "sim") if options.sim else ([], "cpu")
    trees = ROOT, options.other.resolve()
    pairs = [tuple(measure(tree, flags) for tree in trees) for _ in range(options.rounds)]
    for mode in ("no grad", "grad"):
        rounds = [(costs(here, device, mode), costs(there, device, mode)) for here, there in pairs]
        rows, medians = [], []
        for name in rounds[0][0]:
            here, there = ([r[k][name] for r in rounds] for k in (0, 1))
            difference = statistics.median(x - y for x, y in zip(here, there, strict=True))
            medians.append(difference)
            rows.append([name, *(f"{v:+.0f}" for v in map(statistics.median, (here, there)))])
            rows[-1].append(f"{difference:+.0f}")
        rows.append(["median", "", "", f"{statistics.median(medians):+.0f}"])
        print_table(f"{mode}: ns more than plain", ["here", "there", "difference"], rows)


if __name__ == "__main__":
    main()
