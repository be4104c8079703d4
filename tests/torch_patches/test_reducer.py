"""DistributedDataParallel of managed modules on devices, while bytes leave them."""

import copy
import gc

import pytest
import torch
import torch.distributed as dist
from support.devices import D1, D2, ON_CUDA
from support.pressure import BYTES, PRESSURES, pressed
from support.slices import slice_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import managed
from managed import ManagedModule


@pytest.fixture(autouse=True)
def group_of_one():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def deep(width=16):
    torch.manual_seed(3)
    layers = [nn.Linear(6, width)]
    for _ in range(6):
        layers += [nn.Tanh(), nn.Linear(width, width)]
    return nn.Sequential(*layers)


def train(model, **options):
    """Losses of three steps, and the weights after them."""
    draw = torch.Generator().manual_seed(4)
    wrapped = DistributedDataParallel(model, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = wrapped(torch.randn(4, 6, generator=draw)).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in model.parameters()]


def spread(net):
    there = ManagedModule.from_module(copy.deepcopy(net)).to(D1)
    there[6:].to(D2)
    return there


@pytest.mark.parametrize(
    "options", [{}, {"gradient_as_bucket_view": True}], ids=["copies", "views"]
)
@pytest.mark.parametrize("pressure", slice_of(PRESSURES, 0))
def test_gradients_are_home_when_the_reducer_looks_at_them(pressure, options):
    if ON_CUDA and pressure == "budget":
        pytest.skip("torch's allocator takes 2 MiB at once")
    net = deep()
    before = managed.stats()["restore"]
    losses, weights = pressed(pressure, lambda: train(spread(net), **options))
    assert managed.stats()["restore"] > before
    wanted, plain = train(net, **options)
    assert losses == wanted
    assert all(map(torch.equal, weights, plain))


def test_a_gradient_may_leave_when_the_reducer_has_used_it():
    there = spread(deep(128))
    train(there)
    assert stays(there) == [False] * 6


def stays(there):
    """Whether gradients stay that could leave."""
    managed._C.spill_all()
    return [not managed._C.is_spilled(p.grad) for p in there.parameters() if p.nbytes >= BYTES]


def test_a_pass_that_is_not_reduced_keeps_no_gradient_at_home():
    there = spread(deep(128))
    wrapped = DistributedDataParallel(there)
    with wrapped.no_sync():
        wrapped(torch.randn(4, 6)).sum().backward()
        assert not any(stays(there))
    there(torch.randn(4, 6)).sum().backward()
    hooks = [len(p._post_accumulate_grad_hooks or ()) for p in there.parameters()]
    assert set(hooks) == {1}
    del wrapped
    gc.collect()
    assert not any(p._post_accumulate_grad_hooks for p in there.parameters())
    there(torch.randn(4, 6)).sum().backward()
    assert not any(stays(there))
