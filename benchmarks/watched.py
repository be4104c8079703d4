"""What it costs a process that `managed top` looks at it, while everything leaves all the time.

    python benchmarks/watched.py [--quick] [--check] [--out FILE]

A model trains while everything that nobody uses leaves its device before each operator
(managed.debug.torture). Blocks of equal work with somebody who asks ten times a second stand
between blocks without, and their CPU times are compared; the thread that answers is of the process
and so counted. What that thread alone takes is printed, too: the noise of the machine is larger.
Once more with tensors so many that an answer is dear. With --check the exit status
is 1 where being looked at surely costs more than a hundredth: the interval begins above it, or the
thread takes more. A run whose interval reaches from below to above shows nothing, and passes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measure import Summary, interleave, ratios
from report import Report, machine, print_table, verdicts, write
from torch import nn
from tree import ROOT

import managed
from managed import ManagedModule, ManagedTensor, debug
from managed.cli.watch import serve

ASKING = """
import select, socket, sys
on = False
while True:
    if select.select([sys.stdin], [], [], 0.1 if on else None)[0]:
        line = sys.stdin.readline()
        if not line:
            break
        on = line == "on\\n"
        print(line, end="", flush=True)
    if on:
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(sys.argv[1])
            while s.recv(1 << 20):
                pass
"""


def stepping() -> Callable[[], object]:
    model = ManagedModule.from_module(nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))))
    model.to("sim:0")
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x = torch.randn(64, 256).as_subclass(ManagedTensor).to("sim:0")

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measured(
    step: Callable[[], object], steps: int, rounds: int
) -> tuple[dict[str, Summary], float]:
    """The ratios, and the part of the process's CPU that the answering thread took."""
    path = serve.serve()
    assert path is not None
    [thread] = (t for t in threading.enumerate() if t.name == "managed-top")
    clock = time.pthread_getcpuclockid(thread.ident)
    answering = asked = 0.0
    command = [sys.executable, "-S", "-u", "-c", ASKING, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as asking:  # type: ignore[call-overload]

        def block(word: str) -> float:
            asking.stdin.write(f"{word}\n")
            asking.stdin.flush()
            asking.stdout.readline()
            nonlocal answering, asked
            before, began = time.clock_gettime(clock), time.process_time()
            for _ in range(steps):
                step()
            took = time.process_time() - began
            if word == "on":
                asked += took
                answering += time.clock_gettime(clock) - before
            return took

        subjects = {"somebody asks": lambda: block("on"), "nobody, again": lambda: block("off")}
        pairs = interleave(lambda: block("off"), subjects, rounds)
        asking.stdin.close()
    return {name: ratios(found) for name, found in pairs.items()}, answering / asked


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "watched.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    managed.simulate(devices=2, memory="2GiB")
    step, (steps, rounds) = stepping(), (10, 5) if options.quick else (100, 20)
    results: Report = {"machine": machine()}
    with debug.torture():
        found, share = measured(step, steps, rounds)
    many = torch.zeros(20_000, 4096).as_subclass(ManagedTensor).to("sim:1")
    kept = [row.clone() for row in many]  # noqa: F841
    # Without torture, which would have each operator look at all of them.
    more, share_of_many = measured(step, steps, rounds)
    found |= {f"{name}, 20,000 tensors": s for name, s in more.items()}
    shares = {"the thread that answers": share, "the same, 20,000 tensors": share_of_many}
    print_table(
        "CPU of a step over that of one at which nobody looks",
        ["ratio", "from", "to", "pairs"],
        [
            [name, f"{s.median:.4f}", f"{s.low:.4f}", f"{s.high:.4f}", str(s.pairs)]
            for name, s in found.items()
        ],
    )
    results["ratios"] = {name: s.as_dict() for name, s in found.items()}
    asked = {name: s for name, s in found.items() if name.startswith("somebody")}
    # What is surely more: a busy machine makes the interval wide, and it is printed.
    results["shares"] = shares
    aims = [(name, s.low, 1.01) for name, s in asked.items()]
    results["targets"] = verdicts([*aims, *((name, part, 0.01) for name, part in shares.items())])
    write(results, options.out)
    return int(options.check and not all(t["pass"] for t in results["targets"]))


if __name__ == "__main__":
    sys.exit(main())
