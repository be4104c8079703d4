"""One step of a pipeline: the parts of a batch, their losses and their backward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from managed._backend import C
from managed._modules import walk
from managed._parallel import parts, schedule
from managed._parallel.measure import Measurement
from managed._parallel.report import Timing

__all__ = ["LossFunction", "Step", "Way", "call", "naming"]

LossFunction = Callable[[Any, Any], Any]


@dataclass
class Way:
    """How the parts of a batch go through a model."""

    module: nn.Module
    devices: list[torch.device]  #: of the stages, in order
    in_pieces: bool  #: 1F1B's order
    checks: bool  #: whether the chain of stages is looked at even if the order does not need it
    timing: Timing
    why: str | None = None  #: why backward passes have no pieces


class Step:
    """One step: the parts of a batch and their losses."""

    def __init__(
        self,
        way: Way,
        loss_function: LossFunction,
        given: list[tuple[Any, Any]],
        counts: list[int],
    ) -> None:
        self._way, self._loss_function = way, loss_function
        self._given, self._counts = given, counts
        self._done: list[torch.Tensor] = []  # each part's share of the loss
        self._sums: list[tuple[torch.Tensor, Any]] = []  # of a loss that is a pair
        self.measured: Measurement | None = None

    # ---- orders

    def in_turns(self, measures: bool) -> torch.Tensor:
        """The parts one after the other, each with its backward pass.

        Args:
            measures: the last one.
        """
        last = len(self._counts) - 1
        for part in range(last + 1 - measures):
            loss = self._forward(part)
            if loss is not None:
                self._backward(part, loss)
        if measures:
            with Measurement(self._way.module, C.get_manager()) as self.measured:
                loss = self._forward(last)
                self.measured.end_forward()
                final = self._all_but_last() if loss is None else loss
                self.measured.begin_backward()
                self._backward(last, final)
            return self._loss()
        return self._finish_pairs() if self._sums else self._loss()

    def at_once(self) -> torch.Tensor:
        """The parts in the order of the schedule."""
        if self._way.in_pieces and len(self._way.devices) < 2:
            return self.in_turns(measures=False)
        first = self._way.timing.measure(lambda: self._forward(0))
        pieces = self._pieces(first) if first is not None else None
        if pieces is None:
            return self._in_phases(first)
        del first
        in_flight: dict[int, schedule.Backward | _Whole] = {0: pieces}
        for part, then in schedule.ticks(len(self._counts), len(self._way.devices)):
            if part:
                in_flight[part] = self._begun(part)
            for k, stage in then:
                with naming(k, self._counts, "backward"):
                    in_flight[k].run(stage)
                if stage == 0:
                    del in_flight[k]
        return self._loss()

    def _in_phases(self, first: schedule.Loss | None) -> torch.Tensor:
        """All forward passes, then the backward passes in the same order."""
        losses = [first, *(self._forward(part) for part in range(1, len(self._counts)))]
        del first
        if self._sums:
            return self._finish_pairs()
        for part in range(len(losses)):
            loss, losses[part] = losses[part], None
            assert loss is not None
            self._backward(part, loss)
        return self._loss()

    def _pieces(self, loss: schedule.Loss) -> schedule.Backward | None:
        """The backward pass of a part in pieces, if the order wants that and its graph can."""
        way = self._way
        if len(way.devices) < 2 or not (way.in_pieces or way.checks):
            return None
        order = {device: i for i, device in enumerate(way.devices)}
        backward = schedule.Backward(loss, lambda device: order.get(device, 0))
        way.why = backward.why
        return backward if backward.why is None and way.in_pieces else None

    def _begun(self, part: int) -> schedule.Backward | _Whole:
        loss = self._forward(part)
        if loss is None:
            raise TypeError(
                "managed: the loss function returned a pair (sum, count) for this part and a mean "
                "for an earlier one; let it return one of the two"
            )
        return self._pieces(loss) or _Whole(loss)

    # ---- one part

    def _forward(self, part: int) -> schedule.Loss | None:
        """The loss of a part; None if it is a pair, which is kept for _finish_pairs()."""
        with naming(part, self._counts, "forward"):
            x, target = self._given[part]
            self._given[part] = (None, None)
            ends = self._way.devices
            output = call(self._way.module, parts.sent(x, ends[:1]))
            found = self._loss_function(output, parts.sent(target, ends[-1:]))
            del x, target, output
            if isinstance(found, tuple) and len(found) == 2:
                self._sums.append((_number(found[0], found), found[1]))
                return None
            value = _number(found, found)
            weight = torch.full_like(value.detach(), self._counts[part] / sum(self._counts))
            return self._counted(value, weight)

    def _counted(self, value: torch.Tensor, weight: torch.Tensor) -> schedule.Loss:
        self._done.append(value.detach() * weight)
        return schedule.Loss(value, weight)

    def _backward(self, part: int, loss: schedule.Loss) -> None:
        with naming(part, self._counts, "backward"):
            torch.autograd.backward(loss.value, loss.weight)

    def _finish_pairs(self) -> torch.Tensor:
        """The backward passes of losses that are sums: the count of all is known only now."""
        self._backward(len(self._counts) - 1, self._all_but_last())
        return self._loss()

    def _all_but_last(self) -> schedule.Loss:
        """Likewise, but returns the loss of the last part instead."""
        total = sum(count for _, count in self._sums)
        if len(self._sums) < len(self._counts):
            raise TypeError(
                "managed: the loss function returned a pair (sum, count) for some parts and a mean "
                "for others; let it return one of the two"
            )
        losses = [
            self._counted(value, torch.ones_like(value.detach()) / total) for value, _ in self._sums
        ]
        self._sums.clear()
        last = losses.pop()
        losses.reverse()
        for part in range(len(losses)):
            self._backward(part, losses.pop())
        return last

    def _loss(self) -> torch.Tensor:
        """The loss of the batch."""
        loss: torch.Tensor = parts.summed(self._done)
        return loss


class _Whole:
    """A backward pass without pieces in the order of a schedule: it runs with the first stage."""

    def __init__(self, loss: schedule.Loss) -> None:
        self._loss = loss

    def run(self, stage: int) -> None:
        if stage == 0:
            torch.autograd.backward(self._loss.value, self._loss.weight)


# ---- what is given


def call(module: nn.Module, given: Any) -> Any:
    if isinstance(given, dict):
        return module(**given)
    if isinstance(given, (list, tuple)) and not hasattr(given, "_fields"):
        return module(*given)
    return module(given)


def _number(value: Any, found: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor) and value.numel() == 1 and value.requires_grad:
        return value.reshape(())
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        what = "a number that depends on no parameter"
    elif isinstance(found, torch.Tensor):
        what = f"a tensor of shape {tuple(found.shape)}"
    else:
        what = f"{type(found).__name__}: {found!r:.100}"
    raise TypeError(
        "managed: a loss function returns the mean over the samples of a part as a tensor with one "
        f"element, or a pair (sum, count), and this one returned {what}"
    )


@contextmanager
def naming(part: int, counts: Sequence[int], passing: str) -> Iterator[None]:
    """Lets an exception say in which part of the batch it was raised."""
    try:
        yield
    except BaseException as error:
        begin = sum(counts[:part])
        walk.add_note(
            error,
            f"managed: in the {passing} pass of part {part + 1} of {len(counts)} "
            f"(samples {begin} to {begin + counts[part] - 1})",
        )
        raise
