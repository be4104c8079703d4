"""Writes "What it costs" in docs/memory.md from build/bench/memory.json and peers.json, so that
no figure is typed by hand.

python benchmarks/memory.py && python benchmarks/peers.py && python benchmarks/memory_page.py
"""

from __future__ import annotations

import json
import re

from cost_page import table
from report import Report
from tree import ROOT

TITLE = "## What it costs\n"
MiB = 2**20
HEAD = """
This section is written by `python benchmarks/memory.py`, `python benchmarks/peers.py` and `python
benchmarks/memory_page.py`; these figures are from {machine}, one thread, on a machine that has
other work too. Bytes repeat exactly. Times are ratios within one run: at a budget of the whole
nothing is evicted and the ratio is 1; there they came out between {low} and {high}, and smaller
differences say nothing. Devices are simulated: a transfer is a copy in host memory, and nothing
overlaps.
"""
BUDGETS = """
### Bytes and time under a budget

One step of AdamW with a budget that is a part of the most that the model holds without one.
Losses and weights are those without a budget, bit for bit, and the device never holds more than
the budget; at a budget of the whole nothing is evicted. *Spilled* are MiB copied out in a step, by
each policy of choosing victims, {default} being the default. *Furthest* is what it would be if the
victim were always the tensor whose next use is the last, which needs to know the future. *Bound* is
what no choice can be below, even if tensors could be evicted in parts; *oracle* is that of a choice
which also knows what the program holds without using it again, such as gradients late in the
optimizer's step, and drops it. *Time* is over that of the same model without a budget.
"""
FEASIBLE = """
### The least room

The columns are the least budget in which a model trains, in MiB, and what its largest operator
uses and makes.
"""
INFERENCE = """
These are the MiB of one pass through a model of which a quarter fits ({used} MiB with its input).
Weights do not change, so they are evicted without a copy.
"""
THROUGHPUT = """
### Speed

This is the speed of spilling and restoring {size} as a part of that of memcpy of as many bytes. The
system has to find and clear pages that were never touched, which takes longer than to copy them;
simulated devices keep large freed blocks, so that they meet few. *Returned* is with the C library
as it is, which returns freed memory to the system, and *kept* with one that does not. *New* is the
part of the pages that were new.
"""
PEERS = """
### Beside other ways

Peak is the most on the device, MiB; managed has a budget of as many bytes as the one above it
used. Time is over plain PyTorch. Equal: every loss, parameter and buffer is that of the plain
model, bit for bit. What fails raised an error. (A checkpoint runs batch normalisation's forward
pass twice, and so its running means differ.)
"""
LINES = """
A program needs these lines beside the plain ones:
"""


def mib(value: float, digits: int = 1) -> str:
    return f"{value / MiB:.{digits}f}"


def control(report: Report) -> tuple[float, float]:
    """The least and the largest ratio of times where it should be 1."""
    times = [
        policy["time"]["median"]
        for model in report.values()
        for fraction, found in model["fractions"].items()
        if float(fraction) == 1
        for policy in found["policies"].values()
    ]
    return min(times), max(times)


def unfit(budget: float, operator: float) -> str:
    return f"one operator needs {mib(operator)}" if operator > budget else "does not fit"


def budgets(report: Report, operators: Report) -> str:
    policies = ["lru", "clean_first", "greedy_dual"]
    columns = ["", *(f"spilled, `{p}`" for p in policies), "furthest", "bound", "oracle"]
    rows = []
    for name, model in report.items():
        for fraction, found in model["fractions"].items():
            share = f"{name}, {float(fraction):.0%} of {mib(model['peak'])}"
            if "why" in found:
                why = unfit(found["budget"], operators[name]["operator"])
                rows.append([share, why, *[""] * 8])
            elif float(fraction) < 1:
                each = [found["policies"][p] for p in policies]
                known = found["bounds"]
                bounds = [mib(known["kept"][k]) for k in ("furthest_out", "least_out")]
                bounds.append(mib(known["oracle"]["least_out"]))
                times = [f"{r['time']['median']:.2f}" for r in each]
                rows.append([share, *(mib(r["moved"]["spill"]) for r in each), *bounds, *times])
    return table([*columns, *(f"time, `{p}`" for p in policies)], rows)


def feasible(report: Report) -> str:
    rows = [
        [name, mib(r["budget"]), mib(r["operator"]), f"{r['budget'] / r['operator']:.2f}"]
        for name, r in report.items()
    ]
    return table(["", "budget", "largest operator", "ratio"], rows)


def inference(report: Report) -> str:
    rows = [
        [f"`{name}`", *(mib(r[kind], 2) for kind in ("spill", "drop", "restore"))]
        for name, r in report["policies"].items()
    ]
    head = INFERENCE.format(used=mib(report["used"], 2))
    return head + table(["", "spilled", "dropped", "restored"], rows)


def throughput(results: Report) -> str:
    new, kept = results["throughput, new memory"], results["throughput"]
    rows = [
        [name, *(text for r in (new[name], kept[name]) for text in (_part(r), _new(r)))]
        for name in new
    ]
    size = "1 GiB" if "spill, 1 x 1024 MiB" in new else "some MiB"
    columns = ["", "memory returned", "new", "memory kept", "new"]
    return THROUGHPUT.format(size=size) + table(columns, rows)


def _part(row: Report) -> str:
    part = row["part"]
    return f"{part['median']:.2f} ({part['low']:.2f} to {part['high']:.2f})"


def _new(row: Report) -> str:
    return f"{row['new_pages']:.0%}"


def peers(results: Report) -> str:
    rows = []
    for kind in ("training", "inference"):
        for model, report in results[kind].items():
            for name, r in report.items():
                first = f"{model}, {kind}: {name}"
                if "why" in r:
                    rows.append([first, "fails", "", ""])
                    continue
                equal = "equal" if r["equal"] else "different"
                rows.append([first, mib(r["peak"]), f"{r['time']:.2f}", equal])
    shown = [
        [name, "<br>".join(f"`{line.strip()}`" for line in lines)]
        for name, lines in results["lines"].items()
        if lines
    ]
    text = PEERS + table(["", "peak", "time", "result"], rows)
    return text + LINES + table(["", "lines"], shown)


def section(memory: Report, others: Report, default: str = "`greedy_dual`") -> str:
    m = memory["machine"]
    machine = f"{', '.join(m['cpu'])}, Python {m['python']}, PyTorch {m['torch']}"
    low, high = (f"{ratio:.2f}" for ratio in control(memory["budgets"]))
    text = TITLE + HEAD.format(machine=machine, low=low, high=high)
    text += BUDGETS.format(default=default) + budgets(memory["budgets"], memory["feasible"])
    text += FEASIBLE + feasible(memory["feasible"])
    return text + inference(memory["inference"]) + throughput(memory) + peers(others)


def replace_section(page: str, text: str) -> str:
    """The page with its section of this title, up to the next of its rank, replaced or added."""
    if TITLE not in page:
        return page.rstrip("\n") + "\n\n" + text
    pattern = re.escape(TITLE) + r".*?(?=^## |\Z)"
    return re.sub(pattern, lambda _: text + "\n", page, flags=re.M | re.S).rstrip("\n") + "\n"


def main() -> None:
    folder, page = ROOT / "build" / "bench", ROOT / "docs" / "memory.md"
    memory, others = (json.loads((folder / f"{n}.json").read_text()) for n in ("memory", "peers"))
    page.write_text(replace_section(page.read_text(), section(memory, others)))
    print("written: docs/memory.md")


if __name__ == "__main__":
    main()
