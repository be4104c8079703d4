"""Modules whose parameters and buffers lie on drawn devices, each by itself."""

from torch import nn
from torch.nn.parameter import UninitializedTensorMixin

import managed


def managed_(t):
    managed._C.mark(t)
    return t


def scatter(module, draw, finish=managed_):
    """Puts each parameter and buffer of `module` on the device that `draw()` names, managed.

    Shared parameters stay shared, which `module.to("sim")` would not keep. Not ManagedModule's
    work: the sweeps need the worst layout, and plain tensors where `finish` does nothing.
    """
    placed = {}
    for part in module.modules():
        for name, old in list(part._parameters.items()):
            if old is None or isinstance(old, UninitializedTensorMixin):
                continue  # a lazy module makes its parameters during the first forward
            if id(old) not in placed:
                there = old.detach().to(draw()).clone()
                placed[id(old)] = finish(nn.Parameter(there, old.requires_grad)), old
            part._parameters[name] = placed[id(old)][0]
        for name, old in list(part._buffers.items()):
            if old is not None and not isinstance(old, UninitializedTensorMixin):
                part._buffers[name] = finish(old.to(draw()).clone())
        if isinstance(part, nn.RNNBase):  # keeps its weights a second time
            part._flat_weights = [getattr(part, n, None) for n in part._flat_weights_names]
    return module


def state(module):
    """Parameters, their gradients and the buffers, detached on the CPU."""
    parameters = list(module.parameters())
    return {
        "parameters": [_here(p) for p in parameters],
        "gradients": [None if p.grad is None else _here(p.grad) for p in parameters],
        "buffers": [_here(b) for b in module.buffers()],
    }


def _here(t):
    return t.detach().to("cpu", copy=True)


def strayed(module):
    """Names of parameters whose gradient lies elsewhere."""
    return [
        f"{name}: gradient on {p.grad.device}, parameter on {p.device}"
        for name, p in module.named_parameters()
        if p.grad is not None and p.grad.device != p.device
    ]
