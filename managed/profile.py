"""What ran where, what moved, what waited and why: a file for Perfetto, and a picture."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from managed._backend import C
from managed._views import perfetto
from managed._views.spans import Span, real, simulated
from managed.explain import History, explain, stats

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

__all__ = ["plot_memory", "plot_moves", "plot_timeline", "profile", "snapshot"]

_running: profile | None = None


class profile:
    """A block of which is recorded what ran, moved and waited.

    On simulated devices it has each operator, each copy with its reason, and what waited, in
    virtual time, and whose bytes each device holds. On other devices it has managed's copies, in
    real time: what kernels do there is torch.profiler's to tell.

    Afterwards `spans` has what took from when to when, in order of time: `kind`, `name`, `device`,
    `other`, `stream`, `begin` and `end` in ns, `bytes` (of bytes in use the `name` says whose), and
    the `event` of a copy of managed's. `elapsed` ns were between the first and the last, and
    `stats` counts what managed did meanwhile, as `managed.stats()` does.

    Args:
        path: a file in Chrome's trace event format, which ui.perfetto.dev opens, is written at the
            end; `None`: no file.

    Raises:
        RuntimeError: while another profile runs.
        FileNotFoundError: when there is no folder for the file.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.spans: list[Span] = []
        self.elapsed = 0
        self.stats: dict[str, Any] = {}
        self._first = 0

    def __enter__(self) -> profile:
        global _running
        if _running is not None:
            raise RuntimeError("managed: a profile is running already; end that one first")
        if self.path is not None and not self.path.parent.is_dir():
            raise FileNotFoundError(f"managed: there is no folder {self.path.parent} to write into")
        self._first = stats().get("events", 0)
        C.keep_events(True)
        self._sim = _simulator()
        try:
            if self._sim:
                self._begin = self._sim.elapsed()
                self._sim.start_log()
        except BaseException:
            C.keep_events(False)
            raise
        _running = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _running
        _running = None
        sim = self._sim  # devices that are simulated since then have no log
        try:
            raw = sim.stop_log() if sim else []
            events = explain().since(self._first)
        finally:
            C.keep_events(False)
        self.stats = events.totals()
        self.spans = simulated(raw, events, self._begin) if sim else real(events)
        self.elapsed = max((s.end for s in self.spans), default=0)
        if self.path is not None:
            told = {"stats": self.stats, "devices": stats().get("devices", {})}
            perfetto.write(self.path, self.spans, self.elapsed, told)


def _simulator() -> Any:
    """managed._sim if this process simulates devices."""
    from managed import sim

    if sim._simulated is None:
        return None
    from managed import _sim

    return _sim


def plot_timeline(p: profile, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draws a profile: a row for each stream, link and thread, and each device's bytes by owner.

    Args:
        p: a profile that has ended.
        path: where to write a picture; `None`: nowhere.

    Raises:
        TypeError: for what is no profile.
        ModuleNotFoundError: without matplotlib.
    """
    from managed._views import timeline

    return timeline.draw(_checked(p), path)


def _checked(p: object) -> profile:
    if isinstance(p, profile):
        return p
    raise TypeError(
        f"managed: first comes what managed.profile() gave, not {p!r}; path= is the file"
    )


def plot_memory(p: profile | None = None, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draws whose bytes each device holds.

    Args:
        p: a profile, which has bytes over time on simulated devices; `None`: bytes of now, those of
            `managed.holders` included, with their peak and what the device may hold.
        path: where to write a picture; `None`: nowhere.

    Raises:
        TypeError: for what is no profile.
        ModuleNotFoundError: without matplotlib.
    """
    from managed import holders
    from managed._views import timeline

    if p is None:
        for name, held in stats().get("devices", {}).items():
            if held["holders"] and _in_use(name):
                holders.report(name)  # stats() tells what was reported last
        return timeline.draw_held(stats().get("devices", {}), path)
    return timeline.draw_memory(_checked(p), path)


def snapshot(path: str | os.PathLike[str]) -> None:
    """Writes a file for torch's memory_viz that has the memory of all holders, not of torch alone.

    `python -m torch.cuda._memory_viz` and pytorch.org/memory_viz open it. It is what
    `torch.cuda.memory._dump_snapshot()` writes, and one segment more for each row of
    `managed.holders.report()` on each device that the process uses.

    Args:
        path: the file, a pickle.
    """
    from managed import holders
    from managed._views import snapshot as _snapshot

    names = [name for name in stats().get("devices", {}) if _in_use(name)]
    _snapshot.write([holders.report(name) for name in names], path)


def _in_use(device: str) -> bool:
    """Whether the process has a context there: asking for bytes would make one."""
    import torch

    kind, _, index = device.partition(":")
    has_context: Any = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    return kind != "cuda" or bool(has_context(int(index)))


def plot_moves(
    x: profile | History | torch.Tensor | torch.nn.Module | None = None,
    path: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draws what moved: when, over which link, what for, and the bytes of each link.

    Args:
        x: a profile, what `explain()` gave, a tensor, a module, or `None` for everything. Times are
            virtual in a profile of simulated devices, else real.
        path: where to write a picture; `None`: nowhere.

    Raises:
        TypeError: for anything else.
        ModuleNotFoundError: without matplotlib.
    """
    from managed._views import timeline

    if isinstance(x, profile):
        return timeline.draw_moves(x.spans, x.elapsed, path)
    spans = real(x if isinstance(x, History) else explain(x))
    return timeline.draw_moves(spans, max((s.end for s in spans), default=0), path)
