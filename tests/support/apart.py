"""Managed tensors on devices of their own, and whether operators give what the CPU gives."""

import pytest
import torch

import managed
from managed import ManagedTensor
from support.devices import D0, D1, D2

DEVICES = ("cpu", D0, D1, D2)
torch_itself_scripts = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)


def put(t, device):
    return t.to(device).as_subclass(ManagedTensor)


def at(device, *sizes):
    return put(torch.randn(sizes), device)


def rand(device, *shape, **options):
    """A managed tensor of numbers from 0 to 1 that were drawn on the host."""
    return torch.rand(shape, **options).as_subclass(ManagedTensor).to(device)


def copies(function):
    """What `function` returns, and how many tensors were copied between devices for it."""
    before = managed.stats()["copy"]
    result = function()
    return result, managed.stats()["copy"] - before


def use_and_write(x, w):
    """Uses a leaf and writes it: a copy that is kept of it serves one round only."""
    (x @ w).mean().backward()
    with torch.no_grad():
        w -= w.grad
    w.grad = None


def same(actual, expected):
    return isinstance(actual, ManagedTensor) and torch.equal(actual.cpu(), expected.cpu())


def spread(*tensors, first=1):
    """The tensors on devices of their own, and the same tensors plain on the CPU."""
    return [put(t, DEVICES[(i + first) % 4]) for i, t in enumerate(tensors)], list(tensors)


def agree(function, *tensors, first=1):
    """`function` of tensors on four devices gives what it gives on the CPU, managed."""
    there, here = spread(*tensors, first=first)
    expected, actual = function(*here), function(*there)
    single = isinstance(expected, torch.Tensor)
    pairs = zip([expected] if single else expected, [actual] if single else actual, strict=True)
    for x, y in pairs:
        assert isinstance(y, ManagedTensor)
        assert torch.equal(x, y.cpu())
    return actual
