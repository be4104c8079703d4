"""Pipeline: the layers of one model on several devices, which work at once on parts of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from managed._backend import C
from managed._modules import placement, walk
from managed._parallel import parts, shared, stages
from managed._parallel.layers import layers_of
from managed._parallel.measure import Measurement
from managed._parallel.recompute import recomputing
from managed._parallel.report import PipelinePlan, Timing, report
from managed._parallel.step import LossFunction, Step, Way, call, naming
from managed.module import ManagedModule

__all__ = ["Pipeline", "PipelinePlan"]

_SCHEDULES = ("1f1b", "gpipe")

#: How finely the model is cut into layers at first (layers.py). A cut within a residual block may
#: send the sum back to an earlier device; then the layers become coarser, down to 1.
_GRAIN = 8


class Pipeline:
    """Trains a model whose layers are on several devices, on parts of each batch.

    The model becomes managed in place, as by `ManagedModule.from_module`; nothing of it is cut,
    wrapped or traced, so any module will do. The first step runs the parts one after the other and
    measures the last of them; then the layers move to stages of equal time, and from the second
    step on the devices work at once. `plan()` says what was found.

    A step splits the batch along its first dimension, runs the parts through the model, and leaves
    the gradients on the parameters as `loss.backward()` does for the whole batch, summed in the
    order of the parts. Layers that look at a whole batch, such as BatchNorm in training, see one
    part at a time, as they do wherever gradients are accumulated.

    Args:
        module: any module that can be called with a part of the batch.
        microbatches: into how many parts a batch is split; the devices are idle for about
            (p - 1) / (microbatches + p - 1) of a step with p of them.
        schedule: `"1f1b"`: backward passes begin as soon as they can, so that at most p - s parts
            hold activations on stage s. `"gpipe"`: all forward passes come first. With fast links
            both take the same time.
        recompute: classes and modules that run again in the backward pass, instead of keeping
            their activations. Their buffers are written once.

    Raises:
        TypeError: for what is no module.
        ValueError: for `microbatches` below 1 and for an unknown schedule.
    """

    def __init__(
        self,
        module: nn.Module,
        microbatches: int = 8,
        *,
        schedule: str = "1f1b",
        recompute: Sequence[type[nn.Module] | nn.Module] | None = None,
    ) -> None:
        if isinstance(microbatches, bool) or not isinstance(microbatches, int) or microbatches < 1:
            raise ValueError(
                f"managed: microbatches is how many parts a batch is split into, at least 1, not "
                f"{microbatches!r}: write managed.Pipeline(model, microbatches=8)"
            )
        if schedule not in _SCHEDULES:
            raise ValueError(
                f'managed: schedule is "1f1b" or "gpipe", not {schedule!r}: write '
                'managed.Pipeline(model, schedule="1f1b")'
            )
        self.module = ManagedModule.from_module(module)
        with recomputing(module, recompute):
            pass  # says what it cannot recompute
        self.microbatches = microbatches
        self.schedule = schedule
        self.recompute = recompute
        self._layout: stages.Layout | None = None
        self._locals: list[shared.Local] = []
        self._measured: Measurement | None = None  # until the stages are final
        self._grain = _GRAIN
        self._way = Way(self.module, [], schedule == "1f1b", True, Timing())

    # ---- steps

    def step(self, loss_function: LossFunction, batch: Any, target: Any = None) -> torch.Tensor:
        """Computes the loss of a batch and the gradients of the parameters.

        Args:
            loss_function: called with the output and the target of each part. It returns the mean
                over the part's samples, or a pair (sum, count); the loss is then the sum of all
                over the count of all, and all forward passes come first.
            batch: what the module is called with: a tensor, a tuple of arguments or a dictionary
                of keyword arguments. Tensors with as many samples as the first one are split.
            target: what the loss function gets beside the output; it is split likewise and goes
                to the last stage alone.

        Returns:
            The loss, without a graph, on the device of the last stage.

        Raises:
            ValueError: the batch holds no samples.
            TypeError: the loss is no number and no pair.
        """
        count, counts = self._counts(batch)
        measures = self._layout is None and self._begin()
        given = zip(
            parts.split(batch, count, counts), parts.split(target, count, counts), strict=True
        )
        run = Step(self._way, loss_function, list(given), counts)
        with ExitStack() as stack:
            stack.enter_context(_gradients_apart(self.module, self._locals))
            stack.enter_context(recomputing(self.module, self.recompute))
            stack.enter_context(shared.standing_in(self._locals))
            loss = run.at_once() if self._layout is not None else run.in_turns(measures)
        for local in self._locals:
            local.give_gradient()
        self._settle(run.measured)
        return loss

    def eval(self, batch: Any) -> Any:
        """Returns the module's outputs for a batch, put together, without a graph.

        The parts go through the stages at once as in `step()`. The mode of the module, training or
        evaluation, stays what the program has set.
        """
        count, counts = self._counts(batch)
        if self._layout is None:
            self._begin()
        outputs = []
        with torch.no_grad(), shared.standing_in(self._locals):
            for i, part in enumerate(parts.split(batch, count, counts)):
                with naming(i, counts, "forward"):
                    outputs.append(call(self.module, parts.sent(part, self._way.devices[:1])))
        return parts.gather(outputs, counts)

    def plan(self) -> PipelinePlan:
        """Returns the stages, with layers, times and bytes, and what a step is expected to take.

        Before the first step there are no times.
        """
        return report(self._layout, self._way, self.microbatches, self._locals)

    # ---- stages

    def _counts(self, batch: Any) -> tuple[int, list[int]]:
        """The number of samples, and those of each part."""
        count = parts.samples(batch)
        if count == 0:
            raise ValueError("managed: this batch has no samples; leave the step out")
        return count, parts.sizes(count, self.microbatches)

    def _begin(self) -> bool:
        """Puts the model on all devices by bytes, so that it has room. False: there are none."""
        if not C.rooms(C.get_manager()):
            return False
        placement.place(self.module, C.get_manager(), True)
        held = {slot.tensor.device for slot in walk.slots([self.module])}
        self._way.devices = [d for d, _ in C.rooms(C.get_manager()) if d in held]
        return True

    def _settle(self, measured: Measurement | None) -> None:
        """Places the layers after the first step, and again if the chain of stages goes back."""
        if self._layout is None:
            self._measured = measured
        elif self._way.why is None or self._grain == 1:
            self._measured = None
        else:
            self._grain //= 2
        if self._measured is not None:
            self._arrange(self._measured)
        self._way.checks = self._measured is not None

    def _arrange(self, measured: Measurement) -> None:
        """Places the layers by their times."""
        layers = layers_of(measured, self._grain)
        if not layers:
            return
        layout = stages.plan(layers, C.get_manager(), self._in_flight)
        stages.place(layout)
        device_of: dict[nn.Module, torch.device] = {}
        for layer, on in zip(layout.layers, layout.on, strict=True):
            for module in layer.modules:
                device_of.setdefault(module, layout.devices[on])
        self._locals = shared.local_leaves(walk.slots([self.module]), device_of)
        self._layout = layout
        self._way.devices = [layout.devices[on] for on in sorted(set(layout.on))]

    def _in_flight(self, devices: int) -> list[int]:
        if self.schedule == "gpipe":
            return [self.microbatches] * devices
        return [min(self.microbatches, devices - s) for s in range(devices)]


@contextmanager
def _gradients_apart(module: nn.Module, locals_: Sequence[shared.Local]) -> Iterator[None]:
    """Adds the gradients of a step to those that were there; drops them if the step fails."""
    parameters = list(module.parameters())
    before = [(p, p.grad) for p in parameters if p.grad is not None]
    for p, _ in before:
        p.grad = None
    try:
        yield
    except BaseException:
        for p in [*parameters, *(local.leaf for local in locals_)]:
            p.grad = None
        for p, gradient in before:
            p.grad = gradient
        raise
    for p, gradient in before:
        if p.grad is not None and gradient is not None:
            with torch.no_grad():
                gradient.add_(p.grad)
        p.grad = gradient
