"""Composites aligned whole: their bodies compare devices, or use an operand several times."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from support.apart import DEVICES, agree, put
from support.devices import D0, D2
from torch import nn

COMPOSITES = {
    "scaled_dot_product_attention": (F.scaled_dot_product_attention, [(2, 3, 4, 8)] * 3),
    "linalg.multi_dot": (lambda *t: torch.linalg.multi_dot(t), [(2, 3), (3, 4), (4, 5)]),
    "chain_matmul": (lambda *t: torch.chain_matmul(*t), [(2, 3), (3, 4), (4, 5)]),
    "cartesian_prod": (torch.cartesian_prod, [(2,), (3,), (4,)]),
    "meshgrid": (lambda *t: torch.meshgrid(*t, indexing="ij"), [(2,), (3,)]),
    "inner": (torch.inner, [(3, 4), (2, 4)]),
    "einsum": (lambda *t: torch.einsum("ij,jk,kl->il", *t), [(2, 3), (3, 4), (4, 5)]),
    "bilinear": (F.bilinear, [(5, 3), (5, 4), (2, 3, 4), (2,)]),
    "cdist": (torch.cdist, [(5, 3), (4, 3)]),
    "linalg.solve": (torch.linalg.solve, [(4, 4), (4, 2)]),
    "linear": (F.linear, [(5, 3), (4, 3), (4,)]),
    "conv2d": (F.conv2d, [(2, 3, 8, 8), (4, 3, 3, 3), (4,)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), [(3, 4), (4,), (4,)]),
    "cat": (lambda *t: torch.cat(t), [(2, 3), (1, 3), (4, 3)]),
    "stack": (lambda *t: torch.stack(t), [(2, 3)] * 4),
    "cosine_embedding_loss": (F.cosine_embedding_loss, [(5, 4), (5, 4), (5,)]),
    "kl_div": (lambda x, y: F.kl_div(x, y.abs(), reduction="sum"), [(5, 4), (5, 4)]),
    "poisson_nll_loss": (lambda x, y: F.poisson_nll_loss(x, y.abs(), full=True), [(5, 4), (5, 4)]),
    "cov": (lambda x, w: torch.cov(x, aweights=w.abs()), [(3, 4), (4,)]),
    "gradient": (lambda x, s, t: torch.gradient(x, spacing=(s, t)), [(3, 4), (3,), (4,)]),
    "stft": (lambda x, w: torch.stft(x, 8, window=w, return_complex=True), [(64,), (8,)]),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_composites(name):
    function, sizes = COMPOSITES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # chain_matmul is deprecated in favour of multi_dot
        for first in range(4):
            agree(function, *(torch.randn(s) for s in sizes), first=first)


@pytest.mark.parametrize("name", ["cosine_embedding_loss", "kl_div", "poisson_nll_loss", "cov"])
def test_gradients_of_composites_that_use_an_operand_several_times(name):
    function, sizes = COMPOSITES[name]
    values = [torch.randn(s) for s in sizes]
    here = [v.clone().requires_grad_() for v in values]
    there = [put(v, DEVICES[(i + 1) % 4]).requires_grad_() for i, v in enumerate(values)]
    for leaves in (here, there):
        function(*leaves).sum().backward()
    for x, y in zip(here, there, strict=True):
        if x.grad is not None:
            assert y.grad.device == y.device
            assert torch.equal(x.grad, y.grad.cpu())


@pytest.mark.parametrize("first", [0, 2, 3])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_of_complex_numbers(rank, transposed, first):
    function = getattr(F, f"conv{'_transpose' if transposed else ''}{rank}d")
    sizes = (2, 3, *[5] * rank), (3, 3, *[2] * rank), (3,)
    agree(function, *(torch.randn(s, dtype=torch.complex64) for s in sizes), first=first)


def test_inverse_stft():
    x, window = torch.randn(64), torch.hann_window(8)
    spectrum = torch.stft(x, 8, window=window, return_complex=True)
    agree(lambda s, w: torch.istft(s, 8, window=w), spectrum, window)


def test_take_along_dim():
    x, index = torch.randn(3, 4), torch.tensor([[0, 1, 3, 2]])
    agree(lambda x, i: torch.take_along_dim(x, i, 0), x, index % 3)


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_recurrent_cells(kind):
    names = {"LSTMCell": "lstm_cell", "GRUCell": "gru_cell"}

    def cell(x, h, c, *weights):
        function = getattr(torch, names.get(kind, "rnn_tanh_cell"))
        out = function(x, (h, c) if kind == "LSTMCell" else h, *weights)
        return out if isinstance(out, tuple) else (out,)

    gates = {"LSTMCell": 4, "GRUCell": 3}.get(kind, 1)
    sizes = [(2, 3), (2, 5), (2, 5), (gates * 5, 3), (gates * 5, 5), (gates * 5,), (gates * 5,)]
    agree(cell, *(torch.randn(s) for s in sizes))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks(kind):
    net = kind(3, 5, 2, bidirectional=True)
    x = torch.randn(6, 2, 3)
    expected = net(x)
    for i, name in enumerate(net._flat_weights_names):
        setattr(net, name, nn.Parameter(put(getattr(net, name).detach(), DEVICES[i % 4])))
    result = net(put(x, D2))
    assert torch.equal(result[0].cpu(), expected[0])


@pytest.mark.parametrize("fast", [False, True])
def test_multi_head_attention(fast):
    net = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    with torch.set_grad_enabled(not fast):
        expected = net(x, x, x, need_weights=False)[0]
        for i, (name, p) in enumerate(list(net.named_parameters())):
            part, _, last = name.rpartition(".")
            moved = nn.Parameter(put(p.detach(), DEVICES[i % 4]))
            net.get_submodule(part)._parameters[last] = moved
        there = put(x, D0)
        result = net(there, there, there, need_weights=False)[0]
    assert torch.equal(result.cpu(), expected)
