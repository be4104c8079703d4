"""Parameters that several stages use: a tied head, an embedding that is used twice.

An operator runs where its placed parameters are, so a head that is tied to the embedding would run
on the first device, and the chain of stages would go back there. Here each further device has a
leaf of its own. It is filled once a step, it stands in the place of the parameter while the parts
run, and its gradient, the sum over the parts, goes home once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from managed._backend import C
from managed._modules import walk

__all__ = ["Local", "local_leaves", "standing_in"]


class Local:
    """A leaf that stands for a parameter on one further device."""

    def __init__(self, source: nn.Parameter, device: torch.device) -> None:
        self.source, self.device = source, device
        self.places: list[tuple[nn.Module, str]] = []
        with torch.no_grad():
            copy = source.detach().to(device)
        self.leaf = nn.Parameter(copy, requires_grad=source.requires_grad)
        C.mark(self.leaf, True)
        C.place(self.leaf, True)

    def fill(self) -> None:
        with torch.no_grad():
            self.leaf.copy_(self.source)
        self.leaf.requires_grad_(self.source.requires_grad)

    def put(self, tensor: nn.Parameter) -> None:
        for module, name in self.places:
            module._parameters[name] = tensor

    def give_gradient(self) -> None:
        """Adds the gradient of the leaf to that of the parameter, whose hooks see it."""
        gradient, self.leaf.grad = self.leaf.grad, None
        if gradient is not None:
            edge = torch.autograd.graph.get_gradient_edge(self.source)
            torch.autograd.backward([edge], [gradient.to(self.source.device)])


def local_leaves(
    slots: Sequence[walk.Slot], device_of: dict[nn.Module, torch.device]
) -> list[Local]:
    """A leaf for each parameter and each device, other than its own, on which it is used.

    Args:
        slots: the tensors of the model.
        device_of: where the layers run that modules belong to.
    """
    found: list[Local] = []
    for slot in slots:
        parameter = slot.tensor
        if not isinstance(parameter, nn.Parameter):
            continue
        on: dict[torch.device, Local] = {}
        for module, name in slot.places:
            device = device_of.get(module, parameter.device)
            # A recurrent module keeps a list of its parameters beside them.
            if device == parameter.device or isinstance(module, nn.RNNBase):
                continue
            if device not in on:
                on[device] = Local(parameter, device)
            on[device].places.append((module, name))
        found += on.values()
    return found


@contextmanager
def standing_in(locals_: Sequence[Local]) -> Iterator[None]:
    """Lets the leaves stand in the places of their parameters; fills them first."""
    try:
        for local in locals_:
            local.fill()
            local.put(local.leaf)
        yield
    finally:
        for local in locals_:
            local.put(local.source)
