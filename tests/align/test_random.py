"""One stream of random numbers: managed tensors draw what one device would, wherever they are.

What is compared with is the same program in plain tensors on one simulated device.
"""

import contextlib
import copy
import random
import threading

import pytest
import torch
import torch.nn.functional as F
from support.devices import D0, D1, D2, D3, DEVICE_TYPE, ON_CUDA, device_module, device_name
from support.seed import SEED
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import managed
from managed import _C, ManagedModule, ManagedTensor

DEVICES = [device_name(i) for i in range(4)]


def managed_on(t, device):
    return t.to(device).as_subclass(ManagedTensor)


def states():
    return device_module.get_rng_state_all()


# ---- operators


LSTM = nn.LSTM(4, 4, 3, dropout=0.5)


def lstm(x):
    return copy.deepcopy(LSTM).to(x.device)(x)[0]


def attend(x):
    x = x.unsqueeze(0)
    return F.scaled_dot_product_attention(x, x, x, dropout_p=0.4)


def chances(x):
    return torch.sigmoid(x.detach())


OPERATORS = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout_": lambda x: F.dropout(x.clone(), 0.3, inplace=True),
    "dropout2d": lambda x: F.dropout2d(x.unsqueeze(0), 0.3),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x, 0.3, training=True),
    "native_dropout": lambda x: torch.native_dropout(x, 0.3, True)[0],
    "rrelu": lambda x: F.rrelu(x, training=True),
    "rrelu_": lambda x: F.rrelu(x.clone(), training=True, inplace=True),
    "attention": attend,
    "lstm": lstm,
    "gumbel_softmax": lambda x: F.gumbel_softmax(x),
    "bernoulli": lambda x: torch.bernoulli(chances(x)),
    "bernoulli of p": lambda x: torch.bernoulli(x.detach(), 0.4),
    "bernoulli_": lambda x: x.detach().clone().bernoulli_(0.4),
    "bernoulli_ of a tensor": lambda x: x.detach().clone().bernoulli_(chances(x)),
    "bernoulli out": lambda x: torch.bernoulli(chances(x), out=torch.empty_like(x)),
    "multinomial": lambda x: torch.multinomial(chances(x).flatten(), 7),
    "multinomial again": lambda x: torch.multinomial(chances(x).flatten(), 40, replacement=True),
    "poisson": lambda x: torch.poisson(chances(x) * 4),
    "binomial": lambda x: torch.binomial(torch.full_like(x, 9), chances(x)),
    "gamma": lambda x: torch._standard_gamma(chances(x)),
    "dirichlet": lambda x: torch._sample_dirichlet(chances(x)),
    "normal": lambda x: torch.normal(x.detach(), chances(x)),
    "normal of a float": lambda x: torch.normal(1.5, chances(x)),
    "normal out": lambda x: torch.normal(x.detach(), 2.0, out=torch.empty_like(x)),
    "randn_like": torch.randn_like,
    "rand_like": torch.rand_like,
    "randint_like": lambda x: torch.randint_like(x, 3, 90),
    "randn_like, transposed": lambda x: torch.randn_like(x.transpose(0, 1)),
    "randn_like of an integer": lambda x: torch.randn_like(x.long(), dtype=torch.float64),
    **{
        name: lambda x, name=name, args=args: getattr(x.detach().clone(), name)(*args)
        for name, args in {
            "normal_": (1, 2),
            "uniform_": (1, 2),
            "exponential_": (),
            "cauchy_": (),
            "log_normal_": (),
            "geometric_": (0.3,),
            "random_": (),
        }.items()
    },
    "an initialiser": lambda x: nn.init.kaiming_uniform_(x.detach().clone()),
    "vmap, different": lambda x: torch.vmap(F.dropout, randomness="different")(x),
    "vmap, same": lambda x: torch.vmap(torch.randn_like, randomness="same")(x),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_draws_from_the_first_device(name, device):
    run, x = OPERATORS[name], torch.randn(6, 5, 4)
    plain = x.to(D0).requires_grad_()
    there = managed_on(x, device).requires_grad_()
    told = []
    for t in (plain, there):
        torch.manual_seed(SEED + 1)
        before = states()
        out = run(t)
        again = run(t)
        if out.requires_grad:
            (out * again).sum().backward()
        after = states()
        told.append([out.cpu(), again.cpu(), t.grad is None or t.grad.cpu(), after[0]])
        assert not torch.equal(before[0], after[0])
        assert all(torch.equal(a, b) for a, b in zip(before[1:], after[1:], strict=True))
        assert out.device == t.device
        t.grad = None
    for one, other in zip(*told, strict=True):
        assert one is other is True or torch.equal(one, other), name


def test_operands_apart_and_a_device_that_is_named():
    mean, std = managed_on(torch.randn(9), D1), managed_on(torch.rand(9), D3)
    torch.manual_seed(4)
    expected = torch.normal(mean.to(D0), std.to(D0)), torch.randn(9, device=D0)
    torch.manual_seed(4)
    assert torch.equal(torch.normal(mean, std).cpu(), expected[0].cpu())
    own = device_module.get_rng_state(2)
    there = torch.randn_like(mean, device=D2)
    assert there.device == torch.device(D2)
    assert torch.equal(there.cpu(), expected[1].cpu())
    assert torch.equal(device_module.get_rng_state(2), own)


def test_four_worlds_draw_four_vectors():
    torch.manual_seed(0)
    worlds = [managed_on(torch.zeros(5), d) for d in DEVICES]
    noise = torch.stack([torch.randn_like(w).cpu() for w in worlds])
    torch.manual_seed(0)
    one = torch.stack([torch.randn_like(torch.zeros(5, device=D0)).cpu() for _ in DEVICES])
    assert torch.equal(noise, one)
    assert len(noise.unique(dim=0)) == 4


def test_plain_tensors_and_generators_of_the_program_are_as_before():
    x = managed_on(torch.zeros(4), D2)
    torch.manual_seed(0)
    own = torch.rand(3, 4, device=D2)  # of that device's stream
    g = torch.Generator(D2).manual_seed(7)
    given = torch.rand(4, device=D2, generator=g)
    torch.manual_seed(0)
    g.manual_seed(7)
    first = device_module.get_rng_state(0)
    for row in own:
        assert torch.equal(torch.rand(4, device=D2), row)
        x.uniform_(generator=g) if row is own[0] else torch.rand_like(x)
    g.manual_seed(7)
    assert torch.equal(x.uniform_(generator=g).cpu(), given.cpu())
    assert not torch.equal(device_module.get_rng_state(0), first)  # rand_like, twice
    device_module.set_rng_state(first, 0)
    x.uniform_(generator=g)
    assert torch.equal(device_module.get_rng_state(0), first)
    # The CPU's stream is the CPU's.
    torch.manual_seed(5)
    expected = torch.randn(4)
    torch.manual_seed(5)
    assert torch.equal(torch.randn_like(torch.zeros(4).as_subclass(ManagedTensor)), expected)


# ---- torch's own functions govern the stream


def draw(*devices):
    return [torch.randn_like(managed_on(torch.zeros(3), d)).tolist() for d in devices]


def test_states_seeds_and_forks():
    state = device_module.get_rng_state(D0)
    a = draw(D3, D1)
    device_module.set_rng_state(state, D0)
    assert draw(D0, D2) == a
    device_module.set_rng_state_all([state] * 4)
    with torch.random.fork_rng(devices=[D0], device_type=DEVICE_TYPE):
        assert draw(D2, D0) == a
    with torch.random.fork_rng(devices=range(4), device_type=DEVICE_TYPE):
        assert draw(D1) == a[:1]
        torch.manual_seed(9)
        seeded = draw(D1, D3)
        device_module.manual_seed_all(9)
        assert draw(D2, D0) == seeded
    assert draw(D1, D1) == a
    torch.manual_seed(9)
    assert draw(D3, D2) == seeded


class Doubling(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_modes_see_and_do_not_change_the_numbers():
    x = managed_on(torch.randn(6), D2)
    told = []
    for device in (D0, D2):
        torch.manual_seed(1)
        with Doubling():
            first = F.dropout(managed_on(x, device)).cpu()
        with torch.autocast(DEVICE_TYPE, torch.bfloat16):
            second = F.dropout(managed_on(x, device)).cpu()
        told.append((first, second))
    assert all(torch.equal(a, b) for a, b in zip(*told, strict=True))


@pytest.mark.xfail(
    ON_CUDA, reason="generators of two devices lock the state that they share apart", strict=False
)
def test_threads_share_the_stream():
    """Each number of the stream is drawn once, whoever draws it."""
    torch.manual_seed(3)
    expected = torch.rand(8 * 40, 5, device=D0, dtype=torch.float64)
    torch.manual_seed(3)
    drawn, lock = [], threading.Lock()

    def work(device):
        x = managed_on(torch.zeros(5, dtype=torch.float64), device)
        mine = [torch.rand_like(x).cpu() for _ in range(40)]
        with lock:
            drawn.extend(mine)

    threads = [threading.Thread(target=work, args=(DEVICES[i % 4],)) for i in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert sorted(t.tolist() for t in drawn) == sorted(expected.cpu().tolist())


# ---- programs


class Noisy(nn.Module):
    """Draws in all the ways that layers draw."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.lstm = nn.LSTM(8, 8, 2, dropout=0.3, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)
        self.norm, self.last = nn.LayerNorm(8), nn.Linear(8, 6)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        h = self.drop(F.rrelu(self.first(x), training=True))
        h = self.lstm(h)[0]
        h = self.attention(h, h, h, need_weights=False)[0] + 0.1 * torch.randn_like(h)
        h = F.scaled_dot_product_attention(h, h, h, dropout_p=0.2)
        h = self.norm(h) * torch.bernoulli(torch.sigmoid(h.detach()))
        chosen = torch.multinomial(torch.softmax(h.detach()[..., 0], -1), 3)
        return x + self.last(h + h.gather(1, chosen[..., :1, None].expand(-1, h.size(1), 8)))


CHECKPOINTS = {
    "no checkpoint": None,
    "reentrant": {"use_reentrant": True},
    "not reentrant": {"use_reentrant": False},
    "reentrant, not preserved": {"use_reentrant": True, "preserve_rng_state": False},
    "not reentrant, not preserved": {"use_reentrant": False, "preserve_rng_state": False},
}


def train(blocks, x, options, steps=3):
    """The losses, and the parameters and the stream after some steps."""
    blocks.train()
    optimizer = torch.optim.AdamW(blocks.parameters(), lr=0.01)
    torch.manual_seed(SEED + 5)
    losses = []
    for _ in range(steps):
        h = x
        for block in blocks:
            h = block(h) if options is None else checkpoint(block, h, **options)
        loss = h.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in blocks.parameters()], states()[0], torch.rand(3)


def same(one, other):
    assert one[0] == other[0]
    assert all(torch.equal(a, b) for a, b in zip(one[1], other[1], strict=True))
    assert torch.equal(one[2], other[2]), "the stream went on elsewhere"
    assert torch.equal(one[3], other[3]), "the CPU's stream was touched"


@pytest.fixture(scope="module")
def expected():
    known = {}

    def of(name):
        if name not in known:
            torch.manual_seed(SEED)
            blocks = nn.Sequential(Noisy(), Noisy(), Noisy())
            x = torch.randn(3, 5, 6)
            given = [p.detach().clone() for p in blocks.parameters()]
            told = train(blocks.to(D0), x.to(D0).requires_grad_(), CHECKPOINTS[name])
            known[name] = given, x, told
        return known[name]

    return of


@pytest.fixture(autouse=True)
def copies_are_expected():
    """What is scattered is copied often; here it is not meant to be fast."""
    before, managed.COPY_WARNING = managed.COPY_WARNING, 0
    yield
    managed.COPY_WARNING = before


def model(given):
    blocks = nn.Sequential(Noisy(), Noisy(), Noisy())
    with torch.no_grad():
        for p, v in zip(blocks.parameters(), given, strict=True):
            p.copy_(v)
    return ManagedModule.from_module(blocks)


def place(blocks, how, rng):
    """Puts the blocks, or every parameter, on devices of the list that `how` names."""
    kind, count = how.split()
    devices = DEVICES[-int(count) :]
    for i, block in enumerate(blocks):
        there = devices[i % len(devices)]
        for p in block.parameters():
            _C.move(p, there if kind == "blocks" else rng.choice(devices))


HOW = ["blocks 1", "scattered 2", "blocks 4", "scattered 4", "tortured 4"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_training_has_the_bits_of_one_device(expected, name, how):
    given, x, told = expected(name)
    blocks = model(given)
    place(blocks, how, random.Random(SEED))
    xs = managed_on(x, DEVICES[-1]).requires_grad_()
    with managed.debug.torture(seed=0) if "tortured" in how else contextlib.nullcontext():
        same(told, train(blocks, xs, CHECKPOINTS[name]))


@pytest.mark.parametrize("name", ["no checkpoint", "not reentrant"])
def test_pinned_and_dispersed(expected, name):
    given, x, told = expected(name)
    blocks = model(given)
    place(blocks, "blocks 4", random.Random(SEED + 1))
    blocks.pin()
    same(told, train(blocks, managed_on(x, D3).requires_grad_(), CHECKPOINTS[name]))
    blocks = model(given)
    blocks.cuda(disperse=True)
    same(told, train(blocks, x.as_subclass(ManagedTensor).requires_grad_(), CHECKPOINTS[name]))


def branches(blocks, x, options, steps=3):
    """Functions whose replays run in the threads of several devices at once."""
    for step in range(steps):
        torch.manual_seed(SEED + step)
        outs = [checkpoint(b, x, **options) for b in blocks for _ in range(3)]
        # A sum per branch, so that no order of adding matters.
        torch.autograd.backward([o.square().sum() for o in outs])
    return [p.grad.cpu() for p in blocks.parameters()], states()[0], torch.rand(3)


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        h = self.layer(x)
        for _ in range(5):
            h = F.dropout(torch.tanh(h), 0.2) + torch.rand(h.shape)  # plain, of the CPU
        return h


@pytest.mark.parametrize("name", ["reentrant", "not reentrant"])
def test_replays_on_several_devices_take_turns(name):
    options = CHECKPOINTS[name]
    torch.manual_seed(SEED)
    blocks, x = nn.ModuleList(Branch() for _ in range(4)), torch.randn(5, 6)
    given = [p.detach().clone() for p in blocks.parameters()]
    for p in blocks.to(D0).parameters():
        p.grad = None
    told = branches(blocks, managed_on(x, D0).requires_grad_(), options)
    there = nn.ModuleList(Branch() for _ in range(4))
    with torch.no_grad():
        for p, v in zip(there.parameters(), given, strict=True):
            p.copy_(v)
    there = ManagedModule.from_module(there)
    for device, block in zip(DEVICES, there, strict=True):
        for p in block.parameters():
            _C.move(p, device)
    found = branches(there, managed_on(x, D0).requires_grad_(), options)
    assert all(torch.equal(a, b) for a, b in zip(told[0], found[0], strict=True))
    assert torch.equal(told[1], found[1])
    assert torch.equal(told[2], found[2]), "the CPU's generator is where it was"


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_replay_repeats_plain_numbers_of_other_devices(reentrant):
    w = managed_on(torch.randn(6, 6), D2).requires_grad_()
    x = torch.randn(3, 6).as_subclass(ManagedTensor).requires_grad_()

    def body(x):
        h = x @ w
        own = torch.empty(h.shape, device=h.device).normal_()  # plain: that device's stream
        return (h * own * torch.rand(h.shape) + torch.randn_like(h)).sin()

    found = []
    for run in (body, lambda x: checkpoint(body, x, use_reentrant=reentrant)):
        torch.manual_seed(2)
        found.append(torch.autograd.grad(run(x).sum(), [w])[0].cpu() if not reentrant else None)
        if reentrant:
            torch.manual_seed(2)
            w.grad = None
            run(x).sum().backward()
            found[-1] = w.grad.cpu()
    assert torch.equal(*found)


def test_a_replay_that_differentiates_waits_for_nobody():
    """The passes inside two replays need the threads of both devices."""
    ws = [managed_on(torch.randn(6, 6), d).requires_grad_() for d in DEVICES[1:3]]

    def body(x, first, second):
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            inner = (torch.tanh(y @ first) @ second).sum()
            (force,) = torch.autograd.grad(inner, y, create_graph=True)
        return F.dropout((x + force) @ first, 0.3)

    x = torch.randn(5, 6).as_subclass(ManagedTensor).requires_grad_()
    found = []
    for run in (body, lambda *a: checkpoint(body, *a, use_reentrant=False)):
        torch.manual_seed(2)
        outs = [run(x, *pair) for pair in (ws, ws[::-1]) for _ in range(4)]
        torch.autograd.backward([o.sum() for o in outs])
        found.append([w.grad.cpu() for w in ws])
        for w in ws:
            w.grad = None
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
