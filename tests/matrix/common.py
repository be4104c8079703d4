"""Where the operands of a row stand, and bitwise comparison with plain torch on the CPU."""

import copy

import torch
from support.compare import difference, tensors
from support.devices import D0, D1, D2

import managed
from managed import ManagedModule, ManagedTensor

__all__ = ["Place", "managed_on", "same"]

DEVICES = {"one": (D1,), "mixed": (D0, "cpu", D2, D1)}


def managed_on(t, device):
    """A managed copy of `t` on `device`: a leaf that needs a gradient where `t` needs one."""
    there = t.detach().to(device, copy=True).as_subclass(ManagedTensor)
    return there.requires_grad_(t.requires_grad)


def same(expected, actual, managed=True):
    """`actual` is what plain torch gave, bit for bit; its tensors are all managed, or none is."""
    kinds = {isinstance(t, ManagedTensor) for t in tensors(actual)}
    assert kinds <= {managed}
    found = difference(expected, actual)
    assert found is None, found


class Place:
    """Deals devices out: all operands on one simulated device, or each on the next of several."""

    def __init__(self, name):
        self.name = name
        self._dealt = 0

    def device(self):
        devices = DEVICES[self.name]
        self._dealt += 1
        return devices[(self._dealt - 1) % len(devices)]

    def __call__(self, *operands):
        """Managed copies of the operands, in a tuple; of one operand, the copy alone."""
        there = tuple(managed_on(t, self.device()) for t in operands)
        return there[0] if len(there) == 1 else there

    def module(self, module):
        """A managed copy of the module, its parameters and buffers dealt out one by one."""
        there = ManagedModule.from_module(copy.deepcopy(module))
        for t in (*there.parameters(), *there.buffers()):
            managed._C.move(t, self.device())
        return there

    def same_gradients(self, expected, actual):
        """The gradients of two lists of leaves, or two modules, are the same and at home."""
        wanted, got = (
            list(m.parameters()) if isinstance(m, torch.nn.Module) else list(m)
            for m in (expected, actual)
        )
        for p, q in zip(wanted, got, strict=True):
            assert q.grad.device == q.device
            same(p.grad, q.grad)
