"""The orders in which the parts of a batch go through the stages, and backward passes in pieces.

Forward passes are whole calls of the module: its operators go to the devices of their parameters,
so the queue of each stage receives the parts in order. In GPipe's order the backward passes follow,
one after the other. In 1F1B's order the backward pass of a part runs a stage at a time: after the
forward pass of part i, stage s of p runs that of part i - (p - 1 - s), so at most p - s parts hold
activations there. Both orders keep each device busy for the same share of a step,
m / (m + p - 1) with m parts and p equal stages (Narayanan et al. 2021, arXiv 2104.04473).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import GradientEdge

from managed._backend import C

__all__ = ["Backward", "Loss", "simulate", "ticks"]


class Loss(NamedTuple):
    """A part's loss, and the factor of its gradient."""

    value: torch.Tensor
    weight: torch.Tensor


def ticks(parts: int, stages: int) -> list[tuple[int | None, list[tuple[int, int]]]]:
    """1F1B's order: (part of the forward pass or None, [(part, stage) of each piece])."""
    order = []
    for i in range(parts + stages - 1):
        first, last = max(0, i - stages + 1), min(i, parts - 1)
        pieces = [(k, k + stages - 1 - i) for k in range(first, last + 1)]
        order.append((i if i < parts else None, pieces))
    return order


class Backward:
    """The backward pass of one part, a stage at a time.

    A piece is one call of the engine, from the gradients that came to a stage to its leaves and to
    the crossings that leave it. A gradient crosses outside of the engine, when the piece that needs
    it begins: inside, the receiving stream would wait for all that the sender was given.

    `why` says why the graph has no pieces, and is None if it has.
    """

    def __init__(self, loss: Loss, stage_of: Callable[[torch.device], int]) -> None:
        found = C.cut_backward(loss.value)
        self.why = found if isinstance(found, str) else _back(found, stage_of)
        if self.why is not None or isinstance(found, str):
            return
        edge = torch.autograd.graph.get_gradient_edge(loss.value)
        self._stage_of = stage_of
        self._pieces = {device: (leaves, crossings) for device, leaves, crossings in found}
        self._roots: dict[torch.device, list[tuple[GradientEdge, torch.Tensor]]]
        self._roots = {loss.value.device: [(edge, loss.weight)]}
        self._arriving: dict[torch.device, list[tuple[Any, ...]]] = {}

    def run(self, stage: int) -> None:
        """Runs the piece of a stage, after those of all later stages."""
        here = [device for device in self._pieces if self._stage_of(device) == stage]
        for device in sorted(here, key=lambda device: device.type == "cpu"):
            self._run_on(device)

    def _run_on(self, device: torch.device) -> None:
        leaves, crossings = self._pieces.pop(device)
        roots = self._roots.pop(device, [])
        # The crossings keep the nodes behind them alive, which objects of Python need not.
        arriving = self._arriving.pop(device, [])
        for crossing, _, _, following, number in arriving:
            gradient = C.leave_crossing(crossing)
            if gradient is not None:
                roots.append((_edge(following, number), gradient))
        if not roots or not (leaves or crossings):
            return
        ends = [_edge(node) for node in [*leaves, *(node for _, node, *_ in crossings)]]
        try:
            for crossing, *_ in crossings:
                C.end_at_crossing(crossing, True)
            torch.autograd.backward([e for e, _ in roots], [g for _, g in roots], inputs=ends)
        finally:
            for crossing, *_ in crossings:
                C.end_at_crossing(crossing, False)
        for way_out in crossings:
            self._arriving.setdefault(way_out[2], []).append(way_out)


def _edge(node: Any, number: int = 0) -> GradientEdge:
    return GradientEdge(node, number)


def _back(pieces: Sequence[Any], stage_of: Callable[[torch.device], int]) -> str | None:
    """Why the devices of a graph stand in no order, or None if they do.

    A device that has no stage, such as the host, counts to the first one. Its piece comes after
    that of the stage's own device, so gradients may go from there to the host alone.
    """
    for device, _, crossings in pieces:
        for _, _, home, following, _ in crossings:
            stage, to = stage_of(device), stage_of(home)
            if to > stage or (to == stage and home.type != "cpu"):
                name = following.name().removesuffix("0").removesuffix("Backward")
                return f"the result of {name} goes back from {home} to {device}"
    return None


def simulate(
    forward: Sequence[float],
    backward: Sequence[float],
    links: Sequence[float],
    parts: int,
    pieces: bool,
) -> float:
    """The time of a step, in the unit of its times, if only these take time.

    Args:
        forward: of each stage, for one part.
        backward: likewise.
        links: of each border, for the activations of one part, and again for their gradients.
        parts: how many.
        pieces: 1F1B's order instead of GPipe's.
    """
    stages = len(forward)
    free = [0.0] * stages
    ahead = [0.0] * max(stages - 1, 0)  # when the link is free, for activations
    behind = list(ahead)  # and for gradients, which go the other way
    done: dict[tuple[int, int], float] = {}

    def forward_pass() -> None:
        at = 0.0
        for s in range(stages):
            if s:
                ahead[s - 1] = at = max(at, ahead[s - 1]) + links[s - 1]
            free[s] = at = max(at, free[s]) + forward[s]

    def piece(part: int, s: int) -> None:
        at = done.get((part, s + 1), 0.0)
        if s + 1 < stages:
            behind[s] = at = max(at, behind[s]) + links[s]
        free[s] = done[part, s] = max(at, free[s]) + backward[s]

    if pieces:
        for begun, then in ticks(parts, stages):
            if begun is not None:
                forward_pass()
            for part, s in then:
                piece(part, s)
    else:
        for _ in range(parts):
            forward_pass()
        for part in range(parts):
            for s in reversed(range(stages)):
                piece(part, s)
    return max(free)
