"""How fast bytes leave and come back, against a plain copy of as many bytes in host memory.

On a simulated device a departure is a copy too, so that what is missing to the speed of memcpy is
what is done beside it: planning, bookkeeping, and pages that nobody has touched before, which the
system has to find and clear. Those are counted.
"""

from __future__ import annotations

import ctypes
import resource
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from measure import interleave, ratios
from report import Report
from training import DEVICE

import managed
from managed import _C

__all__ = ["measure"]

MiB = 2**20


class Subject:
    """Tensors on the device, all of which may leave, and memcpy of the same sizes."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """Sizes in bytes."""
        make = (torch.zeros(size // 4).as_subclass(managed.ManagedTensor) for size in sizes)
        self.tensors = [t.to(DEVICE) for t in make]
        self.bytes = sum(sizes)
        self.heads = [t[:1] for t in self.tensors]
        # Written, so that they have pages.
        self.pairs = [(torch.ones(size // 4), torch.ones(size // 4)) for size in sizes]
        self.faults: dict[str, list[int]] = {"spill": [], "restore": []}

    def copy(self) -> float:
        start = time.thread_time()
        for target, source in self.pairs:
            ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
        took = time.thread_time() - start
        # There and back, as bytes that leave and return: what was just written is slower to read.
        self.pairs = [(source, target) for target, source in self.pairs]
        return took

    def _timed(self, kind: str, work: Callable[[], object]) -> float:
        # A program waits once a step, too. The clock remembers all that was given up until then.
        torch.accelerator.synchronize()
        before, faults = managed.stats()[f"{kind}_bytes"], _faults()
        start = time.thread_time()
        work()
        took = time.thread_time() - start
        self.faults[kind].append(_faults() - faults)
        copied = managed.stats()[f"{kind}_bytes"] - before
        if copied != self.bytes:
            raise RuntimeError(f"{kind}: {copied} bytes were copied, not {self.bytes}")
        return took

    def _write(self) -> None:
        torch._foreach_add_(self.heads, 1.0)

    def spill(self) -> float:
        """What was written leaves with a copy."""
        took = self._timed("spill", _C.spill_all)
        self._write()
        return took

    def restore(self) -> float:
        """One operator that writes a number of each tensor brings all home."""
        _C.spill_all()
        return self._timed("restore", self._write)


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def measure(mib: int, cuts: Sequence[int], rounds: int) -> Report:
    """Of `mib` MiB in so many tensors each way: the speed of memcpy in GiB/s, the part of it that
    is reached, and which part of the pages were new."""
    report: Report = {}
    pages = mib * MiB / resource.getpagesize()
    for count in cuts:
        subject = Subject([mib * MiB // count] * count)
        ways = {"spill": subject.spill, "restore": subject.restore}
        for way, pairs in interleave(subject.copy, ways, rounds, run=rounds).items():
            copied = statistics.median(base for _, base in pairs)
            report[f"{way}, {count} x {mib / count:g} MiB"] = {
                "memcpy_gib_s": mib / 1024 / copied,
                "part": ratios([(base, took) for took, base in pairs]).as_dict(),
                "new_pages": statistics.median(subject.faults[way][1:]) / pages,
            }
        del subject
    return report
