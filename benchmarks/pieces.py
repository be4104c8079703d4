"""Pieces of CUDA's memory: what learned steps copy, over what they copy where there are none.

    PYTHONPATH=build/virtual-gpu .venv-virtual-gpu/bin/python benchmarks/pieces.py
        [--models gpt,resnet,dispersed,lengths] [--fractions 0.9,0.75,0.6,0.5] [--check]

Run by a Python whose torch is built with CUDA, after `make virtual-gpu-build`. Each model trains
under fractions of its peak: on simulated devices, whose allocator has no pieces; and on virtual
GPUs, where torch's caching allocator runs, with the addresses of learned steps (MANAGED_ARENA=1)
and without (0), where neighbours leave if the free bytes are in pieces. Printed are bytes that a
settled step copies out and back, over those of the simulated devices, calls to the driver for
memory in a step, and, for torch's places, the largest free piece over all free bytes, in the median
over the modules' calls in a step (the places of a step are in one block of torch's, whose gaps only
managed knows). Torch keeps small storages in segments of 2 MiB, so budgets of virtual GPUs are
8 MiB larger. Their operations take an equal time each, so that plans, which count what operators
take, are the same on a busy host. The weights must have the bits of a training without a budget.
"lengths" has another length in each step, of three.

With --check the exit status is 1 when a bit differs, when the median of the ratios with addresses
is above 1.05 or one above 1.15, or when a settled step of fixed shapes asks the driver.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import hashlib
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from published import resnet
from report import Report, machine, print_table, verdicts, write
from study import Language
from torch import nn
from tree import ROOT

import managed
from managed import ManagedModule, ManagedTensor

MIB = 2**20
MEMORY, CONTEXT, SMALL = 448 * MIB, 64 * MIB, 8 * MIB
SETTLE, MEASURED = 20, 6  # steps; as many are measured of each length
LENGTHS = (96, 112, 128)
WAYS = ("addresses", "torch")
OPERATION_NS = 300_000  # of virtual GPUs

Step = Callable[[], Any]


class Images(nn.Module):
    """The loss of a small ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.net = resnet((1, 1, 1, 1), 32)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(x), y)


def language() -> Language:
    return Language(4, 384, 6, 8192, 128, True)


def batches(name: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    if name == "resnet":
        return [(torch.randn(12, 3, 96, 96), torch.randint(9, (12,)))]
    lengths = LENGTHS if name == "lengths" else (128,)
    return [tuple(torch.randint(9, (2, 4, n)).unbind(0)) for n in lengths]  # type: ignore[misc]


def training(name: str, device: str) -> tuple[nn.Module, Step]:
    torch.manual_seed(0)
    net = ManagedModule.from_module(Images() if name == "resnet" else language())
    net = net.cuda(disperse=True) if name == "dispersed" else net.to(device)
    optimizer = torch.optim.SGD(net.parameters(), 1e-2, momentum=0.9, foreach=False)
    data = itertools.cycle(
        [tuple(t.as_subclass(ManagedTensor).to(device) for t in pair) for pair in batches(name)]
    )

    def step() -> None:
        optimizer.zero_grad()
        net(*next(data)).backward()
        optimizer.step()

    return net, step


# ---- in a process of its own


def child(name: str, fraction: float, simulated: bool) -> Report:
    """A training without a budget, and one in which each device has that part of its peak."""
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    devices = 2 if name == "dispersed" else 1
    if simulated:
        managed.simulate(devices, MEMORY)
    kind = "sim" if simulated else "cuda"
    module: Any = getattr(torch, kind)
    names = [f"{kind}:{i}" for i in range(devices)]
    net, step = training(name, names[0])
    for _ in range(SETTLE + MEASURED):
        step()
    expected = digest(net)
    peaks = [module.max_memory_allocated(i) for i in range(devices)]
    del net, step
    gc.collect()
    module.empty_cache()
    for device, peak in zip(names, peaks, strict=True):
        managed.budget(device, int(peak * fraction) + (0 if simulated else SMALL))
    net, step = training(name, names[0])
    for _ in range(SETTLE):
        step()
    before, calls = managed.stats(), driver_calls()
    for _ in range(MEASURED - 1):
        step()
    if simulated:  # it has no pieces
        step()
        found = {}
    else:
        found = {"piece": largest_piece(int(peaks[0] * fraction) + SMALL, net, step)}
    after = managed.stats()
    moved = sum(after[f"{k}_bytes"] - before[f"{k}_bytes"] for k in ("spill", "spare", "restore"))
    return found | {
        "moved": moved / MEASURED,
        "calls": (driver_calls() - calls) / MEASURED,
        "same_bits": digest(net) == expected,
    }


def largest_piece(allowed: int, net: nn.Module, step: Step) -> float:
    """The largest free piece over the free bytes in a step, the median after calls of modules."""
    seen = []

    def look(*_: Any) -> None:
        segments = [s for s in torch.cuda.memory_snapshot() if s["device"] == 0]
        blocks = [b["size"] for s in segments for b in s["blocks"] if b["state"] == "inactive"]
        driver = allowed - sum(s["total_size"] for s in segments)
        seen.append(max(driver, *blocks, 0) / max(driver + sum(blocks), 1))

    hooks = [module.register_forward_hook(look) for module in net.modules()]
    step()
    for hook in hooks:
        hook.remove()
    return statistics.median(seen)


def digest(net: nn.Module) -> str:
    whole = hashlib.sha256()
    for p in net.parameters():
        whole.update(p.detach().cpu().numpy().tobytes())
    return whole.hexdigest()


def driver_calls() -> int:
    """How often memory was asked of the driver of virtual GPUs, or given back."""
    library = os.environ.get("LD_PRELOAD", "").split(os.pathsep)[0]
    if "virtual_gpu" not in library:
        return 0
    count = ctypes.CDLL(library).vgpu_count
    count.restype = ctypes.c_long
    return int(count(b"cudaMalloc")) + int(count(b"cudaFree"))


# ---- the parent


def ask(name: str, fraction: float, way: str) -> Report:
    """What a child says; why it ended if it found no room."""
    told = json.dumps([name, fraction, way == "simulated"])
    script = [str(Path(__file__).resolve()), "--child", told]
    if way != "simulated":
        devices = f"2x{MEMORY + CONTEXT}" if name == "dispersed" else f"1x{MEMORY + CONTEXT}"
        script = ["-m", "managed.virtual_gpu", "--devices", devices, *script]
    environment = os.environ | {
        "MANAGED_ARENA": str(int(way == "addresses")),
        "VIRTUAL_GPU_OPERATION_NS": str(OPERATION_NS),
    }
    done = subprocess.run(
        [sys.executable, *script],
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(__file__).parent,  # where no package hides the one that was built
    )
    if done.returncode:
        if "OutOfMemoryError" in done.stderr:
            return {"why": "no room"}
        raise RuntimeError(done.stderr)
    found: Report = json.loads(done.stdout.splitlines()[-1])
    return found


def cell(name: str, fraction: float) -> Report:
    found: Report = {"model": name, "fraction": fraction}
    for way in ("simulated", *WAYS):
        found[way] = ask(name, fraction, way)
        print(name, fraction, way, found[way], flush=True)
    for way in WAYS:
        if "why" not in found[way] and "why" not in found["simulated"]:
            least = max(found["simulated"]["moved"], MIB)  # a ratio to nothing says nothing
            found[way]["ratio"] = max(found[way]["moved"], MIB) / least
    return found


def row(one: Report) -> list[str]:
    def told(way: str, key: str) -> str:
        return f"{one[way][key]:.2f}" if key in one[way] else "no room"

    simulated = one["simulated"]
    moved = f"{simulated['moved'] / MIB:.0f}" if "moved" in simulated else "no room"
    pairs = [told(way, key) for way in WAYS for key in ("ratio", "calls")]
    pairs.append(told("torch", "piece"))
    same = all(one[way].get("same_bits", True) for way in ("simulated", *WAYS))
    return [f"{one['model']}, {one['fraction']:g}", moved, *pairs, "yes" if same else "NO"]


def targets(cells: list[Report]) -> list[tuple[str, float, float]]:
    ratios = [c["addresses"]["ratio"] for c in cells if "ratio" in c["addresses"]]
    fixed = [c for c in cells if c["model"] != "lengths" and "calls" in c["addresses"]]
    differ = [c[w] for c in cells for w in WAYS if not c[w].get("same_bits", True)]
    return [
        ("bits differ", float(len(differ)), 0.0),
        ("with addresses: median", statistics.median(ratios), 1.05),
        ("with addresses: worst", max(ratios), 1.15),
        (
            "calls to the driver, fixed shapes",
            max((c["addresses"]["calls"] for c in fixed), default=0.0),
            0.0,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="gpt,resnet,dispersed,lengths")
    parser.add_argument("--fractions", default="0.9,0.75,0.6,0.5")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "pieces.json")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(*json.loads(options.child))))
        return 0
    fractions = [float(f) for f in options.fractions.split(",")]
    cells = [cell(name, f) for name in options.models.split(",") for f in fractions]
    columns = ["MiB a step", "addresses", "calls", "torch's places", "calls", "piece", "same bits"]
    print_table(
        "bytes copied, over those of an allocator without pieces", columns, [*map(row, cells)]
    )
    report = {"machine": machine(), "cells": cells, "targets": verdicts(targets(cells))}
    write(report, options.out)
    return int(options.check and not all(t["pass"] for t in report["targets"]))


if __name__ == "__main__":
    sys.exit(main())
