"""What a device can do, measured: a file for managed.simulate(preset="card.json").

    python benchmarks/card.py [--device cuda:0] [--peer cuda:1] [--size 4096] [--out card.json]

Times products of square matrices of `size` in each kind of numbers, convolutions, a copy within
the device's memory, the smallest operator, what issuing one costs the program, and copies of 4 and
of 256 MiB (of 4 and 32 on simulated devices) from the host's pinned memory and from another device.
Each is the median of nine. What is measured is what operators reach, so the efficiencies are 1,
but for convolutions: theirs is their part of what products reach, in the numbers that do best.

Measured on a simulated device it gives back that device's preset (tests/sim/test_sim_clock.py).
What several devices share cannot be seen from one: where cards are behind one switch, write
"devices_per_switch" into the file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import managed  # noqa: F401  (MANAGED_SIM may ask for simulated devices)

ROUNDS = 9
MIB = 2**20
MATRIX = {"bfloat16": torch.bfloat16, "float16": torch.float16}
VECTOR = {"float32": torch.float32, "float64": torch.float64}


class Device:
    """One device and its clock: CUDA's is the real one, that of simulated devices is virtual."""

    def __init__(self, name: str) -> None:
        self.device = torch.device(name)
        self.module = torch.get_device_module(self.device)
        self.simulated = self.device.type == "sim"
        self.launch = 0.0  # ns of the smallest operator

    def now(self) -> float:
        """ns of the thread of the program."""
        return self.module.virtual_time("cpu") * 1e9 if self.simulated else time.perf_counter_ns()

    def time(self, work: Callable[[], object], before: Callable[[], object] | None = None) -> float:
        """ns that the device takes for it, without the launch and the time until it is issued.

        before: keeps the device at work while what is measured is issued; the same if left out.
        """
        took = []
        for _ in range(ROUNDS):
            begin, end = (torch.Event(self.device.type, enable_timing=True) for _ in range(2))
            self.module.synchronize(self.device)
            (before or work)()
            begin.record(self.module.current_stream(self.device))
            work()
            end.record(self.module.current_stream(self.device))
            end.synchronize()
            took.append(begin.elapsed_time(end) * 1e6)
        return statistics.median(took) - self.launch

    def time_to_launch(self, size: int) -> float:
        """ns of the smallest operator, of many that stand behind a large one."""
        one = torch.ones((), device=self.device)
        large = torch.ones(size, size, dtype=torch.float64, device=self.device)

        def many() -> None:
            for _ in range(16):
                one.neg_()

        return self.time(many, lambda: large @ large) / 16

    def time_to_issue(self, work: Callable[[], object], times: int = 1000) -> float:
        """ns that one costs the program."""
        self.module.synchronize(self.device)
        begin = self.now()
        for _ in range(times):
            work()
        return (self.now() - begin) / times


def product_rate(d: Device, size: int, dtype: torch.dtype) -> float:
    """Operations/ns."""
    a = torch.ones(size, size, dtype=dtype, device=d.device)
    out = torch.empty_like(a)
    return 2 * size**3 / d.time(lambda: torch.mm(a, a, out=out))


def convolution_rate(d: Device, size: int, dtype: torch.dtype) -> float:
    side = max(size // 64, 8)
    x = torch.ones(8, 128, side, side, dtype=dtype, device=d.device)
    w = torch.ones(128, 128, 3, 3, dtype=dtype, device=d.device)
    return 2 * x.numel() * 128 * 9 / d.time(lambda: torch.conv2d(x, w, padding=1))


def tf32_rate(d: Device, size: int) -> float:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return product_rate(d, size, torch.float32)
    finally:
        torch.set_float32_matmul_precision(before)


def memory_rate(d: Device) -> float:
    """Bytes/ns, read and written."""
    x = torch.ones((32 if d.simulated else 256) * MIB // 4, device=d.device)
    y = torch.empty_like(x)
    return 2 * x.nbytes / d.time(lambda: torch.neg(x, out=y))


def link(d: Device, source: str | None) -> tuple[int, float]:
    """(latency in ns, bytes/ns) of copies to the device; None is the host."""
    large = (32 if d.simulated else 256) * MIB
    times = []
    for nbytes in (4 * MIB, large):
        there = torch.ones(nbytes // 4, device=source or "cpu")
        x = there if source else there.pin_memory()
        y = torch.empty(nbytes // 4, device=d.device)
        took = d.time(lambda x=x, y=y: y.copy_(x, non_blocking=True))  # type: ignore[misc]
        times.append(took + d.launch)
    rate = (large - 4 * MIB) / (times[1] - times[0])
    return max(0, round(times[0] - 4 * MIB / rate)), rate


def measure(device: str, peer: str | None, size: int) -> dict[str, Any]:
    """The fields of a preset."""
    d = Device(device)
    one = torch.ones((), device=d.device)
    d.launch = launch = d.time_to_launch(size)
    vector = {name: product_rate(d, size, dtype) for name, dtype in VECTOR.items()}
    matrix = {name: product_rate(d, size, dtype) for name, dtype in MATRIX.items()}
    matrix["tf32"] = tf32_rate(d, size)
    best = max(MATRIX, key=lambda name: matrix[name])
    convolution = convolution_rate(d, size, MATRIX[best]) / matrix[best]
    host = link(d, None)
    between = link(d, peer) if peer else host
    return {
        "name": f"measured {d.module.get_device_name(d.device)}",
        "memory": d.module.mem_get_info(d.device)[1],
        "matrix": {name: rate / 1e3 for name, rate in matrix.items() if rate > vector["float32"]},
        "vector": {name: rate / 1e3 for name, rate in vector.items()},
        "bytes_per_ns": memory_rate(d),
        "host_bytes_per_ns": host[1],
        "peer_bytes_per_ns": between[1],
        "launch_ns": round(launch),
        "issue_ns": round(d.time_to_issue(lambda: one.neg_())),
        "host_latency_ns": host[0],
        "peer_latency_ns": between[0],
        "peers_over_host": peer is None,
        "efficiency": {
            "matrix": 1.0,
            "convolution": convolution,
            "vector_matrix": 1.0,
            "vector_convolution": convolution,
            "elementwise": 1.0,
            "memory": 1.0,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--peer", help="another device of the same kind")
    parser.add_argument("--size", type=int, default=4096, help="of the matrices")
    parser.add_argument("--out", type=Path, default=Path("card.json"))
    asked = parser.parse_args()
    found = measure(asked.device, asked.peer, asked.size)
    asked.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
