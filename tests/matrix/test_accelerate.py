"""Accelerate

Its hooks put a model's tensors where they say; managed aligns what is left.
"""

import copy
import gc

import pytest
import torch
from accelerate import Accelerator, cpu_offload, dispatch_model
from accelerate.hooks import AlignDevicesHook, add_hook_to_module, remove_hook_from_submodules
from accelerate.utils import find_executable_batch_size
from support.devices import D0, D1, D2, D3, device_module
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from managed import ManagedModule, ManagedTensor

from .common import Place, difference, managed_on

X = torch.arange(12.0).reshape(3, 4)


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def gradients(net):
    """What a model gives in training, and its gradients, on the CPU."""
    net.train()
    y = net(X)
    y.square().sum().backward()
    return y.detach().cpu(), [p.grad.cpu() for p in net.parameters()]


@pytest.mark.row("dispatch_model", note="It moves what was scattered before")
@pytest.mark.parametrize("before", ["cpu", "one", "mixed"])
def test_dispatch_model(model, before):
    net = (
        Place(before).module(model)
        if before != "cpu"
        else ManagedModule.from_module(copy.deepcopy(model))
    )
    parts = {"0": D0, "1": D1, "2": D1, "3": D2}
    net = dispatch_model(net, parts, main_device=D0)
    assert difference(gradients(model), gradients(net)) is None
    for name, p in net.named_parameters():
        assert str(p.device) == str(p.grad.device) == parts[name[0]]
        assert isinstance(p, ManagedTensor)


@pytest.mark.row(
    "cpu_offload", note="While offloaded, parameters are plain meta tensors; managed once back"
)
def test_cpu_offload(model, place):
    expected = model.eval()(X).detach()
    net = place.module(model)
    homes = [p.device for p in net.parameters()]
    cpu_offload(net, torch.device(D1))
    with torch.no_grad():
        assert torch.equal(net(X).cpu(), expected)
    assert all(p.is_meta for p in net.parameters())
    remove_hook_from_submodules(net)
    assert [p.device for p in net.parameters()] == homes
    for p, q in zip(model.parameters(), net.parameters(), strict=True):
        assert isinstance(q, ManagedTensor)
        assert torch.equal(p, q.cpu())


@pytest.mark.row("AlignDevicesHook")
def test_align_devices_hook(model, place):
    net = place.module(model)
    for layer in net:
        add_hook_to_module(layer, AlignDevicesHook(D2, io_same_device=True))
    expected = model(X).detach()
    y = net(X)
    assert y.is_cpu
    assert torch.equal(y, expected)
    assert {str(t.device) for t in (*net.parameters(), *net.buffers())} == {D2}
    assert all(isinstance(t, ManagedTensor) for t in (*net.parameters(), *net.buffers()))


def train(net, accelerator=None):
    """Losses and weights of one epoch, with everything prepared by `accelerator`."""
    net.train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(X.repeat(2, 1)), 3)
    if accelerator is not None:
        net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    losses = []
    for (batch,) in loader:
        optimizer.zero_grad()
        loss = net(batch).square().sum()
        if accelerator is None:
            loss.backward()
        else:
            accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses, [t.detach().cpu() for t in (*net.parameters(), *net.buffers())]


@pytest.mark.row(
    "Accelerator.prepare",
    note="It moves a model to its own device, unless device_placement=False",
)
@pytest.mark.parametrize("moves", [True, False])
def test_prepare(model, place, moves):
    net = place.module(model)
    accelerator = Accelerator(cpu=True, device_placement=moves)
    assert difference(train(model), train(net, accelerator)) is None
    assert all(isinstance(p, ManagedTensor) for p in net.parameters())
    assert all(p.grad.device == p.device for p in net.parameters())
    assert all(p.is_cpu for p in net.parameters()) == moves


@pytest.mark.row(
    "find_executable_batch_size", note="It knows a full simulated device by its OutOfMemoryError"
)
def test_find_executable_batch_size():
    gc.collect()
    free, capacity = device_module.mem_get_info(D3)
    row = 1024
    device_module.set_capacity(capacity - free + 64 * row, D3)
    asked = []

    @find_executable_batch_size(starting_batch_size=64)
    def run(rows):
        asked.append(rows)
        x = managed_on(torch.zeros(rows, row, dtype=torch.int8), D3)
        return len(x * 1)  # twice the bytes

    try:
        rows = run()
    finally:
        device_module.set_capacity(capacity, D3)
    assert asked[0] == 64
    assert asked == sorted(asked, reverse=True)
    assert 1 <= asked[-1] == rows <= 32 < asked[-2]
