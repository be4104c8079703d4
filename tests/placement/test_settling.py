"""Scattered models train as plain ones do and come to rest.

After three steps nothing moves any more, each step copies what the one before copied, and nothing
piles up. How many copies that are is counted by hand for small programs.

The models are those of the conformance sweeps, without dropout and clipping. A seed draws three
devices from the CPU and the four simulated ones, and for every parameter and buffer one of them.
"""

import copy
import gc
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.apart import use_and_write
from support.devices import D0, D1, D2, D3, device_module, device_name
from support.models import MODELS, make
from support.paths import TESTS
from support.seed import SEED
from support.slices import slice_of
from torch import nn

import managed
from managed import _C, ManagedModule, ManagedTensor
from managed._modules import walk

DEVICES = ("cpu", D0, D1, D2, D3)
NAMES = ("mlp", "cnn", "lstm", "encoder", "gpt2", "t5", "llama")
SEEDS = range(5 * SEED, 5 * SEED + 5)
STEPS = 10
RESTLESS = 3  # steps in which tensors may move
ASKED = "the program asked for it"

# Three gradients and more meet here at one tensor (query, key and value; a residual and a norm).
# Those from one device are summed there, and the engine's threads, one a device, bring the sums in
# any order.
SUMS_IN_ANOTHER_ORDER = ("t5", "llama")


# ---- training, and what is written down of each step


@dataclass
class Step:
    loss: torch.Tensor
    start: int  # the last event before it
    copies: int
    written_back: int
    links: dict  # bytes, by "from->to"
    moved: list  # events, of tensors that their traffic moved
    moves: int  # tensors moved in place for whatever reason
    devices: dict

    def traffic(self):
        return self.copies, self.written_back, self.links


def scatter(model, rng):
    """A managed copy of the model, each tensor on one of three devices, all drawn."""
    net = ManagedModule.from_module(copy.deepcopy(model))
    devices = rng.sample(DEVICES, 3)
    for slot in walk.slots([net]):
        _C.move(slot.tensor, rng.choice(devices))
    return net


def devices_of(net):
    return {name: t.device for name, t in [*net.named_parameters(), *net.named_buffers()]}


def run(model, optimizer, loss, batch):
    optimizer.zero_grad()
    value = loss(model, *batch)
    value.backward()
    optimizer.step()
    return value.detach()  # a number for the CPU would be a copy that the program asks for


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def watched(net, optimizer, loss, batch):
    """One step, and all that happened in it."""
    start, moves = managed.stats(reset=True)["events"], _C.move_count()
    value = run(net, optimizer, loss, batch)
    total = managed.stats(reset=True)
    events = managed.explain().since(start)
    assert len(events) == total["events"] - start  # none is forgotten
    return Step(
        loss=value,
        start=start,
        copies=total["copy"],
        written_back=total["write_back"],
        links=total["links"],
        # Models from transformers call .to(device) themselves; that makes another tensor.
        moved=[e for e in events if e.kind == "move" and e.reason != ASKED],
        moves=_C.move_count() - moves,
        devices=devices_of(net),
    )


# ---- ten steps of seven models


def compare(a, b, tolerance):
    if tolerance:
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    else:
        assert torch.equal(a, b)


def assert_settled(steps):
    restless, settled = steps[:RESTLESS], steps[RESTLESS:]
    assert any(s.moved for s in restless), "nothing had to settle"
    for step in settled:
        assert step.moved == []
        assert step.moves == 0
        assert step.devices == restless[-1].devices
        assert step.traffic() == settled[0].traffic()
    assert settled[0].copies < restless[0].copies


def assert_least(net, start):
    """A parameter goes to a device once a step, however often it is used there, and what goes out
    comes home once as a gradient: less is not possible.
    """
    for name, p in net.named_parameters():
        history = managed.explain(p).since(start)
        copies = [e for e in history if e.kind == "copy" and e.reason != ASKED]
        out = Counter(e.target for e in copies if e.operator != "gradient")
        home = Counter(e.source for e in copies if e.operator == "gradient")
        assert set(out.values()) <= {1}, name
        assert home == out, name


def train_scattered(name, seed):
    model, batches, loss = make(name, seed, STEPS)
    net = scatter(model, random.Random(seed))
    assert len(set(devices_of(net).values())) > 1
    optimizer = adamw(net)
    return net, [watched(net, optimizer, loss, batch) for batch in batches]


@pytest.mark.not_under_torture("the history forgets what it counts")
@pytest.mark.parametrize("seed", slice_of(SEEDS))
@pytest.mark.parametrize("name", NAMES)
def test_ten_steps(name, seed):
    model, batches, loss = make(name, seed, STEPS)
    optimizer = adamw(model)
    expected = [run(model, optimizer, loss, batch) for batch in batches]
    net, steps = train_scattered(name, seed)
    tolerance = 1e-6 if name in SUMS_IN_ANOTHER_ORDER else 0
    for value, step in zip(expected, steps, strict=True):
        compare(step.loss.cpu(), value, tolerance)
    ours = net.state_dict()
    for key, value in model.state_dict().items():
        compare(ours[key].cpu(), value, tolerance)
    assert_settled(steps)
    assert_least(net, steps[-1].start)


@pytest.mark.not_under_torture("the history forgets what it counts")
@pytest.mark.parametrize("seed", slice_of(SEEDS))
@pytest.mark.parametrize("name", SUMS_IN_ANOTHER_ORDER)
def test_a_run_repeats_to_the_bit_with_the_backward_pass_in_one_thread(name, seed):
    with torch.autograd.set_multithreading_enabled(False):
        (net, steps), (again, steps_again) = (train_scattered(name, seed) for _ in range(2))
    for a, b in zip(steps, steps_again, strict=True):
        assert torch.equal(a.loss, b.loss)
        assert a.traffic() == b.traffic()
    theirs = again.state_dict()
    for key, value in net.state_dict().items():
        assert torch.equal(value.cpu(), theirs[key].cpu())


# ---- three hundred steps


def allocated():
    return [device_module.memory_allocated(d) for d in range(device_module.device_count())]


def held():
    """Bytes on the devices, by owner as well, and Python objects."""
    gc.collect()
    owners = ("managed", "replica", "reserved", "foreign")
    devices = managed.stats()["devices"]
    return {
        "bytes": allocated(),
        "owners": {name: [d[owner] for owner in owners] for name, d in devices.items()},
        "objects": len(gc.get_objects()),
    }


def wait_for(measure, expected):
    """The engine's threads drop their last tensors a little after backward() has returned."""
    deadline = time.monotonic() + 20
    while measure() != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    return measure()


def three_hundred_steps(name):
    before = allocated()
    model, _, loss = make(name, SEED, 0)
    batch = MODELS[name][1]  # a new one each step: a copy of a batch lives as long as the batch
    net = scatter(model, random.Random(SEED))
    optimizer = adamw(net)
    for _ in range(RESTLESS):
        run(net, optimizer, loss, batch())
    earlier, settled = None, held()
    while settled != earlier:  # an answer is some objects itself; engine threads drop theirs late
        earlier, settled = settled, held()
    moves = _C.move_count()
    assert settled["bytes"] != before
    for _ in range(RESTLESS, 300):
        run(net, optimizer, loss, batch())
    now = wait_for(held, settled)
    assert now == settled, (now, settled)
    assert _C.move_count() == moves
    del net, optimizer
    gc.collect()
    assert wait_for(allocated, before) == before


@pytest.mark.not_under_torture("it counts what devices hold")
@pytest.mark.parametrize("name", slice_of(["mlp", "encoder"]))
def test_three_hundred_steps(name, run_python):
    """In an interpreter of its own: those of other tests have objects that come and go."""
    code = """
    import sys
    import managed

    managed.simulate(devices=4, memory="256MiB")
    sys.path[:0] = sys.argv[2:]
    from test_settling import three_hundred_steps

    three_hundred_steps(sys.argv[1])
    """
    run_python(code, name, Path(__file__).parent, TESTS)


# ---- exactly so many copies, counted by hand


def at(device, *shape):
    """Stands there and was only wrapped: what the program puts somewhere stays, test_placed.py."""
    return torch.randn(shape).to(device).as_subclass(ManagedTensor).clone()


def leaf(device, *shape):
    return at(device, *shape).requires_grad_()


def layer(device, *sizes):
    made = ManagedModule.from_module(nn.Linear(*sizes, bias=False))
    _C.move(made.weight, device)
    return made


def counted(work, steps=5):
    """Of each step: copies, bytes by link, and moves in place (an optimizer's states count too)."""
    found = []
    for _ in range(steps):
        managed.stats(reset=True)
        moves = _C.move_count()
        work()
        total = managed.stats(reset=True)
        found.append((total["copy"], total["links"], _C.move_count() - moves))
    return found


def training(net, loss, batch):
    optimizer = adamw(net)
    return lambda: run(net, optimizer, loss, (batch(),))


def mean_square(net, batch):
    return net(batch).square().mean()


@pytest.mark.not_under_torture("it counts what leaves and comes back")
def test_two_layers_on_two_devices():
    """Three copies: the batch, which is on the CPU, to the first layer; what comes out of it to the
    second; and that one's gradient back, by which alone the first layer learns. The batch needs no
    gradient, and each weight is used where it is, with its gradient and the optimizer's states.
    """
    net = nn.Sequential(layer(D0, 16, 32), nn.ReLU(), layer(D1, 32, 64))
    batch, hidden = 4 * 8 * 16, 4 * 8 * 32
    links = {f"cpu->{D0}": batch, f"{D0}->{D1}": hidden, f"{D1}->{D0}": hidden}
    steps = counted(training(net, mean_square, lambda: torch.randn(8, 16)))
    assert steps == [(3, links, 0)] * 5


@pytest.mark.not_under_torture("it counts what leaves and comes back")
def test_a_bias_that_is_elsewhere_comes_where_it_is_used():
    """In the first step it is copied and its gradient goes back. In the second it moves, which
    costs what the copy would have cost, and the two states of AdamW follow. Then nothing but the
    batch is left to copy.
    """
    net = ManagedModule.from_module(nn.Linear(16, 32))
    _C.move(net.weight, D0)
    _C.move(net.bias, D1)
    batch, bias = 4 * 8 * 16, 4 * 32
    steps = counted(training(net, mean_square, lambda: torch.randn(8, 16)))
    assert steps == [
        (3, {f"cpu->{D0}": batch, f"{D1}->{D0}": bias, f"{D0}->{D1}": bias}, 0),
        (1, {f"cpu->{D0}": batch, f"{D1}->{D0}": 3 * bias}, 3),
        *[(1, {f"cpu->{D0}": batch}, 0)] * 3,
    ]
    assert net.bias.device == torch.device(D0)


def test_a_leaf_does_not_leave_a_view_of_its_gradient_behind():
    net = ManagedModule.from_module(nn.Linear(16, 32))
    _C.move(net.weight, D0)
    _C.move(net.bias, D1)

    def step():
        net(torch.randn(8, 16)).sum().backward()
        with torch.no_grad():
            net.bias.sub_(0.1)

    step()
    row = net.bias.grad[:4]
    for _ in range(4):
        step()
        assert torch.equal(row, net.bias.grad[:4])
    assert net.bias.device == torch.device(D1)
    del row
    for _ in range(2):
        step()
    assert net.bias.device == net.bias.grad.device == torch.device(D0)


@pytest.mark.not_under_torture("it counts what leaves and comes back")
@pytest.mark.parametrize("uses", [1, 2, 10])
def test_a_weight_that_two_devices_need(uses):
    """It stays, since its home needs it as well. However often the other device uses it, and
    whether transposed or not, one copy goes there and one sum of gradients comes home: the
    optimizer writes the weight in each step, so that the copy of the step before serves no more.
    """
    w = leaf(D0, 8, 8)
    here, there = (at(device, 64, 8) for device in (D0, D1))
    optimizer = torch.optim.AdamW([w], lr=1e-3)

    def step():
        optimizer.zero_grad()
        x = there
        for k in range(uses):
            x = x @ (w if k % 2 else w.t())
        torch.autograd.backward([x.mean(), (here @ w).mean()])
        optimizer.step()

    size = 4 * 8 * 8
    links = {f"{D0}->{D1}": size, f"{D1}->{D0}": size}
    assert counted(step) == [(2, links, 0)] * 5


@pytest.mark.not_under_torture("it counts what leaves and comes back")
def test_a_weight_that_nobody_writes():
    """Its copy serves in every later step: what is left is the gradient's way home."""
    w = leaf(D0, 8, 8)
    here, there = (at(device, 64, 8) for device in (D0, D1))
    size = 4 * 8 * 8

    def step():
        torch.autograd.grad([(there @ w).mean(), (here @ w).mean()], w)

    home = {f"{D1}->{D0}": size}
    assert counted(step) == [(2, home | {f"{D0}->{D1}": size}, 0), *[(1, home, 0)] * 4]


# ---- programs that do not settle


def rounds_until_moved(w, device):
    """How often `device` needs w, and nobody else does, until w lives there."""
    x = at(device, 64, 8).pin()
    for k in range(100):
        use_and_write(x, w)
        if w.device == x.device:
            return k
    raise AssertionError("it never moved")


def test_each_move_asks_for_twice_as_many_rounds():
    """A program whose needs change costs ever fewer moves. What it asks for does not count."""
    w = leaf(D0, 8, 8)
    assert [rounds_until_moved(w, device_name(1 + k % 2)) for k in range(5)] == [1, 2, 4, 8, 16]

    w = leaf(D0, 8, 8)
    for device in (D3, "cpu", D2, "cpu"):
        _C.move(w, device)
    assert [rounds_until_moved(w, device_name(1 + k % 2)) for k in range(3)] == [1, 2, 4]


def test_a_program_that_moves_it_back_is_overruled_ever_more_rarely():
    w, x, overruled = leaf(D0, 8, 8), at(D1, 64, 8).pin(), []
    for k in range(40):
        _C.move(w, D0)
        use_and_write(x, w)
        if w.device == x.device:
            overruled.append(k)
    assert overruled == [1, 4, 9, 18, 35]


def test_graphs_from_before_a_move_still_lead_to_the_leaf():
    """A gradient asked for by name was "not used in the graph" after its leaf had moved."""
    w = torch.ones(4, device=D0).as_subclass(ManagedTensor).clone().requires_grad_()
    x = torch.full((64, 4), 2.0, device=D1).as_subclass(ManagedTensor)

    def use():
        return (w * x).sum()

    kept, pending = use(), use()
    kept.backward(retain_graph=True)
    for _ in range(3):
        with torch.no_grad():
            w.add_(0)
        use().backward()
    assert w.device == torch.device(D1)
    for loss in (kept, pending):
        (gradient,) = torch.autograd.grad(loss, w, retain_graph=True)
        assert gradient.device == w.device
        assert gradient.tolist() == [128.0] * 4
    w.grad = None
    (kept + pending).backward()
    assert w.grad.device == w.device
    assert w.grad.tolist() == [256.0] * 4
