"""Modules

Parts of torch.nn that keep tensors in a way of their own, or have a fast path.
"""

import pytest
import torch
from support.devices import D0, D1, D2
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, rnn
from torch.profiler import ProfilerActivity, profile

from managed import ManagedModule, ManagedTensor

from .common import Place, managed_on, same


def train(module, x, steps=3):
    optimizer = torch.optim.AdamW(module.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        module(x).pow(2).mean().backward()
        optimizer.step()
    return module(x)


def agree(place, module, x, change=lambda m: m):
    """The module, changed afterwards, trains to the same numbers there; gradients are at home."""
    there = place.module(module)
    torch.manual_seed(5)
    change(module)
    torch.manual_seed(5)
    change(there)
    same(train(module, x), train(there, place(x)))
    for p in there.parameters():
        assert isinstance(p, ManagedTensor)
        assert p.grad.device == p.device
    return there


@pytest.mark.row("Weight norm", note="the parametrization and the old form")
def test_weight_norm(place):
    agree(place, parametrizations.weight_norm(nn.Linear(4, 3)), torch.randn(5, 4))


@pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm. is deprecated:FutureWarning")
@pytest.mark.row("Weight norm")
def test_old_weight_norm(place):
    there = agree(place, nn.Linear(4, 3), torch.randn(5, 4), nn.utils.weight_norm)
    nn.utils.remove_weight_norm(there)
    assert isinstance(there.weight, nn.Parameter)
    assert isinstance(there.weight, ManagedTensor)


@pytest.mark.row("Spectral norm, orthogonal", note="the parametrizations and the old form")
@pytest.mark.parametrize(
    "norm", [parametrizations.spectral_norm, nn.utils.spectral_norm, parametrizations.orthogonal]
)
def test_spectral_norm(place, norm):
    agree(place, nn.Linear(4, 3), torch.randn(5, 4), norm)


@pytest.mark.row("Parametrizations of one's own, cached")
def test_parametrize(place):
    class Symmetric(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).mT

    net, x = nn.Linear(4, 4), torch.randn(5, 4)
    parametrize.register_parametrization(net, "weight", Symmetric())
    there = agree(place, net, x)
    with parametrize.cached():
        assert there.weight is there.weight
        same(net(x), there(place(x)))


@pytest.mark.row("Pruning")
def test_prune(place):
    there = agree(
        place,
        nn.Linear(6, 4),
        torch.randn(5, 6),
        lambda net: prune.l1_unstructured(net, "weight", 0.5),
    )
    prune.remove(there, "weight")
    assert isinstance(there.weight, ManagedTensor)
    assert (there.weight == 0).sum() == 12


# torch 2.11 says it of each profile with one cycle.
profiles = pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")


def ran(function):
    with profile(activities=[ProfilerActivity.CPU]) as p:
        out = function()
    return out, {e.name for e in p.events()}


@profiles
@pytest.mark.row("Attention, fast path", note="eval and no_grad take it on the CPU and on a device")
@pytest.mark.parametrize("device", ["cpu", D1])
def test_attention_fast_path(device):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(3, 5, 8)
    there = Place("one")
    there.device = lambda: device
    layers, attentions, xs = there.module(layer), there.module(attention), managed_on(x, device)
    with torch.inference_mode():
        out, names = ran(lambda: layers(xs))
        assert "aten::_transformer_encoder_layer_fwd" in names
        same(layer(x), out)
        out, names = ran(lambda: attentions(xs, xs, xs))
        assert "aten::_native_multi_head_attention" in names
        same(attention(x, x, x), out)


@profiles
@pytest.mark.row("Attention, fast path", note="with parameters over several devices too")
def test_attention_over_devices():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(3, 5, 8)
    place = Place("mixed")
    there, xs = place.module(layer), place(x)
    with torch.no_grad():
        out, names = ran(lambda: there(xs))
        assert "aten::_transformer_encoder_layer_fwd" in names
        same(layer(x), out)


@pytest.mark.row("Attention, trained", note="with masks, padding and dropout 0")
def test_attention_trains(place):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.register_buffer("mask", torch.ones(5, 5).triu(1).bool())

        def forward(self, x):
            return self.attention(x, x, x, attn_mask=self.mask, need_weights=False)[0]

    agree(place, Net(), torch.randn(3, 5, 8))
    agree(place, nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), torch.randn(3, 5, 8))


@pytest.mark.row("scaled_dot_product_attention", note="causal, with mask, grouped queries")
def test_attention_function(place):
    q, k, v = (torch.randn(2, h, 5, 8, requires_grad=True) for h in (4, 2, 2))
    there = place(q, k, v)
    mask = torch.rand(5, 5) > 0.3
    attend = nn.functional.scaled_dot_product_attention
    for (a, b, c), m in (((q, k, v), mask), (there, place(mask))):
        out = attend(a, b, c, is_causal=True, enable_gqa=True)
        out = out + attend(a, b, c, attn_mask=m, enable_gqa=True)
        out.pow(2).sum().backward()
    place.same_gradients((q, k, v), there)


@pytest.mark.parametrize("cell", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.row("RNN, LSTM, GRU", note="flat weights follow when the module moves; no warning")
def test_rnn_moves(place, cell):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cell(4, 6, 2, bidirectional=True, batch_first=True)

        def forward(self, x):
            return self.cell(x)[0]

    net, x = Net(), torch.randn(3, 5, 4)
    there = agree(place, net, x)
    for move in (lambda m: m.cuda(3), lambda m: m.cpu(), lambda m: m.to(D0)):
        move(there)
        same([p.data for p in net.cell._flat_weights], [p.data for p in there.cell._flat_weights])
        assert all(
            a is b for a, b in zip(there.cell._flat_weights, there.parameters(), strict=True)
        )
        same(net(x), there(managed_on(x, D2)))


@pytest.mark.row("RNN, LSTM, GRU", note="packed sequences, lengths on the CPU")
def test_packed(place):
    net, x = nn.LSTM(4, 6, batch_first=True), torch.randn(3, 5, 4)
    there, xs = place.module(net), place(x)
    outcomes = []
    for n, t in ((net, x), (there, xs)):
        packed = rnn.pack_padded_sequence(t, [5, 2, 4], batch_first=True, enforce_sorted=False)
        out, (h, c) = n(packed)
        out, lengths = rnn.pad_packed_sequence(out, batch_first=True)
        out.sum().backward()
        outcomes.append((out, h, c))
        assert lengths.tolist() == [5, 2, 4]
    same(*outcomes)
    place.same_gradients(net, there)


@pytest.mark.row("Embedding, EmbeddingBag", note="sparse gradients too")
@pytest.mark.parametrize("sparse", [False, True])
def test_embedding(place, sparse):
    words = torch.tensor([[1, 3, 1], [0, 2, 3]])
    for net in (nn.Embedding(5, 4, sparse=sparse), nn.EmbeddingBag(5, 4, sparse=sparse)):
        there, indices = place.module(net), place(words)
        out, result = net(words), there(indices)
        same(out, result)
        out.pow(2).sum().backward()
        result.pow(2).sum().backward()
        place.same_gradients(net, there)


@pytest.mark.row("Lazy modules")
def test_lazy(place):
    x = torch.randn(5, 3)
    outs = []
    for manage, t in ((lambda n: n, x), (ManagedModule.from_module, place(x))):
        net = manage(nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Linear(4, 2)))
        torch.manual_seed(4)
        with torch.no_grad():
            net(t)
            for p in net.parameters():
                p.copy_(torch.arange(p.numel()).reshape(p.shape) / 10)
        outs.append(net(t))
    same(*outs)
    assert all(isinstance(p, ManagedTensor) for p in (*net.parameters(), *net.buffers()))


@pytest.mark.row(
    "BatchNorm, SyncBatchNorm",
    note="statistics are updated where they are; conversion keeps tensors managed",
)
def test_batch_norm(place):
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten())
    there = agree(place, net, torch.randn(4, 2, 5, 5))
    for a, b in zip(net.buffers(), there.buffers(), strict=True):
        same(a, b)
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(there)
    assert isinstance(synced[1].weight, ManagedTensor)
