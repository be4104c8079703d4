"""Writes docs/cost.md from build/bench/overhead.json, so that no figure is typed by hand.

python benchmarks/overhead.py && python benchmarks/cost_page.py
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from cases import median_of
from report import Report
from tree import ROOT

HEAD = """# Cost

What being managed costs when nothing has to move. This page is written by
`python benchmarks/overhead.py`, `python benchmarks/placement.py` and
`python benchmarks/cost_page.py`; these figures are from {machine}, one thread.

Every block of the subject is timed between two blocks of plain PyTorch and compared with their
mean. Time is CPU time of the thread. *Control* is plain PyTorch compared with itself in the same
way: it shows the error of the method. The column `__torch_function__` is a tensor subclass that
aligns devices in Python on every call, as
[bridgesign/managed](https://github.com/bridgesign/managed) does; its log lines, its walk over the
autograd graph and its waiting for room are left out.
"""
OPERATORS = """
## Operators on tiny tensors, {mode}

Nanoseconds per call: plain PyTorch, and how much more the other ways take. The interval is that of
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

In fresh processes `import managed` takes {share} of the CPU time that `import torch` took before it
(median of {pairs}). It starts {threads} threads, prints {printed} bytes and {cuda} CUDA.
"""
PLACEMENT = """
## When something has to be copied

On simulated devices, where a transfer is a copy in host memory, so that what is left is the work
of deciding, recording and counting. Microseconds per call of the program that moves the operand
itself, as in `a + b.to("sim:0")`, and how much more it takes when the manager does it. The
operand is written before each call, so that no copy of an earlier one serves.
"""
HITS = """
When a copy of an earlier use serves: microseconds per call on operands that stand together, and
how much more it takes when one of them is elsewhere.
"""
SETTLED = """
A training step of a model whose parameters were scattered over three simulated devices and that
has come to rest: milliseconds on the wall of the same managed model on one device, and the ratio
to it.
"""
CALLS = """
Microseconds per call:
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
    medians = [f"{median_of(report, k):+.0f}" for k in ("control", "managed", "torch_function")]
    rows.append(["median of all but the getters", "", *medians[:2], "", medians[2]])
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


def pairs(by_mode: Report, first: str) -> str:
    columns = ["", first, "control", "managed", "interval"]
    rows = []
    for mode, words in (("no grad", ""), ("grad", ", recording gradients")):
        for name, row in by_mode[mode].items():
            m = row["managed"]
            shown = [f"{row[k]['median']:+.1f}" for k in ("control", "managed")]
            interval = f"{m['low']:+.1f} to {m['high']:+.1f}"
            rows.append([name + words, f"{row['first_us']:.1f}", *shown, interval])
    return table(columns, rows)


def settled(report: Report) -> str:
    rows = []
    for name, row in report.items():
        m = row["managed"]
        shown = [f"{row[k]['median']:.2f}" for k in ("control", "managed")]
        rows.append([name, f"{row['first_ms']:.1f}", *shown, f"{m['low']:.2f} to {m['high']:.2f}"])
    return table(["", "one device", "control", "scattered", "interval"], rows)


def imports(report: Report) -> str:
    return IMPORT.format(
        share=f"{report['over_torch']['median']:.1%}".replace("%", " %"),
        pairs=report["over_torch"]["pairs"],
        threads=report["threads"] or "no",
        printed=report["output_bytes"] or "no",
        cuda="initialises" if report["cuda_initialised"] else "does not initialise",
    )


def page(overhead: Report, placement: Report) -> str:
    m = overhead["machine"]
    machine = f"{', '.join(m['cpu'])}, Python {m['python']}, PyTorch {m['torch']}"
    text = HEAD.format(machine=machine)
    for mode, words in (("no grad", "without gradients"), ("grad", "recording gradients")):
        text += OPERATORS.format(mode=words) + operators(overhead[f"operators, cpu, {mode}"])
    text += STEPS + steps(overhead["steps, cpu"]) + imports(overhead["import"])
    text += PLACEMENT + pairs(placement["copies"], "by hand")
    text += HITS + pairs(placement["hits"], "together") + SETTLED + settled(placement["settled"])
    calls = [[f"`{name}`", f"{us:.1f}"] for name, us in placement["calls"].items()]
    return text + CALLS + table(["", "median"], calls)


def main() -> None:
    folder = ROOT / "build" / "bench"
    overhead, placement = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("overhead", "placement")
    )
    (ROOT / "docs" / "cost.md").write_text(page(overhead, placement))
    print("written: docs/cost.md")


if __name__ == "__main__":
    main()
