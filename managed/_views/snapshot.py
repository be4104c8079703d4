"""What holds the memory of devices, as a file for torch's memory_viz."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable
from typing import Any

import torch

from managed.holders import Holding, Report

__all__ = ["data", "write"]

_FIRST = 1 << 62  # address of the first segment of a holder: no allocator gives such


def write(reports: Iterable[Report], path: str | os.PathLike[str]) -> None:
    """Writes what torch.cuda.memory._dump_snapshot() writes, with all holders as segments."""
    with open(path, "wb") as file:
        pickle.dump(data(reports), file)


def data(reports: Iterable[Report]) -> dict[str, Any]:
    """Torch's own segments and traces, and one segment for each holder on each device.

    Where torch has no CUDA devices its tensors are one segment, too. Each segment of a holder is
    traced as one allocation of its live bytes.
    """
    cuda: Any = torch.cuda
    found = (
        cuda.memory._snapshot() if cuda.is_initialized() else {"segments": [], "device_traces": []}
    )
    address = _FIRST
    for report in reports:
        device = torch.device(report.device)
        traces = found["device_traces"]
        traces += [[] for _ in range(device.index + 1 - len(traces))]
        for name, row in report.items():
            own = name in ("torch", "torch's pools") and device.type == "cuda"
            if not own and row.live + row.cached:
                segment = _segment(name, row, device.index, address)
                found["segments"].append(segment)
                traces[device.index] += _trace(segment)
                address += segment["total_size"]
    return dict(found)


def _segment(name: str, row: Holding, device: int, address: int) -> dict[str, Any]:
    frames = [{"filename": name, "line": 0, "name": name}]
    sizes = {"active_allocated": row.live, "inactive": row.cached}
    blocks = []
    for state, size in sizes.items():
        if size:
            at = address if state == "active_allocated" else address + row.live
            told = {"address": at, "size": size, "requested_size": size, "state": state}
            blocks.append({**told, "frames": frames if state == "active_allocated" else []})
    return {
        "device": device,
        "address": address,
        "total_size": row.live + row.cached,
        "allocated_size": row.live,
        "active_size": row.live,
        "requested_size": row.live,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": frames,
        "blocks": blocks,
    }


def _trace(segment: dict[str, Any]) -> list[dict[str, Any]]:
    event = {"addr": segment["address"], "stream": 0, "time_us": 0, "frames": segment["frames"]}
    found = [{**event, "action": "segment_alloc", "size": segment["total_size"]}]
    if segment["allocated_size"]:
        found.append({**event, "action": "alloc", "size": segment["allocated_size"]})
    return found
