"""Averaged weights and learning rates

Copies of a model that follow it in training, and schedules.
"""

import copy

import pytest
import torch
from support.devices import D1
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import (
    SWALR,
    AveragedModel,
    get_ema_multi_avg_fn,
    get_swa_avg_fn,
    get_swa_multi_avg_fn,
    update_bn,
)

from managed import ManagedTensor

from .common import difference

BATCHES = [torch.linspace(-i, i + 1, 24).sin().reshape(4, 6) for i in range(1, 5)]


def model():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def tensors_of(net):
    return [*net.parameters(), *net.buffers()]


def follow(net, batches=BATCHES, **options):
    """An average of the model's weights over a few steps, with fresh batch statistics."""
    average = AveragedModel(net, **options)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    schedule = SWALR(optimizer, swa_lr=0.05, anneal_epochs=3)
    for batch in batches:
        optimizer.zero_grad()
        net(batch).square().sum().backward()
        optimizer.step()
        schedule.step()
        average.update_parameters(net)
    assert int(average.n_averaged) == len(batches)
    update_bn(batches, average)
    return average.module


@pytest.mark.row(
    "AveragedModel, EMA and SWA, update_bn",
    note="The copy is made where the model is, tensor by tensor",
)
@pytest.mark.parametrize(
    "options",
    [
        {"multi_avg_fn": get_ema_multi_avg_fn(0.9)},
        {"multi_avg_fn": get_ema_multi_avg_fn(0.9), "use_buffers": True},
        {"multi_avg_fn": get_swa_multi_avg_fn()},
        {"avg_fn": get_swa_avg_fn()},
    ],
    ids=["ema", "ema with buffers", "swa", "swa one by one"],
)
def test_averages(place, options):
    plain = model()
    net = place.module(plain)
    average = follow(net, **options)
    expected = tensors_of(follow(plain, **options))
    found = tensors_of(average)
    assert difference(expected, [t.cpu() for t in found]) is None
    assert place.name != "one" or {str(t.device) for t in found} == {D1}
    assert all(isinstance(t, ManagedTensor) for t in found)


@pytest.mark.row(
    "AveragedModel, EMA and SWA, update_bn",
    note="Without avg_fn, PyTorch rounds the average on accelerators and on the CPU differently",
)
def test_the_default_average_is_that_of_plain_torch_on_the_same_device(place):
    plain = model()
    found = [t.cpu() for t in tensors_of(follow(place.module(plain)))]
    there = follow(plain.to(D1), [batch.to(D1) for batch in BATCHES])
    for p, q in zip(tensors_of(there), found, strict=True):
        torch.testing.assert_close(p.cpu(), q, rtol=0, atol=0 if place.name == "one" else 1e-6)


SCHEDULES = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "cosine": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=len(BATCHES) + 1),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[2]
    ),
}


def scheduled(net, kind):
    """Learning rates, losses and weights of training by a schedule."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    schedule = SCHEDULES[kind](optimizer)
    rates, losses = [], []
    for batch in BATCHES:
        optimizer.zero_grad()
        loss = net(batch).square().sum()
        loss.backward()
        optimizer.step()
        schedule.step(*([loss.detach()] if kind == "plateau" else []))
        rates.append(schedule.get_last_lr())
        losses.append(loss.item())
    return rates, losses, [t.detach().cpu() for t in tensors_of(net)]


@pytest.mark.row("torch.optim.lr_scheduler")
@pytest.mark.parametrize("kind", SCHEDULES)
def test_schedules(place, kind):
    plain = model()
    net = place.module(copy.deepcopy(plain))
    assert difference(scheduled(plain, kind), scheduled(net, kind)) is None
    assert all(p.grad.device == p.device for p in net.parameters())
