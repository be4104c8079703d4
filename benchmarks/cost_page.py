"""Writes docs/cost.md from build/bench/overhead.json, so that no figure is typed by hand.

python benchmarks/overhead.py && python benchmarks/cost_page.py
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from report import Report
from tree import ROOT

HEAD = """# Cost

What being managed costs when nothing has to move. This page is written by
`python benchmarks/overhead.py` followed by `python benchmarks/cost_page.py`; these figures are
from {machine}, one thread.

Every block of the subject is timed between two blocks of plain PyTorch and compared with their
mean. Time is CPU time of the thread. *Control* is plain PyTorch compared with itself in the same
way: it shows the error of the method. The column `__torch_function__` is a tensor subclass that
aligns devices in Python on every call, as
[bridgesign/managed](https://github.com/bridgesign/managed) does; its log lines, its walk over the
autograd graph and its waiting for room are left out.
"""
OPERATORS = """
## Operators on tiny tensors, {mode}

Nanoseconds per call: plain PyTorch, and how much more the others take. The interval is that of
the median, 95 %.
"""
STEPS = """
## Training steps

Forward, backward and AdamW (`foreach=True` unless said otherwise): milliseconds of plain PyTorch,
and the ratio to it. *Tiny* models have a few dozen features, so a step is nearly all overhead of
PyTorch; in *large* ones arithmetic dominates.
"""
IMPORT = """
## Import

`import managed` after `import torch`, in fresh processes: {wall} ms on the wall, {cpu} ms of CPU
time (medians of {pairs}). It starts {threads} threads, prints {printed} bytes and {cuda} CUDA.
"""
TAIL = """
## What it does not say

When operands have to be copied, the copies come on top; see `python benchmarks/placement.py` for
what the manager adds to them. On simulated devices an operator also pays for the simulation.
"""


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1), *rows]
    return "\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def operators(report: Report) -> str:
    columns = ["", "plain", "control", "managed", "interval", "`__torch_function__`"]
    rows = []
    for name, row in report.items():
        m = row["managed"]
        shown = [f"{row[k]['median']:+.0f}" for k in ("control", "managed", "torch_function")]
        interval = f"{m['low']:+.0f} to {m['high']:+.0f}"
        rows.append([f"`{name}`", f"{row['plain_ns']:.0f}", *shown[:2], interval, shown[2]])
    return table(columns, rows)


def steps(report: Report) -> str:
    columns = ["", "plain, ms", "control", "managed", "interval", "`__torch_function__`"]
    rows = []
    for name, row in report.items():
        m = row["managed"]
        shown = [f"{row[k]['median']:.3f}" for k in ("control", "managed", "torch_function")]
        interval = f"{m['low']:.3f} to {m['high']:.3f}"
        rows.append([name, f"{row['plain_ms']:.2f}", *shown[:2], interval, shown[2]])
    return table(columns, rows)


def page(results: Report) -> str:
    m = results["machine"]
    machine = f"{', '.join(m['cpu'])}, Python {m['python']}, PyTorch {m['torch']}"
    text = HEAD.format(machine=machine)
    for mode, words in (("no grad", "without gradients"), ("grad", "recording gradients")):
        text += OPERATORS.format(mode=words) + operators(results[f"operators, cpu, {mode}"])
    text += STEPS + steps(results["steps, cpu"])
    i = results["import"]
    text += IMPORT.format(
        wall=f"{i['import_ms']['median']:.0f}",
        cpu=f"{i['import_cpu_ms']['median']:.0f}",
        pairs=i["import_ms"]["pairs"],
        threads=i["threads"] or "no",
        printed=i["output_bytes"] or "no",
        cuda="initialises" if i["cuda_initialised"] else "does not initialise",
    )
    return text + TAIL


def main() -> None:
    results = json.loads((ROOT / "build" / "bench" / "overhead.json").read_text())
    (ROOT / "docs" / "cost.md").write_text(page(results))
    print("written: docs/cost.md")


if __name__ == "__main__":
    main()
