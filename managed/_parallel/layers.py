"""Cuts a measured model into layers.

A layer is a module whose call is not worth cutting: from the model downwards, a call that takes
more than 1 / (grain * devices) of the whole is replaced by the calls within it. What runs between
two layers counts to the first of them, since its operands are there. The order is that of the
calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import nn

from managed._backend import C
from managed._modules import walk
from managed._parallel.measure import Call, Measurement

__all__ = ["Layer", "layers_of"]


class Layer(NamedTuple):
    """What one part of the batch costs in a layer, and what the layer holds."""

    name: str
    modules: list[nn.Module]  #: that one and all within it
    slots: list[walk.Slot]
    forward: float  #: ns on the fastest device
    backward: float
    bytes: int  #: parameters and buffers
    trained: int  #: of these, parameters that get gradients
    part_bytes: int  #: what the forward pass of one part leaves, copies of other devices' aside
    forward_peak: int  #: the most bytes in the forward pass beyond those at its begin
    backward_peak: int  #: likewise in the backward pass
    border: int  #: bytes that cross when the next layer is on another device


def layers_of(measured: Measurement, grain: int) -> list[Layer]:
    """The layers in the order of their calls; none if no module was called."""
    root, marks = measured.root, measured.marks
    if root is None:
        return []
    calls = _cut(measured, root, grain)
    begins = [root.begin, *(call.begin for call in calls[1:]), measured.turned]
    ways_back = _backward(measured, calls)
    names = {module: name for name, module in measured.module.named_modules()}
    held = _slots(measured.module, calls, names)
    made = []
    for i, call in enumerate(calls):
        first, then = marks[begins[i]], marks[begins[i + 1]]
        came = call.crossing if i and call.device != calls[i - 1].device else 0
        made.append(
            Layer(
                names.get(call.module, type(call.module).__name__),
                list(call.module.modules()),
                held[i],
                then.time - first.time,
                marks[ways_back[i][1]].time - marks[ways_back[i][0]].time,
                sum(C.nbytes(slot.tensor) for slot in held[i]),
                sum(C.nbytes(slot.tensor) for slot in held[i] if _is_trained(slot)),
                max(then.alive - first.alive - came, 0),
                measured.peak(begins[i], begins[i + 1]),
                measured.peak(*ways_back[i]),
                calls[i + 1].crossing if i + 1 < len(calls) else 0,
            )
        )
    return made


def _cut(measured: Measurement, root: Call, grain: int) -> list[Call]:
    def took(begin: int, end: int) -> float:
        return measured.marks[end].time - measured.marks[begin].time

    limit = took(root.begin, measured.turned) / (grain * max(measured.devices, 1))
    found: list[Call] = []

    def visit(call: Call) -> None:
        inside = [c for c in call.inside if c.inside or any(walk.own_slots(c.module))]
        if not inside or (took(call.begin, call.end) <= limit and call is not root):
            found.append(call)
        else:
            for c in inside:
                visit(c)

    visit(root)
    return found


def _backward(measured: Measurement, calls: Sequence[Call]) -> list[tuple[int, int]]:
    """From the gradient of what a layer gave to that of what it was given, as moments."""
    at = measured.back
    found = [(at, at)] * len(calls)
    for i in reversed(range(len(calls))):
        returned = calls[i].returned
        end = at if returned is None else max(at, returned)
        found[i], at = (at, end), end
    found[0] = (found[0][0], measured.end)
    return found


def _slots(
    model: nn.Module, calls: Sequence[Call], names: dict[nn.Module, str]
) -> list[list[walk.Slot]]:
    """The tensors of each layer: those of its module, and others of the modules around it.

    A tensor of no layer goes with the one that was registered before it.
    """
    of_module: dict[nn.Module, int] = {}
    around: dict[nn.Module, int] = {}
    for i, call in enumerate(calls):
        for module in call.module.modules():
            of_module.setdefault(module, i)
        for module in _around(model, names.get(call.module, "")):
            around.setdefault(module, i)
    held: list[list[walk.Slot]] = [[] for _ in calls]
    last = 0
    for slot in walk.slots([model]):
        users = [of_module[m] for m, _ in slot.places if m in of_module]
        last = min(users) if users else around.get(slot.module, last)
        held[last].append(slot)
    return held


def _around(model: nn.Module, name: str) -> Iterator[nn.Module]:
    """The modules that hold the one of that name."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield model.get_submodule(name)
    yield model


def _is_trained(slot: walk.Slot) -> bool:
    return isinstance(slot.tensor, nn.Parameter) and slot.tensor.requires_grad
