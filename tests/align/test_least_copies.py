"""No pin anywhere: the least number of copies and of trips home, and the CPU's gradients.

The least is one copy of each operand per device where it is needed, as long as it is not written,
and one trip home per backward pass for each of these copies that has a gradient.
"""

import pytest
import torch
from support.devices import D0, D1, D2, device_name
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import managed
from managed import _C, ManagedModule, ManagedTensor

ASKED = "the program asked for it"


class Count:
    """Copies of operands, trips home and automatic moves while it is open."""

    def __enter__(self):
        self.begin = managed.stats(reset=True)["events"]
        return self

    def __exit__(self, *error):
        events = managed.explain().since(self.begin)
        assert not events.dropped
        copies = [e for e in events if e.kind == "copy"]
        self.trips = sum(e.operator == "gradient" for e in copies)
        self.copies = sum(e.reason != ASKED for e in copies) - self.trips
        self.moves = sum(e.kind == "move" and e.reason != ASKED for e in events)
        assert managed.stats()["copy"] == len(copies)

    def __eq__(self, other):
        return (self.copies, self.trips, self.moves) == (*other, 0)

    def __repr__(self):
        return f"{self.copies} copies, {self.trips} trips home, {self.moves} moves"


def on(device, t):
    return t.detach().clone().to(device).as_subclass(ManagedTensor).detach()


def leaf(device, t):
    return on(device, t).requires_grad_()


def check(plain, there, *, same_order=True):
    for p, q in zip(plain, there, strict=True):
        assert q.grad.device == q.device
        if same_order:
            assert torch.equal(p.grad, q.grad.cpu())
        else:
            assert (p.grad - q.grad.cpu()).abs().max() <= 1e-6 * p.grad.abs().max()


@pytest.fixture
def w():
    return torch.randn(8, 8, requires_grad=True)


@pytest.fixture
def x():
    return torch.randn(512, 8)


HOMES = ["cpu", D2]


@pytest.mark.parametrize("home", HOMES)
def test_two_branches_on_two_devices(home, w, x):
    def branches(w, x, y):
        return [(x @ w).tanh().sum(), (y @ w).sigmoid().sum()]

    y = torch.randn(512, 8)
    torch.autograd.backward(branches(w, x, y))
    v = leaf(home, w)
    with Count() as count:
        torch.autograd.backward(branches(v, on(D0, x), on(D1, y)))
    assert count == (2, 2)
    check([w], [v])


@pytest.mark.parametrize("home", HOMES)
def test_a_layer_used_ten_times_on_alternating_devices(home):
    layer = nn.Linear(8, 8)
    batches = [torch.randn(2**13, 8) for _ in range(10)]  # large, so that the layer goes to them
    there = ManagedModule.from_module(nn.Linear(8, 8))
    there.load_state_dict(layer.state_dict())
    for p in there.parameters():
        _C.move(p, home)
    torch.autograd.backward([layer(x).tanh().sum() for x in batches])
    with Count() as count:
        torch.autograd.backward(
            [there(on(device_name(i % 2), x)).tanh().sum() for i, x in enumerate(batches)]
        )
    assert count == (4, 4)  # weight and bias, to and from each of two devices
    check(layer.parameters(), there.parameters(), same_order=False)


@pytest.mark.not_under_torture("it counts what leaves and comes back")
@pytest.mark.parametrize("make", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_layers_over_devices(make):
    plain = make(8, 8, num_layers=2)
    there = ManagedModule.from_module(make(8, 8, num_layers=2))
    there.load_state_dict(plain.state_dict())
    for i, p in enumerate(there.parameters()):
        _C.move(p, ("cpu", D0, D1, D2)[i % 4])
    x = torch.randn(20, 64, 8)
    plain(x)[0].square().sum().backward()
    elsewhere = sum(p.device != torch.device(D0) for p in there.parameters())
    with Count() as count:
        there(on(D0, x))[0].square().sum().backward()
    assert count == (elsewhere, elsewhere)
    check(plain.parameters(), there.parameters())


@pytest.mark.parametrize("make", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
def test_a_cell_that_runs_over_a_sequence(make):
    def run(cell, x):
        state = None
        for part in x:
            state = cell(part, state)
        return (state[0] if isinstance(state, tuple) else state).square().sum()

    plain = make(8, 8)
    there = ManagedModule.from_module(make(8, 8))
    there.load_state_dict(plain.state_dict())
    for p in there.parameters():
        _C.move(p, D1)  # not placed, or the sequence would go there
    x = torch.randn(6, 2**13, 8)
    run(plain, x).backward()
    with Count() as count:
        run(there, [on(D0, part) for part in x]).backward()
    # Weights and biases once for all six steps, and their gradients once.
    assert count == (4, 4)
    check(plain.parameters(), there.parameters())


@pytest.mark.parametrize("home", HOMES)
def test_tied_weights_across_devices(home, w, x):
    def network(w, tied, x):
        return F.linear(F.linear(x, w).tanh(), tied.t()).square().sum()

    network(w, w, x).backward()
    v = leaf(home, w)
    with Count() as count:
        network(v, v, on(D1, x)).backward()
    assert count == (1, 1)  # the transposed view is read from the same copy
    check([w], [v])


@pytest.mark.parametrize("home", HOMES)
def test_tied_weights_needed_on_two_devices(home, w, x):
    v = leaf(home, w)
    (F.linear(x, w).tanh() @ w).square().sum().backward()
    a = on(D1, x)
    with Count() as count:
        hidden = F.linear(a, v).tanh()
        (hidden.to(D0) @ v).square().sum().backward()
    assert count == (2, 2)  # what goes on to sim:0 was asked for, and its gradient is torch's own
    check([w], [v])


@pytest.mark.parametrize("home", HOMES)
def test_double_backward(home, w, x):
    def penalty(w, x):
        (g,) = torch.autograd.grad((x @ w).tanh().sum(), w, create_graph=True)
        g.square().sum().backward()

    penalty(w, x)
    v, a = leaf(home, w), on(D1, x)
    with Count() as count:
        penalty(v, a)
    # w goes there; its gradient comes home, where the penalty is computed; the penalty's gradient
    # goes there and the second derivative comes home.
    assert (count.copies + count.trips, count.moves) == (4, 0)
    check([w], [v])


@pytest.mark.parametrize("home", HOMES)
def test_a_graph_that_is_used_twice(home, w, x):
    v = leaf(home, w)
    with Count() as count:
        loss = (on(D1, x) @ v).tanh().sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert count == (1, 2)
    loss = (x @ w).tanh().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    check([w], [v])


@pytest.mark.parametrize("home", HOMES)
def test_gradients_that_accumulate(home, w):
    batches = [torch.randn(512, 8) for _ in range(4)]
    v = leaf(home, w)
    optimizers = [torch.optim.SGD([p], lr=0.1) for p in (w, v)]
    with Count() as count:
        for x in batches:
            (on(D1, x) @ v).tanh().sum().backward()
    assert count == (1, 4)
    for x in batches:
        (x @ w).tanh().sum().backward()
    check([w], [v])
    for optimizer in optimizers:
        optimizer.step()
    with Count() as count:
        (on(D1, x) @ v).tanh().sum().backward()
    assert (count.copies, count.trips) == (0, 0)  # four rounds needed it there and nothing at home
    assert v.device == v.grad.device == torch.device(D1)
    (x @ w).tanh().sum().backward()
    check([w], [v])


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(home, reentrant, w, x):
    def block(w, x):
        return (x @ w).tanh() @ w

    def loss(w, x):
        x = x.clone().requires_grad_()
        return checkpoint(block, w, x, use_reentrant=reentrant).square().sum()

    loss(w, x).backward()
    v, a = leaf(home, w), on(D1, x)
    with Count() as count:
        loss(v, a).backward()
    assert count == (1, 1)  # the second forward finds the copy of the first
    check([w], [v])
