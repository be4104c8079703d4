"""Optimizers of parameters over several devices: equal to plain, before and after moves."""

import copy
import io
import itertools

import pytest
import torch
from support.devices import D0, D1, D3
from support.scattered import Model, assert_same, pair, scatter, step
from torch import nn

from managed import _C, ManagedModule, ManagedTensor

EVERY_FORM = ["Adagrad", "Adam", "AdamW", "SGD"]
TWO_FORMS = ["ASGD", "Adadelta", "Adafactor", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"]
FORMS = [(name, form) for name in EVERY_FORM for form in ("foreach", "single", "fused")]
FORMS += [(name, form) for name in TWO_FORMS for form in ("foreach", "single")]
FORMS += [("Muon", "single")]


def make(name, form, net):
    options = {"foreach": form == "foreach"} | ({"fused": True} if form == "fused" else {})
    if form == "fused":
        del options["foreach"]
    parameters = list(net.parameters())
    if name == "Muon":  # takes matrices only, and has one form
        parameters, options = [p for p in parameters if p.dim() == 2], {}
    if name == "SGD":
        options["momentum"] = 0.9
    return getattr(torch.optim, name)(parameters, **options)


def assert_state_is_at_home(optimizer):
    for p, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.dim() > 0:
                assert value.device == p.device, key


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_an_optimizer_trains_as_plain_wherever_the_parameters_go(name, form):
    plain, net = pair()
    optimizers = [make(name, form, m) for m in (plain, net)]
    moves = [lambda: net.cuda(disperse=True), lambda: net.cuda(2), net.cpu, lambda: scatter(net, 3)]
    for i, move in enumerate([None, *moves]):
        if move:
            move()
        for m, optimizer in zip((plain, net), optimizers, strict=True):
            step(m, optimizer, i)
        assert_same(plain, net)
        assert_state_is_at_home(optimizers[1])


@pytest.mark.parametrize(
    ("name", "form"),
    [("AdamW", "fused"), ("AdamW", "foreach"), ("SGD", "single"), ("Adafactor", "single")],
)
def test_a_loaded_state_stands_where_its_parameter_stands(name, form):
    plain, net = pair()
    optimizers = [make(name, form, m) for m in (plain, net)]
    for m, optimizer in zip((plain, net), optimizers, strict=True):
        step(m, optimizer)
    file = io.BytesIO()
    torch.save(optimizers[1].state_dict(), file)
    assert b"managed" not in file.getvalue()
    file.seek(0)
    states = [
        copy.deepcopy(optimizers[0].state_dict()),
        torch.load(file, weights_only=True, map_location="cpu"),
    ]
    net.cuda(disperse=True)
    for m, state in zip((plain, net), states, strict=True):
        optimizer = make(name, form, m)
        optimizer.load_state_dict(state)
        if m is net:
            assert_state_is_at_home(optimizer)
        step(m, optimizer, 1)
    assert_same(plain, net)


def test_an_optimizer_made_before_the_module_is_managed_and_dispersed():
    plain = Model()
    net = copy.deepcopy(plain)
    optimizers = [torch.optim.AdamW(m.parameters(), foreach=True) for m in (plain, net)]
    for i in range(4):
        if i == 1:
            ManagedModule.from_module(net).cuda(disperse=True)
        if i == 2:
            net.cuda(disperse="parameters")
        for m, optimizer in zip((plain, net), optimizers, strict=True):
            step(m, optimizer, i)
    assert_same(plain, net)


def test_a_state_whose_bytes_others_have_stays_and_is_written_there():
    plain, net = pair()
    optimizers = [make("AdamW", "foreach", m) for m in (plain, net)]
    for i in range(3):
        if i == 1:
            states = optimizers[1].state[next(net.parameters())]
            row = states["exp_avg"].view(-1)[:3]
            net.cuda(3)
        for m, optimizer in zip((plain, net), optimizers, strict=True):
            step(m, optimizer, i)
    assert_same(plain, net)
    assert torch.equal(row.cpu(), states["exp_avg"].view(-1)[:3].cpu())


def test_groups_that_are_added_later():
    plain, net = pair()
    optimizers = [torch.optim.AdamW([m.a.weight], foreach=True) for m in (plain, net)]
    for i in range(3):
        for m, optimizer in zip((plain, net), optimizers, strict=True):
            if i == 1:
                optimizer.add_param_group({"params": [m.b.weight, m.b.bias], "lr": 0.1})
            step(m, optimizer, i)
        net.cuda(disperse=True)
    assert_same(plain, net)


@pytest.mark.parametrize(
    "options",
    [
        {"amsgrad": True, "foreach": True},
        {"amsgrad": True, "fused": True},
        {"maximize": True, "foreach": True},
        {"lr": torch.tensor(0.01), "foreach": False},
        {"lr": torch.tensor(0.01), "fused": True},
    ],
    ids=str,
)
def test_options_of_adamw(options):
    plain, net = pair()
    optimizers = [torch.optim.AdamW(m.parameters(), **options) for m in (plain, net)]
    for i in range(3):
        for m, optimizer in zip((plain, net), optimizers, strict=True):
            step(m, optimizer, i)
        net.cuda(disperse=i == 0)
    assert_same(plain, net)


PLACES = ["cpu", D0, D1]


def train_with_closures(w, b, x, form, positional):
    """Eight steps in which the forward pass is the closure's."""
    options = {"foreach": form == "foreach"} if form != "fused" else {"fused": True}
    optimizer = torch.optim.AdamW([w, b], lr=0.1, **options)
    losses = []
    for _ in range(8):

        def closure():
            """The loss."""
            optimizer.zero_grad()
            loss = nn.functional.linear(x, w, b).square().mean()
            loss.backward()
            return loss

        loss = optimizer.step(closure) if positional else optimizer.step(closure=closure)
        losses.append(loss.item())
    return losses, w.detach().cpu(), b.detach().cpu()


@pytest.mark.parametrize("form", ["foreach", "fused", "single"])
@pytest.mark.parametrize("where", list(itertools.product(PLACES, repeat=3)))
def test_a_parameter_may_settle_while_a_closure_runs(where, form):
    w, b, x = torch.randn(5, 4), torch.randn(5), torch.randn(7, 4)
    parameters = [nn.Parameter(t.clone()) for t in (w, b)]
    plain = train_with_closures(*parameters, x, form, True)
    there = [nn.Parameter(t.clone()) for t in (w, b)]
    for p, place in zip(there, where, strict=False):
        _C.mark(p)
        _C.move(p, place)
    data = x.as_subclass(ManagedTensor).to(where[2])
    losses, *values = train_with_closures(*there, data, form, where[0] == "cpu")
    assert losses == plain[0]
    assert all(map(torch.equal, values, plain[1:]))


def test_plain_optimizers_get_the_closure_itself():
    seen = []
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))])
    optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: seen.append((args, kwargs)))

    def closure():
        return 3

    assert optimizer.step(closure) == optimizer.step(closure=closure) == 3
    assert seen == [((optimizer, closure), {}), ((optimizer,), {"closure": closure})]


def test_lbfgs():
    """Its state is vectors over all parameters, so the order of sums differs a little."""
    plain, net = pair()
    x = torch.randn(5, 6)
    optimizers = [torch.optim.LBFGS(m.parameters(), max_iter=3) for m in (plain, net)]
    for i in range(4):
        for m, optimizer in zip((plain, net), optimizers, strict=True):

            def closure(m=m, optimizer=optimizer):
                optimizer.zero_grad()
                loss = m.eval()(x).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)
        if i == 1:
            net.cuda(disperse=True)
        if i == 2:
            for m, old in zip((plain, net), list(optimizers), strict=True):
                optimizers[optimizers.index(old)] = torch.optim.LBFGS(m.parameters(), max_iter=3)
                optimizers[-1 if m is net else 0].load_state_dict(copy.deepcopy(old.state_dict()))
    for a, b in zip(plain.parameters(), net.parameters(), strict=True):
        assert torch.allclose(a, b.cpu(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("form", ["foreach", "fused", "single"])
def test_a_gradient_that_stands_elsewhere_comes_home_before_the_step(form):
    plain, net = pair()
    for m in (plain, net):
        step(m)
    for p in net.parameters():
        p.grad.data = p.grad.data.to(D3)
    for m in (plain, net):
        make("AdamW", form, m).step()
    assert all(p.grad.device == p.device for p in net.parameters())
    assert_same(plain, net)


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")
@pytest.mark.parametrize(
    ("name", "form", "kernel"),
    [
        ("AdamW", "foreach", "aten::_foreach_addcdiv_"),
        ("SGD", "foreach", "aten::_foreach_add_"),
        ("RMSprop", "foreach", "aten::_foreach_addcdiv_"),
        ("AdamW", "fused", "aten::_fused_adamw_"),
        ("SGD", "fused", "aten::_fused_sgd_"),
    ],
)
def test_the_fast_path_is_taken_over_devices(name, form, kernel):
    net = pair()[1]
    optimizer = make(name, form, net)
    step(net, optimizer)
    step(net)
    with torch.profiler.profile() as profile:
        optimizer.step()
    calls = [e.name for e in profile.events()]
    devices = {p.device for p in net.parameters()}
    # One call a device, and another where bias corrections differ: never one a parameter.
    assert len(devices) <= calls.count(kernel) < len(list(net.parameters()))
