"""Counts a script's steps and takes the devices' figures at the end of each.

A step is one of the optimizer that gets there first; where no optimizer is made, it is a call of
the outermost module with parameters that gets there first. Figures are the library's own counters
and the virtual clock.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

import managed
from managed import sim
from managed._backend import C
from managed._views.spans import held

__all__ = ["Steps"]

Figures = dict[str, Any]
_MOVED = ("spill", "spare", "drop", "restore", "copy")
_POINTS = 400  # of a device's memory over a step, at most


def _sum(a: Any, b: Any) -> Any:
    if isinstance(a, dict):
        return {k: _sum(a.get(k, 0), b.get(k, 0)) for k in a.keys() | b.keys()}
    return a + b


def _difference(after: Any, before: Any) -> Any:
    if isinstance(after, dict):
        return {k: _difference(v, before.get(k, 0)) for k, v in after.items()}
    return after - before


def _left(figures: Figures) -> int:
    return sum(figures[kind] for kind in ("spill", "spare", "drop"))


class Steps:
    """`done(report)` is called after each step, the last time with report["ended"] true.

    That is after `wanted` steps, or after `settled` where bytes leave: devices learn steps that
    repeat, and the first ones take longer.
    """

    def __init__(self, wanted: int, settled: int, done: Callable[[Figures], None]) -> None:
        self.wanted, self.settled, self.done = wanted, settled, done
        self.ends: dict[int, list[Figures]] = {}  # of each optimizer or module
        self.peaks = [0] * sim.device_count()
        self.report: Figures = {"steps": 0, "ended": False}
        # What was counted before the script set counters to zero.
        self._reset: Figures = {"links": {}, **dict.fromkeys(_MOVED, 0)}
        self._start = self._figures()
        self._optimizers = 0
        self._profile: managed.profile | None = None
        self._profile_began = 0.0
        self._large: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
        self._local = threading.local()

    def install(self) -> None:
        original: Any = Optimizer.__init__

        @functools.wraps(original)
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            if not self._optimizers:
                self.ends.clear()  # what was called before was no step
            self._optimizers += 1
            original(optimizer, *args, **kwargs)

        managed.stats = self._stats
        setattr(Optimizer, "__init__", init)  # noqa: B010
        register_optimizer_step_post_hook(lambda optimizer, *_: self._ended(optimizer))
        register_module_forward_pre_hook(self._called)
        register_module_forward_hook(self._returned, always_call=True)

    # ---- calls

    def _called(self, module: nn.Module, inputs: Any) -> None:
        self._local.depth = getattr(self._local, "depth", 0) + 1

    def _returned(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._local.depth = depth = max(0, getattr(self._local, "depth", 0) - 1)
        if depth or self._optimizers:
            return
        if module not in self._large:
            self._large[module] = any(True for _ in module.parameters())
        if self._large[module]:
            self._ended(module)

    # ---- figures

    def _counted(self, counted: Figures) -> Figures:
        return {"links": counted["links"], **{kind: counted[f"{kind}_bytes"] for kind in _MOVED}}

    def _stats(self, reset: bool = False) -> Figures:
        """managed.stats() of the script."""
        counted = C.stats(reset=reset)
        if reset:
            self._reset = _sum(self._counted(counted), self._reset)
        return counted

    def _figures(self) -> Figures:
        """Everything is counted from the start of the process."""
        return {
            "elapsed_s": sim.elapsed(),
            "real_s": time.perf_counter(),
            **_sum(self._counted(C.stats(reset=False)), self._reset),
        }

    def _ended(self, whose: object) -> None:
        ends = self.ends.setdefault(id(whose), [])
        ends.append(self._figures())
        if len(ends) >= self.report["steps"]:
            self._tell(ends)
        if len(ends) == self.wanted - 1 and self._profile is None:
            self._record(True)

    def _record(self, on: bool) -> managed.profile | None:
        """Has the last step recorded, unless the script records one itself; or ends that."""
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.__exit__(None, None, None)
        if on:
            self._profile_began = sim.elapsed()
            self._profile = managed.profile()
            try:
                self._profile.__enter__()
            except RuntimeError:
                self._profile = None
        return profile

    def _tell(self, ends: list[Figures]) -> None:
        peaks = [sim.max_memory_allocated(i) for i in range(len(self.peaks))]
        self.peaks = [*map(max, self.peaks, peaks)]
        last, count = ends[-1], len(ends)
        before = ends[-2] if count > 1 else self._start
        if count == self.wanted < self.settled and _left(last) > _left(ends[0]):
            self.wanted = self.settled
            self._record(False)
        self.report |= {
            "steps": count,
            "ended": count >= self.wanted,
            "peak_bytes": self.peaks,
            "step": _difference(last, before),
            "all": _difference(last, self._start),
        }
        if self.report["ended"] and (profile := self._record(False)):
            self.report |= _seen(profile, before["elapsed_s"] - self._profile_began)
        self.done(self.report)

    def finish(self) -> None:
        """The script ended by itself: what there is, is what it did."""
        if not self.report["steps"]:
            self.report |= {
                "peak_bytes": [sim.max_memory_allocated(i) for i in range(len(self.peaks))],
                "all": _difference(self._figures(), self._start),
            }
        self.done(self.report)


def _seen(profile: managed.profile, since_s: float) -> Figures:
    """Bytes of each link by any copy, the script's own too, and each device's bytes over time."""
    since = max(0, round(since_s * 1e9))
    links: dict[str, int] = {}
    for span in profile.spans:
        if span.kind == "copy" and span.begin >= since:
            link = f"{span.device}->{span.other}"
            links[link] = links.get(link, 0) + span.bytes
    devices = sorted({s.device for s in profile.spans if s.kind == "hold"})
    memory = {d: _thinned(held(profile.spans, d, profile.elapsed), since) for d in devices}
    return {"copied": links, "memory": memory}


def _thinned(steps: list[tuple[int, dict[str, int]]], since: int) -> list[list[float]]:
    """[s since the step began, bytes], the largest of each of at most so many parts."""
    points = [(max(0, ns - since) * 1e-9, sum(by.values())) for ns, by in steps if ns >= since]
    if len(points) <= _POINTS:
        return [[*p] for p in points]
    size = -(-len(points) // _POINTS)
    parts = [points[i : i + size] for i in range(0, len(points), size)]
    return [[part[0][0], max(b for _, b in part)] for part in parts]
