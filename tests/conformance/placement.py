"""Where the operands of a sweep go: all on one device, or scattered.

A placement takes CPU operands and gives copies on its devices; the copies keep strides,
`requires_grad` and the leaf property. It also states what must hold for the results.
"""

import random

import torch
from support.devices import ON_CUDA, device_name
from torch.utils._pytree import tree_map

import managed

ACCELERATORS = tuple(map(device_name, range(4 if ON_CUDA else 3)))


def copied(tree):
    """Fresh leaves on the CPU, so that a sample can be used twice."""
    return _map(lambda t: t.detach().clone().requires_grad_(t.requires_grad), tree)


def _map(function, tree):
    return tree_map(lambda x: function(x) if isinstance(x, torch.Tensor) else x, tree)


def _names_the_cpu(x):
    return isinstance(x, (str, torch.device)) and str(x) == "cpu"


class OnDevice:
    """Plain tensors, all on one device: what a port of torch would do."""

    gradient_form = True
    uses = 1

    def __init__(self, seed):
        self.device = torch.device(random.Random(seed).choice(ACCELERATORS))

    def __str__(self):
        return str(self.device)

    def operands(self, tree):
        def place(x):
            if isinstance(x, torch.Tensor):
                return x.detach().clone().to(self.device).requires_grad_(x.requires_grad)
            return self.device if _names_the_cpu(x) else x

        return tree_map(place, tree)

    def mixed(self):
        return False

    def generator(self, seed):
        return torch.Generator(self.device).manual_seed(seed)

    def objection(self, result):
        """Why a result is in the wrong place, or None."""
        return None if result.device == self.device else f"result on {result.device}"


class Scattered:
    """Managed operands, each on a device drawn at random: the CPU or an accelerator.

    A gradient that was copied home is dense and resolved, so where the CPU's is a view of a
    larger tensor, or conjugated when it is read, its form differs, and with it nothing else.
    """

    gradient_form = False
    uses = 2  # the second use finds the copies of the first

    devices = ("cpu", *ACCELERATORS)

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.drawn = []

    def __str__(self):
        return "operands on " + ", ".join(self.drawn)

    def operands(self, tree):
        return _map(self._tensor, tree)

    def _tensor(self, t):
        if t.is_nested:
            return t  # simulated devices hold no nested tensors
        self.drawn.append(self.random.choice(self.devices))
        there = t.detach().clone().to(self.drawn[-1]).requires_grad_(t.requires_grad)
        managed._C.mark(there)
        return there

    def mixed(self):
        return len(set(self.drawn)) > 1

    def generator(self, seed):
        return torch.Generator(self.random.choice(self.devices)).manual_seed(seed)

    def objection(self, result):
        if not self.drawn or isinstance(result, managed.ManagedTensor):
            return None
        return f"result on {result.device} is not managed"


class Together(Scattered):
    """Managed operands, all on one device."""

    devices = ACCELERATORS[:1]
