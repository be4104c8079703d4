"""Strided nested tensors with a gradient: each use is refused, and ends no process."""

import warnings

import torch

import managed
from managed import ManagedTensor

warnings.filterwarnings("ignore", message=".*nested tensor")
managed.simulate(devices=2, memory="16MiB")
a, b = (torch.rand(n, 3, device="sim:1") for n in (2, 4))
sets = [
    [a.clone().requires_grad_(), b],
    [a.as_subclass(ManagedTensor).requires_grad_(), b],
    [torch.rand(2, 3).requires_grad_(), torch.rand(3, 3)],
]
for parts in sets:
    nested = torch.nested.as_nested_tensor(parts, device=torch.device("sim:1"))
    assert nested.is_nested and nested.requires_grad
    for use in (lambda: nested * 2, nested.unbind, lambda: nested.to("cpu")):  # noqa: B023
        try:
            use()
        except NotImplementedError as error:
            assert "layout=torch.jagged" in str(error), error
        else:
            raise AssertionError
