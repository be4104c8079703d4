"""torch.nn.utils, lazy modules and containers on modules that are over several devices."""

import copy

import pytest
import torch
from support.devices import D1, D2, D3
from support.scattered import (
    all_managed,
    assert_same,
    assert_same_gradients,
    pair,
    places,
    scatter,
    step,
)
from torch import nn
from torch.nn.utils import fusion, parametrizations, parametrize, prune

from managed import ManagedModule, ManagedTensor

X = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)

    def right_inverse(self, x):
        return x.triu()


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.full((6,), 2.0))

    def forward(self, x):
        return x * self.factor


def chain(layer):
    parametrize.register_parametrization(layer, "weight", Symmetric())
    parametrize.register_parametrization(layer, "weight", Scaled())


PARAMETRIZATIONS = {
    "symmetric": lambda m: parametrize.register_parametrization(m, "weight", Symmetric()),
    "chain": chain,
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "cayley": lambda m: parametrizations.orthogonal(m, orthogonal_map="cayley"),
}


def seeded(function, layer):
    torch.manual_seed(7)
    function(layer)


def parametrized(function, when):
    plain = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    net = copy.deepcopy(plain)
    seeded(function, plain[0])
    if when == "before":
        seeded(function, net[0])
    ManagedModule.from_module(net)
    if when == "after":
        seeded(function, net[0])
    scatter(net)
    if when == "scattered":
        seeded(function, net[0])
    return plain, net


@pytest.mark.parametrize("when", ["before", "after", "scattered"])
@pytest.mark.parametrize("name", PARAMETRIZATIONS)
def test_parametrizations(name, when):
    plain, net = parametrized(PARAMETRIZATIONS[name], when)
    assert isinstance(net[0], nn.Linear)
    assert isinstance(net[0], ManagedModule)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1) for m in (plain, net)]
    for i in range(3):
        losses = [step(m, o, i) for m, o in zip((plain, net), optimizers, strict=True)]
        assert torch.equal(*losses)
    assert_same(plain, net)
    assert all_managed(net)
    other = copy.deepcopy(net)
    assert isinstance(other[0], ManagedModule)
    assert torch.equal(other.eval()(X).cpu(), net.eval()(X).cpu())
    for m in (plain.eval(), net):
        parametrize.remove_parametrizations(m[0], "weight")
    assert type(net[0]) is type(net[1])
    assert all_managed(net)
    assert_same(plain, net)


@pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
@pytest.mark.parametrize("when", ["before", "after", "scattered"])
def test_norms_of_the_old_kind(kind, when):
    plain, net = parametrized(getattr(nn.utils, kind), when)
    for i in range(2):
        assert torch.equal(step(plain, seed=i), step(net, seed=i))
    for m in (plain, net):
        getattr(nn.utils, f"remove_{kind}")(m[0])
    assert all_managed(net)
    assert_same(plain, net)


@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize("norm", [1.0, 2.0, float("inf")])
def test_clipping_norms(norm, foreach):
    plain, net = pair()
    totals = []
    for m in (plain, net):
        step(m)
        totals.append(nn.utils.clip_grad_norm_(m.parameters(), 0.1, norm, foreach=foreach))
    first = next(p for p in net.parameters() if p.grad is not None)
    assert totals[1].device == first.device
    assert torch.allclose(totals[0], totals[1].cpu(), rtol=1e-6, atol=0)
    for a, b in zip(plain.parameters(), net.parameters(), strict=True):
        assert b.grad.device == b.device
        assert torch.allclose(a.grad, b.grad.cpu(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("foreach", [None, True, False])
def test_clipping_values(foreach):
    plain, net = pair()
    for m in (plain, net):
        step(m)
        nn.utils.clip_grad_value_(m.parameters(), 1e-3, foreach=foreach)
    assert_same_gradients(plain, net)


def test_vectors_of_parameters():
    """torch refuses more than one device; cat does not."""
    plain, net = pair()
    with pytest.raises(TypeError, match="two parameters on different devices"):
        nn.utils.parameters_to_vector(net.parameters())
    vector = torch.cat([p.reshape(-1) for p in net.parameters()])
    assert torch.equal(vector.cpu(), nn.utils.parameters_to_vector(plain.parameters()))
    net.cuda(1)
    assert torch.equal(nn.utils.parameters_to_vector(net.parameters()).cpu(), vector.cpu())


@pytest.mark.parametrize("kind", ["conv", "linear"])
def test_fusion_with_a_norm(kind):
    layers = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)]
    if kind == "linear":
        layers = [nn.Linear(4, 3), nn.BatchNorm1d(3)]
    plain, net = pair(lambda: nn.Sequential(*layers).eval())
    fuse = fusion.fuse_conv_bn_eval if kind == "conv" else fusion.fuse_linear_bn_eval
    fused = fuse(*net)
    assert_same(fuse(*plain), fused)
    assert all_managed(fused)


@pytest.mark.parametrize(
    "cut",
    [
        lambda m: prune.l1_unstructured(m, "weight", 0.3),
        lambda m: prune.random_unstructured(m, "weight", 0.3),
        lambda m: prune.ln_structured(m, "weight", 0.5, 2, 0),
        lambda m: prune.custom_from_mask(m, "weight", torch.eye(6)),
    ],
    ids=["l1", "random", "structured", "mask"],
)
def test_pruning(cut):
    plain, net = pair()
    for m in (plain, net):
        seeded(cut, m.b)
    assert torch.equal(step(plain), step(net))
    assert_same_gradients(plain, net)
    assert torch.equal(step(plain), step(net.cuda(1)))
    assert set(places(net).values()) == {D1}
    for m in (plain, net):
        prune.remove(m.b, "weight")
    assert all_managed(net)
    assert_same(plain, net)


def test_global_pruning_asks_for_one_device():
    plain, net = pair()
    with pytest.raises(TypeError, match="two parameters on different devices"):
        prune.global_unstructured(
            [(net.a, "weight"), (net.b, "weight")], prune.L1Unstructured, amount=0.4
        )
    net = ManagedModule.from_module(copy.deepcopy(plain)).cuda(1)
    for m in (plain, net):
        prune.global_unstructured(
            [(m.a, "weight"), (m.b, "weight")], prune.L1Unstructured, amount=0.4
        )
    assert_same(plain, scatter(net))


# ---- lazy modules


def lazy():
    torch.manual_seed(3)
    return nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Linear(4, 2))


@pytest.mark.parametrize("disperse", [True, "parameters"])
def test_a_lazy_module_is_placed_before_and_after_its_first_input(disperse):
    plain, net = lazy(), ManagedModule.from_module(lazy())
    assert isinstance(net[0], nn.LazyLinear)
    assert all(isinstance(m, ManagedModule) for m in net.modules())
    net.cuda(disperse=disperse)
    assert "cpu" not in places(net).values()
    for m in (plain, net):
        m(X)  # random weights of each device's own
    net.load_state_dict(plain.state_dict())
    assert torch.equal(plain(X), net(X).cpu())
    assert type(net[0]).__name__ == "Linear"
    assert all(isinstance(m, ManagedModule) for m in net.modules())
    assert all_managed(net)
    assert not net[0]._forward_pre_hooks
    before = places(net)
    net.cuda(disperse=disperse)
    assert len(set(places(net).values())) >= len(set(before.values()))
    for m in (plain, net):
        m(X).square().sum().backward()
    assert_same_gradients(plain, net)


def test_a_lazy_layer_by_itself():
    layer = ManagedModule.from_module(ManagedModule.from_module(nn.LazyLinear(3)))
    assert len(layer._forward_pre_hooks) == 2  # torch's and ours
    layer.cuda(2).to(D1).double()
    layer(X.double())
    assert set(places(layer).values()) == {D1}
    assert (layer.weight.dtype, all_managed(layer)) == (torch.float64, True)


def test_a_lazy_layer_that_is_copied_or_loaded_first():
    layer = ManagedModule.from_module(nn.LazyLinear(3))
    other = copy.deepcopy(layer)
    other(X)
    assert all_managed(other)
    layer.cuda(1).load_state_dict(other.state_dict())
    assert set(places(layer).values()) == {D1}
    assert all_managed(layer)
    assert torch.equal(layer(X).cpu(), other(X))
    assert type(layer) is type(other)


# ---- containers


def test_containers_manage_what_they_are_given():
    net = pair()[1]
    assert isinstance(net.factors, nn.ParameterList)
    assert isinstance(net.factors, ManagedModule)
    net.factors.append(nn.Parameter(torch.ones(6)))
    net.factors[0] = nn.Parameter(torch.ones(6))
    net.factors.extend([torch.ones(6)])
    net.shifts["y"] = nn.Parameter(torch.ones(6))
    net.shifts.update({"z": nn.Parameter(torch.ones(6))})
    net.parts["more"] = nn.Linear(6, 6)
    layers = ManagedModule.from_module(nn.ModuleList([nn.Linear(2, 2)]))
    layers += [nn.Linear(2, 2)]
    chained = ManagedModule.from_module(nn.Sequential(nn.Linear(2, 2)))
    chained.insert(0, nn.Linear(2, 2))
    chained.extend([nn.Linear(2, 2)])
    assert all(all_managed(m) for m in (net, layers, chained))
    assert all(isinstance(m, ManagedModule) for m in [*layers, *chained, net.parts["more"]])
    assert len(net.cuda(1).factors) == 5
    assert set(places(net).values()) == {D1}


def test_forward_hooks_may_bring_values_elsewhere():
    plain, net = pair()
    net.norm.register_forward_hook(lambda module, inputs, output: output.to(D3))
    net.b.register_forward_pre_hook(lambda module, inputs: (inputs[0].to(D2),))
    assert torch.equal(step(plain), step(net))
    assert_same_gradients(plain, net)
    assert isinstance(net(X), ManagedTensor)
