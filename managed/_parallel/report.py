"""What a pipeline has found and expects, and how that is shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch

from managed._backend import C
from managed._parallel import schedule
from managed._views.words import columns, counted, size, took

if TYPE_CHECKING:
    from managed._parallel.layers import Layer
    from managed._parallel.shared import Local
    from managed._parallel.stages import Layout
    from managed._parallel.step import Way

__all__ = ["PipelinePlan", "StagePlan", "Timing", "report"]

_Result = TypeVar("_Result")


class Timing:
    """How long the program's thread issues a forward pass while it waits for no device."""

    def __init__(self) -> None:
        self.issue_ns: float | None = None

    def measure(self, forward: Callable[[], _Result]) -> _Result:
        begin = _host_now()
        result = forward()
        self.issue_ns = _host_now() - begin
        return result


def _host_now() -> float:
    """ns of the thread; of virtual time where there is one."""
    sim = getattr(torch, "sim", None)
    return sim.virtual_time("cpu") * 1e9 if sim is not None else float(time.perf_counter_ns())


@dataclass(frozen=True)
class StagePlan:
    """One stage. Times are for one part of the batch, in ns."""

    device: torch.device
    layers: tuple[str, ...]  #: names of modules, in the order of their calls
    forward_ns: float
    backward_ns: float
    bytes: int  #: parameters, buffers and gradients
    part_bytes: int  #: activations of one part
    in_flight: int  #: parts that hold activations at once
    peak: int  #: the most bytes; what the optimizer keeps comes on top
    link_ns: float  #: of the border behind it, for the activations of one part


@dataclass(frozen=True)
class PipelinePlan:
    """The stages of a pipeline and what a step is expected to take.

    `print()` shows a table; a notebook shows it by itself. Without stages nothing was measured yet.
    """

    stages: tuple[StagePlan, ...]
    schedule: str  #: "1f1b" or "gpipe", as it runs
    microbatches: int
    step_ns: float  #: a step without the optimizer
    issue_ns: float | None  #: how long the program's thread issues a part's forward pass, if known
    goes_back: str | None  #: why backward passes are not run a stage at a time
    missing: int  #: bytes that the stages have no room for, and that spill

    @property
    def bubble(self) -> float:
        """The part of a step in which devices are idle, from 0 to 1."""
        work = self.microbatches * sum(s.forward_ns + s.backward_ns for s in self.stages)
        return 1 - work / (len(self.stages) * self.step_ns) if self.step_ns else 0.0

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [
            ("stage", "layers", "forward", "backward", "bytes", "a part", "in flight", "peak")
        ]
        rows += [
            (
                str(s.device),
                _range(s.layers),
                took(s.forward_ns),
                took(s.backward_ns),
                size(s.bytes),
                size(s.part_bytes),
                str(s.in_flight),
                size(s.peak),
            )
            for s in self.stages
        ]
        return rows

    def _notes(self) -> list[str]:
        if not self.stages:
            return ["the first step measures the layers; there is no plan before it"]
        notes = [
            f"{self.schedule}, {counted(self.microbatches, 'part')}: a step takes "
            f"{took(self.step_ns)}, devices are idle for {self.bubble:.0%} of it"
        ]
        if self.issue_ns is not None:
            slow = self.issue_ns > max(s.forward_ns for s in self.stages)
            more = ", longer than a stage runs: larger parts would help" if slow else ""
            issuing = took(self.issue_ns) or "no time"
            notes.append(f"the program issues a part's forward pass in {issuing}{more}")
        if self.goes_back:
            notes.append(f"gpipe's order is used, because {self.goes_back}")
        if self.missing:
            notes.append(f"{size(self.missing)} have no room and spill")
        return notes

    def __str__(self) -> str:
        lines = columns(self._rows(), right=range(2, 8)) if self.stages else []
        return "\n".join([*lines, *self._notes()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from managed._views import html

        head, *rows = self._rows()
        table = [html.table(head, rows, right=range(2, 8))] if self.stages else []
        return html.page(self._notes()[0], *table, *map(html.note, self._notes()[1:]))


def _range(layers: Sequence[str]) -> str:
    return layers[0] if len(layers) == 1 else f"{layers[0]} ... {layers[-1]} ({len(layers)})"


def report(
    layout: Layout | None, way: Way, microbatches: int, leaves: Sequence[Local]
) -> PipelinePlan:
    """The plan of a layout; an empty one without. `leaves` stand for shared parameters."""
    runs = "1f1b" if way.in_pieces and not way.why else "gpipe"
    if layout is None:
        return PipelinePlan((), runs, microbatches, 0.0, None, None, 0)
    used = sorted(set(layout.on))
    speeds = {d: speed for d, (_, _, speed) in C.rooms(C.get_manager())}
    fastest = max(speeds.values(), default=1.0)
    stages = []
    for s, on in enumerate(used):
        layers = layout.stage(on)
        device = layout.devices[on]
        slower = fastest / speeds.get(device, fastest)
        border = layers[-1].border if s + 1 < len(used) else 0
        held = sum(layer.bytes + layer.trained for layer in layers)
        held += sum(2 * local.leaf.nbytes for local in leaves if local.device == device)
        came = layout.stage(used[s - 1])[-1].border if s else 0
        part = came + sum(layer.part_bytes for layer in layers)
        in_flight = microbatches if runs == "gpipe" else min(microbatches, len(used) - s)
        rates = [C.bandwidth(layout.devices[a], layout.devices[a + 1]) for a in _between(used, s)]
        stages.append(
            StagePlan(
                device,
                tuple(layer.name for layer in layers),
                slower * sum(layer.forward for layer in layers),
                slower * sum(layer.backward for layer in layers),
                held,
                part,
                in_flight,
                held + (in_flight - 1) * part + came + _last_part(layers),
                sum(border / rate for rate in rates if rate),
            )
        )
    step = microbatches * sum(s.forward_ns + s.backward_ns for s in stages)
    if way.why is None:  # else nearly nothing runs at once
        step = schedule.simulate(
            [s.forward_ns for s in stages],
            [s.backward_ns for s in stages],
            [s.link_ns for s in stages[:-1]],
            microbatches,
            runs == "1f1b",
        )
    return PipelinePlan(
        tuple(stages), runs, microbatches, step, way.timing.issue_ns, way.why, layout.missing
    )


def _last_part(layers: Sequence[Layer]) -> int:
    """The most bytes of a part while it runs through the layers and back."""
    most = kept = 0
    for layer in layers:
        most = max(most, kept + layer.forward_peak)
        kept += layer.part_bytes
        most = max(most, kept + layer.backward_peak)
    return most


def _between(used: Sequence[int], s: int) -> range:
    """The devices whose link to the next one the border behind stage s passes."""
    return range(used[s], used[s + 1]) if s + 1 < len(used) else range(0)
