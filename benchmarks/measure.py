"""How the benchmarks measure; it knows nothing of what is measured.

Costs of some ten nanoseconds are looked for on machines that are busy with other
things, so three habits are kept everywhere. Time is the CPU time of the calling
thread where the work is done by that thread, which leaves out what others run.
Every block of the subject stands between two blocks of the baseline and is
compared with their mean, A B A B A, so that drift of the machine cancels. And one
of the subjects is the baseline itself, the control: what it shows is the error
of the method.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

__all__ = ["Summary", "clock_of", "differences", "interleave", "ratios", "summarise"]

Block = Callable[[], float]


@dataclass(frozen=True)
class Summary:
    """A median with the 95 % interval of the median and the number of pairs."""

    median: float
    low: float
    high: float
    pairs: int

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def summarise(values: Sequence[float]) -> Summary:
    """Median and its 95 % interval from order statistics (binomial in its normal approximation)."""
    ordered = sorted(values)
    n = len(ordered)
    half = 0.98 * math.sqrt(n)
    low = ordered[max(0, math.floor((n - 1) / 2 - half))]
    high = ordered[min(n - 1, math.ceil((n - 1) / 2 + half))]
    return Summary(statistics.median(ordered), low, high, n)


def clock_of(synchronize: Callable[[], object] | None) -> Callable[[], float]:
    """Seconds of this thread's CPU; of the wall, device drained first, if there is one to drain."""
    if synchronize is None:
        return time.thread_time

    def wall() -> float:
        synchronize()
        return time.perf_counter()

    return wall


def interleave(
    baseline: Block, subjects: Mapping[str, Block], rounds: int, run: int = 5
) -> dict[str, list[tuple[float, float]]]:
    """Pairs (subject, baseline); the baseline of a pair is the mean of the blocks beside it.

    Subjects take turns in runs of a few pairs. Within a run only the subject and the
    baseline alternate, so that both find the caches as the other left them, and the
    first pair, which finds them as a third left them, is thrown away.
    """
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in subjects}
    for _ in range(math.ceil(rounds / run)):
        for name, subject in subjects.items():
            baseline()
            subject()
            before = baseline()
            for _ in range(run):
                value = subject()
                after = baseline()
                pairs[name].append((value, (before + after) / 2))
                before = after
    return pairs


def differences(pairs: Sequence[tuple[float, float]]) -> Summary:
    """Subject minus baseline."""
    return summarise([value - base for value, base in pairs])


def ratios(pairs: Sequence[tuple[float, float]]) -> Summary:
    """Subject over baseline."""
    return summarise([value / base for value, base in pairs])
