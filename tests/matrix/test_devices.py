"""Devices and streams

Default devices, torch.accelerator, streams, events and generators of simulated devices.
"""

import pytest
import torch
from support.devices import D0, D1, D2, D3, DEVICE_TYPE, device_module
from torch import nn

from managed import ManagedModule, ManagedTensor

from .common import managed_on, same


@pytest.mark.row("with torch.device(...), torch.set_default_device", note="new tensors are plain")
def test_default_device(place):
    x = torch.randn(3, 3)
    there = place(x)
    with torch.device(D2):
        fresh = torch.ones(3)
        net = nn.Linear(3, 3)
        same(x + 1, there + fresh)
        assert torch.zeros_like(there).device == there.device
    assert (fresh.device, fresh.__class__) == (torch.device(D2), torch.Tensor)
    assert net.weight.device == torch.device(D2)
    torch.set_default_device(D3)
    try:
        assert (there @ torch.eye(3)).__class__ is ManagedTensor
        assert torch.arange(3).device == torch.device(D3)
    finally:
        torch.set_default_device(None)
    same(x @ net.weight.detach().cpu(), there @ ManagedModule.from_module(net).weight.detach())


@pytest.mark.row("torch.accelerator", note="names the simulated devices")
def test_accelerator():
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device(DEVICE_TYPE)
    assert torch.accelerator.device_count() == 4
    torch.accelerator.set_device_index(2)
    try:
        assert torch.ones(1, device=DEVICE_TYPE).device == torch.device(D2)
        torch.accelerator.synchronize()
        assert torch.accelerator.memory_allocated(2) == device_module.memory_allocated(2)
    finally:
        torch.accelerator.set_device_index(0)


@pytest.mark.row("Streams and events", note="on the devices' virtual clocks")
def test_streams_and_events():
    x, w = torch.randn(64, 64), torch.randn(64, 64)
    a, b = managed_on(x, D1), managed_on(w, "cpu")
    side = torch.Stream(D1)
    start, end = (torch.Event(D1, enable_timing=True) for _ in range(2))
    side.wait_stream(device_module.current_stream(1))
    with side:
        assert device_module.current_stream(1) == side
        start.record()
        out = a @ b
        end.record()
    device_module.current_stream(1).wait_stream(side)
    out.record_stream(device_module.current_stream(1))
    same(x @ w + 1, out + 1)
    side.synchronize()
    assert start.query()
    assert end.query()
    assert start.elapsed_time(end) > 0
    assert device_module.default_stream(1) == device_module.current_stream(1)


@pytest.mark.row("Streams and events", note="a backward pass under a side stream")
def test_backward_on_a_stream():
    x = torch.randn(4, 4, requires_grad=True)
    there = managed_on(x, D2)
    with torch.Stream(D2):
        (there @ there).tanh().sum().backward()
    (x @ x).tanh().sum().backward()
    same(x.grad, there.grad)


@pytest.mark.row("non_blocking copies, pin_memory")
def test_non_blocking(place):
    x = torch.randn(5)
    there = place(x)
    same(x, there.to(D3, non_blocking=True))
    pinned = managed_on(x, "cpu").pin_memory()
    assert pinned.is_pinned()
    same(x, pinned.to(D0, non_blocking=True))
    kept = torch.empty(5).as_subclass(ManagedTensor)
    kept.copy_(there, non_blocking=True)
    same(x, kept)


@pytest.mark.row("Random generators", note="the device of the generator is where the operator runs")
@pytest.mark.parametrize("home", [D1, "cpu", D0])
def test_generators(home):
    odds, drawn = torch.rand(100), []
    for t in (odds.to(D1), managed_on(odds, home)):
        g = torch.Generator(D1).manual_seed(5)
        drawn.append(torch.bernoulli(t, generator=g))
    same(*drawn)
    assert drawn[1].device == torch.device(D1)


@pytest.mark.row("Random numbers", note="one stream: the numbers of one device")
def test_one_stream(place):
    x, drawn = torch.zeros(50), []
    for t in (x.to(D0), place(x)):
        torch.manual_seed(5)
        drawn.append(torch.randn_like(t.to(D0) if t.is_cpu else t))
    same(*drawn)


@pytest.mark.row("torch.random.fork_rng, get_rng_state")
def test_fork_rng():
    x = managed_on(torch.zeros(10), D1)
    with torch.random.fork_rng(range(4), device_type=DEVICE_TYPE):
        first = torch.rand_like(x)
    assert torch.equal(first, torch.rand_like(x))
