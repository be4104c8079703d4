"""Whether operators that move nothing cost more than in another tree of this project.

    python benchmarks/against.py PATH [--rounds N] [--sets N] [--sim]

PATH is a checkout with its extensions built (`setup.py build_ext --inplace`). Runs
`overhead.py --only operators --quick` from this tree on both packages in turn, each in a
process of its own, and prints how many nanoseconds more than plain each operator takes: the
median of the rounds, and of the differences within a round; and the ratio of what a managed
operator takes here to what it takes there. With --sim on a simulated device.
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


def key_of(device: str, mode: str) -> str:
    return f"operators, {device}, {mode}"


def costs(report: Report, device: str, mode: str) -> dict[str, float]:
    table = report[key_of(device, mode)]
    return {name: row["managed"]["median"] for name, row in table.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("other", type=Path, metavar="PATH", help="the other tree")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sets", type=int, default=1, help="sets of operands with gaps between")
    parser.add_argument("--sim", action="store_true", help="on a simulated device, with handles")
    options = parser.parse_args()
    flags, device = (["--sim"], "sim") if options.sim else ([], "cpu")
    flags += ["--sets", str(options.sets)]
    trees = ROOT, options.other.resolve()
    pairs = [tuple(measure(tree, flags) for tree in trees) for _ in range(options.rounds)]
    for mode in ("no grad", "grad"):
        rounds = [(costs(here, device, mode), costs(there, device, mode)) for here, there in pairs]
        rows, medians, ratios = [], [], []
        for name in rounds[0][0]:
            here, there = ([r[k][name] for r in rounds] for k in (0, 1))
            difference = statistics.median(x - y for x, y in zip(here, there, strict=True))
            medians.append(difference)
            tables = [report[key_of(device, mode)] for pair in pairs for report in pair]
            plain = statistics.median(table[name]["plain_ns"] for table in tables)
            ratios.append(1 + difference / (plain + statistics.median(there)))
            rows.append([name, *(f"{v:+.0f}" for v in map(statistics.median, (here, there)))])
            rows[-1] += [f"{difference:+.0f}", f"{ratios[-1]:.3f}"]
        rows.append(["median", "", "", f"{statistics.median(medians):+.0f}"])
        rows[-1].append(f"{statistics.median(ratios):.3f}")
        columns = ["here", "there", "difference", "here / there"]
        print_table(f"{mode}: ns more than plain", columns, rows)


if __name__ == "__main__":
    main()
