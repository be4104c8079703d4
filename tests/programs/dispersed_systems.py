"""Spreads objects of the sizes on standard input in five ways; prints what devices hold."""

import gc
import json
import sys

import torch
from torch import nn

import managed
from managed import ManagedModule, ManagedTensor, device_manager

sizes = json.load(sys.stdin)
managed.simulate(devices=5, memory=[f"{n}MiB" for n in (40, 60, 60, 80, 50)])


def bytes_of(n):
    return torch.empty(n, dtype=torch.uint8)


class Layer(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(bytes_of(n), requires_grad=False)


def tensors():
    return [bytes_of(n).as_subclass(ManagedTensor).cuda(disperse=True) for n in sizes]


def found():
    return [bytes_of(n).to(device_manager.find_device(n, disperse=True)) for n in sizes]


def nest():
    return device_manager.cuda([bytes_of(n) for n in sizes], disperse=True)


def layers(how):
    net = ManagedModule.from_module(nn.Sequential(*[Layer(n) for n in sizes]))
    return list(net.cuda(disperse=how).parameters())


result = {}
makers = {
    "tensors": tensors,
    "find_device": found,
    "a nest": nest,
    "layers": lambda: layers(True),
    "parameters": lambda: layers("parameters"),
}
for name, make in makers.items():
    kept = make()
    gc.collect()
    result[name] = [torch.sim.memory_allocated(i) for i in range(5)]
    del kept
    gc.collect()
print(json.dumps(result))
