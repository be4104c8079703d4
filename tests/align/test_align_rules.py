"""The table of csrc/torch/facts/rules.cpp, row by row, where choices and writes do not cover it.

Indices that may and lengths that must be on the CPU, and writes that a schema does not tell.
"""

import pytest
import torch
import torch.nn.functional as F
from support.apart import DEVICES, put
from support.devices import D0, D1, D2
from torch import nn

from managed import ManagedTensor

# ---- operands that must be on the CPU


@pytest.mark.parametrize("device", DEVICES)
def test_lengths_of_packed_sequences(device):
    x, lengths = torch.randn(5, 3, 4), torch.tensor([5, 3, 2])
    expected = nn.utils.rnn.pack_padded_sequence(x, lengths)
    data, sizes = torch._pack_padded_sequence(put(x, D1), put(lengths, device), False)
    assert torch.equal(data.cpu(), expected.data)
    assert torch.equal(sizes.cpu(), expected.batch_sizes)
    back, counted = torch._pad_packed_sequence(data, put(sizes.cpu(), device), False, 0.0, 5)
    padded = nn.utils.rnn.pad_packed_sequence(expected)
    assert torch.equal(back.cpu(), padded[0])
    assert torch.equal(counted.cpu(), padded[1])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_batch_sizes_of_a_packed_recurrent_network(kind, device):
    function = {nn.LSTM: torch.lstm, nn.GRU: torch.gru, nn.RNN: torch.rnn_tanh}[kind]
    net = kind(4, 6, 2)
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 3, 4), [5, 3, 2])
    start = torch.zeros(2, 3, 6)

    def run(data, sizes, start, weights):
        start = (start, start) if kind is nn.LSTM else start
        return function(data, sizes, start, weights, True, 2, 0.0, True, False)[0]

    expected = run(packed.data, packed.batch_sizes, start, net._flat_weights)
    weights = [put(w.detach(), DEVICES[i % 4]) for i, w in enumerate(net._flat_weights)]
    sizes = put(packed.batch_sizes, device)
    result = run(put(packed.data, D1), sizes, put(start, D0), weights)
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
    result = F.ctc_loss(put(scores, D1), put(targets, "cpu"), *moved, reduction="none")
    assert torch.equal(result.cpu(), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_indices_of_tensor_split(device):
    x, indices = torch.randn(7, 2), torch.tensor([1, 4])
    parts = put(x, D1).tensor_split(put(indices, device))
    for a, b in zip(x.tensor_split(indices), parts, strict=True):
        assert b.device == torch.device(D1)
        assert torch.equal(a, b.cpu())


# ---- indices that may be on the CPU


INDEXED = {
    "index": lambda x, i, v: torch.ops.aten.index(x, [None, i]),
    "index_put": lambda x, i, v: torch.ops.aten.index_put(x, [i], v),
    "index_put_": lambda x, i, v: torch.ops.aten.index_put_(x.clone(), [i], v),
    "_index_put_impl_": lambda x, i, v: torch.ops.aten._index_put_impl_(x.clone(), [i], v),
    "_unsafe_index": lambda x, i, v: torch.ops.aten._unsafe_index(x, [i]),
    "_unsafe_index_put": lambda x, i, v: torch.ops.aten._unsafe_index_put(x, [i], v),
    "_unsafe_masked_index": lambda x, i, v: torch.ops.aten._unsafe_masked_index(
        x, (i < 2)[:, None], [i], 0
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", INDEXED)
def test_indices_on_any_device(name, device):
    x, i, v = torch.randn(3, 4), torch.tensor([2, 0, 1]), torch.randn(3, 4)
    result = INDEXED[name](put(x, D1), put(i, device), put(v, D1))
    assert result.device == torch.device(D1)
    assert torch.equal(result.cpu(), INDEXED[name](x, i, v))


# ---- writes that the schema does not tell


aten = torch.ops.aten
STATISTICS = {
    "batch_norm": lambda x, m, v: aten.batch_norm(x, None, None, m, v, True, 0.1, 1e-5, False),
    "native_batch_norm": lambda x, m, v: aten.native_batch_norm(
        x, None, None, m, v, True, 0.1, 1e-5
    ),
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
    "instance_norm": lambda x, m, v: aten.instance_norm(
        x, None, None, m, v, True, 0.1, 1e-5, False
    ),
}


@pytest.mark.parametrize("devices", [(D1, "cpu"), ("cpu", D0), (D1, D2)])
@pytest.mark.parametrize("name", STATISTICS)
def test_running_statistics_are_written_where_they_are(name, devices):
    x, mean, var = torch.randn(2, 3, 4), torch.zeros(3), torch.ones(3)
    there = [put(t.clone(), d) for t, d in zip((mean, var), devices, strict=True)]
    STATISTICS[name](x, mean, var)
    STATISTICS[name](put(x, D0), *there)
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
    expected, result = observe(x, *state), observe(put(x, D2), *there)
    assert torch.equal(result.cpu(), expected)
    for i, (t, s) in enumerate(zip(there, state, strict=True)):
        assert t.device == torch.device(DEVICES[i])
        assert torch.equal(t.cpu(), s)
