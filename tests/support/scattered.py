"""A model with something of everything, plain and scattered over devices, and how to compare."""

import copy

import torch
from torch import nn

from managed import _C, ManagedModule, ManagedTensor
from managed._modules import walk
from support.devices import D0, D1, D2, D3

DEVICES = (D0, D1, "cpu", D2, D3)


class Model(nn.Module):
    """Tied weights, a normalisation, containers of parameters, buffers that files have or lack."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.b = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.a.weight
        self.factors = nn.ParameterList(nn.Parameter(torch.randn(6)) for _ in range(3))
        self.shifts = nn.ParameterDict({"x": nn.Parameter(torch.randn(6))})
        self.parts = nn.ModuleDict({"last": nn.Linear(6, 6)})
        self.register_buffer("scale", torch.rand(6))
        self.register_buffer("hidden", torch.rand(6), persistent=False)

    def forward(self, x):
        x = torch.tanh(self.norm(self.a(x)))
        x = self.tied(self.b(x)) * self.scale + self.hidden
        for factor in self.factors:
            x = x * factor
        return self.parts["last"](x + self.shifts["x"])


def scatter(net, first=0):
    """Moves every tensor of the managed module to the next of five devices."""
    for i, slot in enumerate(walk.slots([net])):
        _C.move(slot.tensor, DEVICES[(i + first) % len(DEVICES)])
    return net


def pair(make=Model):
    """The same module plain on the CPU, and managed and scattered."""
    plain = make()
    return plain, scatter(ManagedModule.from_module(copy.deepcopy(plain)))


def changed():
    """A plain model with other values."""
    other = Model()
    with torch.no_grad():
        for p in other.parameters():
            p.add_(1)
    return other


def tensors(net):
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}


def places(net):
    return {name: str(t.device) for name, t in tensors(net).items()}


def all_managed(net):
    return all(t.__class__ is ManagedTensor for t in tensors(net).values())


def step(net, optimizer=None, seed=0):
    """One training step with inputs of their own; the loss on the CPU."""
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(seed))
    loss = net(x).square().mean()
    loss.backward()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach().cpu()


def assert_same(plain, net):
    """Bitwise: values, dtypes, strides, and the names in their order."""
    theirs, ours = plain.state_dict(), net.state_dict()
    assert list(theirs) == list(ours)
    for name, a in theirs.items():
        b = ours[name]
        assert a.dtype == b.dtype, name
        assert a.stride() == b.stride(), name
        assert torch.equal(a, b.cpu()), name


def assert_same_gradients(plain, net):
    for (name, a), b in zip(plain.named_parameters(), net.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        if a.grad is not None:
            assert b.grad.device == b.device, name
            assert isinstance(b.grad, ManagedTensor), name
            assert torch.equal(a.grad, b.grad.cpu()), name
