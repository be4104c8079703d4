"""Measures the calls of a model's modules: times and bytes of one part of a batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from managed._backend import C
from managed._parallel.parts import leaves

__all__ = ["Call", "Measurement"]


class Mark(NamedTuple):
    """What the devices had done at a moment."""

    time: float  #: ns of work on the fastest device so far; real time where devices tell no work
    alive: int  #: bytes that tensors hold
    peak: int  #: the most bytes since the mark before


class _Meter:
    """Reads the devices. It resets their peak counters at each mark."""

    def __init__(self, manager: C.DeviceManager) -> None:
        rooms = C.rooms(manager)
        self.devices = [device for device, _ in rooms]
        self._speeds = {str(device): speed for device, (_, _, speed) in rooms}

    def mark(self) -> Mark:
        time_ = self._time()
        alive = peak = 0
        for device in self.devices:
            module = torch.get_device_module(device)
            alive += module.memory_allocated(device)
            peak += module.max_memory_allocated(device)
            module.reset_peak_memory_stats(device)
        return Mark(time_, alive, peak)

    def _time(self) -> float:
        if self.devices and self.devices[0].type == "sim":
            fastest = max(self._speeds.values())
            busy = torch.sim.busy()  # type: ignore[attr-defined]
            seconds = sum(busy[d] * speed / fastest for d, speed in self._speeds.items())
            return float(seconds * 1e9)
        for device in self.devices:
            torch.accelerator.synchronize(device)
        return float(time.perf_counter_ns())


@dataclass(eq=False)
class Call:
    """One call of a module. Moments are indices of marks."""

    module: nn.Module
    given: list[torch.Tensor]  #: tensors among its arguments; none after the pass
    begin: int
    device: torch.device | None  #: where the module's first parameter was
    end: int = 0
    inside: list[Call] = field(default_factory=list)
    returned: int | None = None  #: when the gradient of its input was complete
    crossing: int = 0  #: bytes that cross if a stage begins here


class Measurement:
    """Context manager that measures a forward pass and the backward pass after it."""

    def __init__(self, module: nn.Module, manager: C.DeviceManager) -> None:
        self.module = module
        self.marks: list[Mark] = []
        self._lock = threading.Lock()
        self._meter = _Meter(manager)
        self._open: list[Call] = []
        self._hooks: list[Any] = []
        self.root: Call | None = None
        self.turned = self.back = self.end = 0  #: moments

    def __enter__(self) -> Measurement:
        for module in self.module.modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            before = module.register_forward_pre_hook(self._begin, prepend=True, with_kwargs=True)
            after = module.register_forward_hook(self._finish, always_call=True)
            self._hooks += [before, after]
        return self

    def end_forward(self) -> None:
        """The forward pass, the loss included, has ended."""
        self.turned = self._mark()

    def begin_backward(self) -> None:
        self.back = self._mark()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if kind is None:
            self.end = self._mark()

    @property
    def devices(self) -> int:
        return len(self._meter.devices)

    def peak(self, begin: int, end: int) -> int:
        """The most bytes between two moments beyond those at the first."""
        peaks = [mark.peak for mark in self.marks[begin + 1 : end + 1]]
        return max([0, *(peak - self.marks[begin].alive for peak in peaks)])

    def _mark(self) -> int:
        with self._lock:  # threads of the engine mark, too
            self.marks.append(self._meter.mark())
            return len(self.marks) - 1

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        given = [t for t in leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        device = next((p.device for p in module.parameters()), None)
        call = Call(module, given, self._mark(), device)
        if self._open:
            self._open[-1].inside.append(call)
        elif self.root is None:
            self.root = call
        call.crossing = self._crossing(call)
        self._open.append(call)
        self._watch(call, given)

    def _finish(self, module: nn.Module, args: Any, output: Any) -> None:
        while self._open and self._open[-1].module is not module:
            self._close(self._open.pop())  # its forward pass raised
        if self._open:
            self._close(self._open.pop())

    def _close(self, call: Call) -> None:
        call.end = self._mark()
        call.given = []

    def _crossing(self, call: Call) -> int:
        """Bytes of its own arguments, and of those of calls that go on around it.

        A residual connection needs the latter later.
        """
        found = {t.untyped_storage()._cdata: t for t in call.given if _is_dense(t)}
        inner = call
        for around in reversed(self._open[1:]):
            if around.inside[0] is not inner:
                found |= {t.untyped_storage()._cdata: t for t in around.given if _is_dense(t)}
            inner = around
        return sum(t.nbytes for t in found.values() if t.device.type != "cpu")

    def _watch(self, call: Call, given: Sequence[torch.Tensor]) -> None:
        """Notes when the gradient of the first argument that has one is complete."""
        node = next((t.grad_fn for t in given if t.grad_fn is not None), None)
        if node is not None and torch.is_grad_enabled():

            def complete(_: Any) -> None:
                call.returned = self._mark()

            self._hooks.append(node.register_prehook(complete))


def _is_dense(t: torch.Tensor) -> bool:
    return t.layout == torch.strided and not t.is_meta
