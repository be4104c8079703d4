"""What `import managed` costs and does, seen from fresh processes.

Each process imports torch first and then, or not, managed, and reports on itself.
Pairs of one with and one without run alternately. Judged are the CPU time of the
import over that of torch's own in the same process, since milliseconds are those
of the machine, and that it starts no thread, prints nothing and leaves CUDA alone.
Shown beside it are the time of the import and the CPU time of the whole process,
start to end of the imports: it varies by more than the import costs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from measure import differences, summarise
from report import print_table
from tree import ROOT

__all__ = ["measure", "show", "targets"]

PROBE = """
import json, os, sys, threading, time
cpu = time.process_time()
import torch
torch_cpu = time.process_time() - cpu
threads, python = len(os.listdir("/proc/self/task")), threading.active_count()
start, cpu = time.perf_counter(), time.process_time()
if sys.argv[1] == "with":
    import managed
took, worked = time.perf_counter() - start, time.process_time() - cpu
print(json.dumps({
    "import_ms": took * 1e3,
    "import_cpu_ms": worked * 1e3,
    "over_torch": worked / torch_cpu,
    "process_ms": time.process_time() * 1e3,
    "threads": len(os.listdir("/proc/self/task")) - threads,
    "python_threads": threading.active_count() - python,
    "cuda": torch.cuda.is_initialized(),
}), file=sys.stderr)
"""


def probe(which: str) -> dict[str, Any]:
    """Runs one process. Its last line on stderr is the report; all else it prints is noise."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MANAGED_")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    environment["PYTHONPATH"] = os.pathsep.join(
        [*filter(None, [environment.get("PYTHONPATH")]), str(ROOT)]
    )
    done = subprocess.run(
        [sys.executable, "-c", PROBE, which],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    *noise, last = done.stderr.splitlines()
    report: dict[str, Any] = json.loads(last)
    report["output"] = len(done.stdout) + sum(map(len, noise))
    return report


def measure(pairs: int) -> dict[str, Any]:
    """Times in ms over `pairs` pairs of processes, and what the import did besides."""
    probe("with")  # fills the disk cache and writes bytecode
    runs = [(probe("with"), probe("without")) for _ in range(pairs)]
    return {
        "import_ms": summarise([a["import_ms"] for a, _ in runs]).as_dict(),
        "import_cpu_ms": summarise([a["import_cpu_ms"] for a, _ in runs]).as_dict(),
        "over_torch": summarise([a["over_torch"] for a, _ in runs]).as_dict(),
        "process_ms": differences([(a["process_ms"], b["process_ms"]) for a, b in runs]).as_dict(),
        "threads": max(max(a["threads"], a["python_threads"]) for a, _ in runs),
        "output_bytes": max(a["output"] - b["output"] for a, b in runs),
        "cuda_initialised": any(a["cuda"] for a, _ in runs),
    }


def show(report: dict[str, Any]) -> None:
    rows = []
    for key, text in (
        ("import_ms", "import managed after torch, ms"),
        ("import_cpu_ms", "its CPU time, ms"),
        ("over_torch", "over the CPU time of import torch"),
        ("process_ms", "CPU of the process, with less without, ms"),
    ):
        row, digits = report[key], 3 if key == "over_torch" else 1
        interval = f"{row['low']:.{digits}f} .. {row['high']:.{digits}f}"
        rows.append([text, f"{row['median']:.{digits}f}", interval, str(row["pairs"])])
    rows.append(["threads started", str(report["threads"]), "", ""])
    rows.append(["bytes printed", str(report["output_bytes"]), "", ""])
    rows.append(["CUDA initialised", str(report["cuda_initialised"]), "", ""])
    print_table("import, in fresh processes", ["median", "95 % interval", "pairs"], rows)


def targets(report: dict[str, Any]) -> list[tuple[str, float, float]]:
    return [
        ("import over that of torch", report["over_torch"]["median"], 0.06),
        ("threads started by the import", report["threads"], 0.0),
        ("bytes printed by the import", report["output_bytes"], 0.0),
        ("CUDA initialised by the import", float(report["cuda_initialised"]), 0.0),
    ]
