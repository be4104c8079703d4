"""The table of csrc/torch/rules.cpp, row by row, where choices and writes do not cover it.

Indices that may and lengths that must be on the CPU, writes that a schema does not tell, and
composites whose bodies compare devices or use an operand many times.
"""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from managed import ManagedTensor

DEVICES = ("cpu", "sim:0", "sim:1", "sim:2")


def put(t, device):
    return t.to(device).as_subclass(ManagedTensor)


def at(device, *sizes):
    return put(torch.randn(sizes), device)


def spread(*tensors, first=1):
    """The tensors on devices of their own, and the same tensors plain on the CPU."""
    return [put(t, DEVICES[(i + first) % 4]) for i, t in enumerate(tensors)], list(tensors)


def agree(function, *tensors, first=1):
    """`function` of tensors on four devices gives what it gives on the CPU, managed."""
    there, here = spread(*tensors, first=first)
    expected, actual = function(*here), function(*there)
    single = isinstance(expected, torch.Tensor)
    pairs = zip([expected] if single else expected, [actual] if single else actual, strict=True)
    for x, y in pairs:
        assert isinstance(y, ManagedTensor)
        assert torch.equal(x, y.cpu())
    return actual


# ---- operands that must be on the CPU


@pytest.mark.parametrize("device", DEVICES)
def test_lengths_of_packed_sequences(device):
    x, lengths = torch.randn(5, 3, 4), torch.tensor([5, 3, 2])
    expected = nn.utils.rnn.pack_padded_sequence(x, lengths)
    data, sizes = torch._pack_padded_sequence(put(x, "sim:1"), put(lengths, device), False)
    assert torch.equal(data.cpu(), expected.data)
    assert torch.equal(sizes.cpu(), expected.batch_sizes)
    back, counted = torch._pad_packed_sequence(data, put(sizes.cpu(), device), False, 0.0, 5)
    padded = nn.utils.rnn.pad_packed_sequence(expected)
    assert torch.equal(back.cpu(), padded[0])
    assert torch.equal(counted.cpu(), padded[1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_batch_sizes_of_a_packed_recurrent_network(kind):
    net = kind(4, 6, 2)
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 3, 4), [5, 3, 2])
    expected = net(packed)[0].data
    sizes = put(packed.batch_sizes, "sim:2")
    for i, name in enumerate(net._flat_weights_names):
        setattr(net, name, nn.Parameter(put(getattr(net, name).detach(), DEVICES[i % 4])))
    there = nn.utils.rnn.PackedSequence(put(packed.data, "sim:1"), sizes.cpu())
    result = net(there)[0].data
    assert isinstance(result, ManagedTensor)
    assert torch.equal(result.cpu(), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_lengths_of_the_ctc_loss(device):
    torch.manual_seed(0)
    scores = torch.randn(12, 3, 6).log_softmax(2)
    targets = torch.randint(1, 6, (3, 4))
    lengths = torch.tensor([12, 10, 8]), torch.tensor([4, 3, 2])
    expected = F.ctc_loss(scores, targets, *lengths, reduction="none")
    moved = [put(t, device) for t in lengths]
    result = F.ctc_loss(put(scores, "sim:1"), put(targets, "cpu"), *moved, reduction="none")
    assert torch.equal(result.cpu(), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_indices_of_tensor_split(device):
    x, indices = torch.randn(7, 2), torch.tensor([1, 4])
    for a, b in zip(x.tensor_split(indices), put(x, "sim:1").tensor_split(put(indices, device))):
        assert b.device == torch.device("sim:1")
        assert torch.equal(a, b.cpu())


# ---- indices that may be on the CPU


INDEXED = {
    "index": lambda x, i, v: torch.ops.aten.index(x, [None, i]),
    "index_put": lambda x, i, v: torch.ops.aten.index_put(x, [i], v),
    "index_put_": lambda x, i, v: torch.ops.aten.index_put_(x.clone(), [i], v),
    "_index_put_impl_": lambda x, i, v: torch.ops.aten._index_put_impl_(x.clone(), [i], v),
    "_unsafe_index": lambda x, i, v: torch.ops.aten._unsafe_index(x, [i]),
    "_unsafe_index_put": lambda x, i, v: torch.ops.aten._unsafe_index_put(x, [i], v),
    "_unsafe_masked_index": lambda x, i, v: torch.ops.aten._unsafe_masked_index(x, (i < 2)[:, None], [i], 0),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", INDEXED)
def test_indices_on_any_device(name, device):
    x, i, v = torch.randn(3, 4), torch.tensor([2, 0, 1]), torch.randn(3, 4)
    result = INDEXED[name](put(x, "sim:1"), put(i, device), put(v, "sim:1"))
    assert result.device == torch.device("sim:1")
    assert torch.equal(result.cpu(), INDEXED[name](x, i, v))


# ---- writes that the schema does not tell


aten = torch.ops.aten
STATISTICS = {
    "batch_norm": lambda x, m, v: aten.batch_norm(x, None, None, m, v, True, 0.1, 1e-5, False),
    "native_batch_norm": lambda x, m, v: aten.native_batch_norm(x, None, None, m, v, True, 0.1, 1e-5),
    "_native_batch_norm_legit": lambda x, m, v: aten._native_batch_norm_legit(
        x, None, None, m, v, True, 0.1, 1e-5
    ),
    "_batch_norm_impl_index": lambda x, m, v: aten._batch_norm_impl_index(
        x, None, None, m, v, True, 0.1, 1e-5, False
    ),
    "_batch_norm_with_update": lambda x, m, v: aten._batch_norm_with_update(
        x, None, None, m, v, 0.1, 1e-5
    ),
    "batch_norm_update_stats": lambda x, m, v: aten.batch_norm_update_stats(x, m, v, 0.1),
    "instance_norm": lambda x, m, v: aten.instance_norm(x, None, None, m, v, True, 0.1, 1e-5, False),
}


@pytest.mark.parametrize("devices", [("sim:1", "cpu"), ("cpu", "sim:0"), ("sim:1", "sim:2")])
@pytest.mark.parametrize("name", STATISTICS)
def test_running_statistics_are_written_where_they_are(name, devices):
    x, mean, var = torch.randn(2, 3, 4), torch.zeros(3), torch.ones(3)
    there = [put(t.clone(), d) for t, d in zip((mean, var), devices, strict=True)]
    STATISTICS[name](x, mean, var)
    STATISTICS[name](put(x, "sim:0"), *there)
    for t, device, expected in zip(there, devices, (mean, var), strict=True):
        assert t.device == torch.device(device)
        assert torch.equal(t.cpu(), expected)


def test_observers_of_fake_quantisation_are_written_where_they_are():
    def observe(x, low, high, scale, zero):
        on = torch.ones(1, dtype=torch.long)
        return torch.fused_moving_avg_obs_fake_quant(
            x, on, on.clone(), low, high, scale, zero, 0.1, 0, 255, 0
        )

    state = [torch.tensor([-1.0]), torch.tensor([1.0]), torch.ones(1), torch.zeros(1).int()]
    there = [put(t.clone(), DEVICES[i]) for i, t in enumerate(state)]
    x = torch.randn(5) * 3
    expected, result = observe(x, *state), observe(put(x, "sim:2"), *there)
    assert torch.equal(result.cpu(), expected)
    for i, (t, s) in enumerate(zip(there, state, strict=True)):
        assert t.device == torch.device(DEVICES[i])
        assert torch.equal(t.cpu(), s)


# ---- composites that compare devices, or use an operand several times


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
    def cell(x, h, c, *weights):
        function = getattr(torch, {"LSTMCell": "lstm_cell", "GRUCell": "gru_cell"}.get(kind, "rnn_tanh_cell"))
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
    result = net(put(x, "sim:2"))
    assert torch.equal(result[0].cpu(), expected[0])


@pytest.mark.parametrize("fast", [False, True])
def test_multi_head_attention(fast):
    net = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    with torch.set_grad_enabled(not fast):
        expected = net(x, x, x, need_weights=False)[0]
        for i, (name, p) in enumerate(list(net.named_parameters())):
            part = net.get_submodule(name.rpartition(".")[0])
            part._parameters[name.rpartition(".")[2]] = nn.Parameter(put(p.detach(), DEVICES[i % 4]))
        there = put(x, "sim:0")
        result = net(there, there, there, need_weights=False)[0]
    assert torch.equal(result.cpu(), expected)
