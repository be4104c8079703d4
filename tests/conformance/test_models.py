"""Models that train: on one simulated device, and with every parameter on a drawn device.

No gradient clipping: the order of a norm over devices is not the order on one device.
"""

import copy
import random

import pytest
import torch
from support.compare import difference, tensors
from support.devices import D1
from support.models import MODELS, make
from support.scattering import managed_, scatter, state, strayed

from .operators import left_over
from .placement import ACCELERATORS, Scattered

OPTIMIZERS = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "AdamW, one by one": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False),
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, foreach=True),
}


def train(model, batches, loss, optimizer, put=lambda t: t):
    """What each step computes and leaves behind: loss, parameters, gradients and buffers."""
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    history = []
    for k, batch in enumerate(batches):
        torch.manual_seed(100 + k)
        optimizer.zero_grad()
        value = loss(model, *map(put, batch))
        value.backward()
        assert not strayed(model)
        optimizer.step()
        history.append({"loss": value.detach().cpu(), **state(model)})
    return history


# Three gradients and more meet at one tensor, and those from one device are summed there.
SUMS_IN_ANOTHER_ORDER = ("llama", "t5")


def check(expected, actual, tolerance=0.0):
    if not difference(expected, actual, form=False):
        return
    for a, b in zip(tensors(expected), tensors(actual), strict=True):
        far = (a - b).abs().max().item() if a.numel() else 0.0
        assert far <= tolerance * max(1.0, a.abs().max().item()), f"{far} apart"


# In the short run one optimizer is enough; `-m conformance` takes the others.
FIRST, *OTHERS = OPTIMIZERS
FEW = [FIRST, *(pytest.param(name, marks=pytest.mark.conformance) for name in OTHERS)]


@pytest.mark.parametrize("optimizer", FEW)
@pytest.mark.parametrize("name", MODELS)
def test_on_a_device(name, optimizer, seed):
    on_a_device(name, optimizer, seed)
    assert not left_over()


def on_a_device(name, optimizer, seed):
    model, batches, loss = make(name, seed, steps=4)
    device = random.Random(f"{seed}/{name}").choice(ACCELERATORS)
    there = scatter(copy.deepcopy(model), lambda: device, finish=lambda t: t)
    expected = train(model, batches, loss, optimizer)
    actual = train(there, batches, loss, optimizer, lambda t: t.to(device))
    assert {p.device for p in there.parameters()} == {torch.device(device)}
    check(expected, actual)


def test_attention_fast_path():
    """A fused kernel that asks whether query, key and value are one tensor.

    It then makes one product of three, which shows in the last bits from two threads on.
    """
    torch.set_num_threads(2)
    net = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    there = scatter(copy.deepcopy(net), lambda: D1, finish=lambda t: t)
    x = torch.randn(2, 5, 16)
    y = x.to(D1)
    with torch.no_grad():
        expected = net(x, x, x, need_weights=False)
        assert not difference(expected, there(y, y, y, need_weights=False))


def scattered(name, draw, optimizer, seed):
    model, batches, loss = make(name, seed, steps=4)
    there = scatter(copy.deepcopy(model), draw)
    assert len({p.device for p in there.parameters()}) > 1
    expected = train(model, batches, loss, optimizer)
    actual = train(there, batches, loss, optimizer, lambda t: managed_(t.to(draw())))
    check(expected, actual, 1e-5 if name in SUMS_IN_ANOTHER_ORDER else 0.0)


@pytest.mark.parametrize("name", MODELS)
def test_scattered(name, seed):
    rng = random.Random(f"{seed}/{name}")
    scattered(name, lambda: rng.choice(Scattered.devices), FIRST, seed)
    assert not left_over()


@pytest.mark.conformance
@pytest.mark.parametrize("draws", range(3))
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("devices", [Scattered.devices, ACCELERATORS], ids=["all", "accelerators"])
@pytest.mark.parametrize("name", MODELS)
def test_scattered_in_many_ways(name, devices, optimizer, draws, seed):
    rng = random.Random(f"{seed}/{name}/{draws}")
    scattered(name, lambda: rng.choice(devices), optimizer, seed + draws)
    assert not left_over()
