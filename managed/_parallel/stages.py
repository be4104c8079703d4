"""Places the layers of a pipeline on devices, by the times and bytes that were measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch

from managed._backend import C
from managed._modules import adopt, walk
from managed._parallel.layers import Layer

__all__ = ["Layout", "place", "plan"]

#: Besides a parameter, training holds its gradient and the optimizer's states. A pipeline is not
#: told of the latter and reckons with two, as AdamW has.
_BESIDE = 3


@dataclass(frozen=True)
class Layout:
    """Layers on devices."""

    layers: list[Layer]
    devices: list[torch.device]  #: all that were to be had, in order
    on: list[int]  #: of each layer: the index of its device
    missing: int  #: bytes that spill, since the stages have no room for them

    def stage(self, device: int) -> list[Layer]:
        return [layer for layer, on in zip(self.layers, self.on, strict=True) if on == device]


def plan(
    layers: list[Layer], manager: C.DeviceManager, in_flight: Callable[[int], list[int]]
) -> Layout:
    """The layout with the least longest stage whose stages have room, or else the fastest one.

    Args:
        layers: in the order of their calls.
        manager: whose devices are used.
        in_flight: given the number of devices, how many parts each holds at once.
    """
    held: Counter[torch.device] = Counter()
    for layer in layers:
        for slot in layer.slots:
            held[slot.tensor.device] += C.nbytes(slot.tensor)
    shares = [(d, (free + held[d], load, speed)) for d, (free, load, speed) in C.rooms(manager)]
    devices = [device for device, _ in shares]
    request = (
        [round(layer.forward + layer.backward) for layer in layers],
        [layer.bytes + _BESIDE * layer.trained for layer in layers],
        [layer.part_bytes for layer in layers],
        [layer.border for layer in layers[:-1]],
        [share for _, share in shares],
        in_flight(len(devices)),
        [C.bandwidth(a, b) for a, b in pairwise(devices)],
    )
    on, missing = C.plan_stages(*request), 0
    if on is None:
        on, missing = C.plan_spilled_stages(*request)
    return Layout(layers, devices, on, missing)


def place(layout: Layout) -> None:
    """Moves the tensors of all layers to their devices, all of them or none."""
    targets = [
        (slot, layout.devices[on])
        for layer, on in zip(layout.layers, layout.on, strict=True)
        for slot in layer.slots
    ]
    walk.carry(targets, C.DISPERSED)
    for slot, _ in targets:
        adopt.mark(slot.tensor)
        adopt.place(slot.tensor)
