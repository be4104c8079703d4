"""One test per row of the table in csrc/torch/rules.cpp that is not covered by choices and writes.

Operands that must be on the CPU, composites whose bodies compare devices, and operators that
come from outside: custom ones, autocast, TorchScript, torch.func, other threads.
"""

import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import managed
from managed import ManagedTensor

DEVICES = ("cpu", "sim:0", "sim:1", "sim:2")


def put(t, device):
    return t.to(device).as_subclass(ManagedTensor)


def at(device, *sizes):
    return put(torch.randn(sizes), device)


def spread(*tensors):
    """The tensors on devices of their own, and the same tensors plain on the CPU."""
    return [put(t, DEVICES[(i + 1) % 4]) for i, t in enumerate(tensors)], list(tensors)


def agree(function, *tensors):
    """`function` of tensors on four devices gives what it gives on the CPU, managed."""
    there, here = spread(*tensors)
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


# ---- composites that compare devices


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
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_composites(name):
    function, sizes = COMPOSITES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # chain_matmul is deprecated in favour of multi_dot
        agree(function, *(torch.randn(s) for s in sizes))


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


# ---- operators from outside aten


@pytest.fixture(scope="module")
def custom():
    @torch.library.custom_op("align_test::scaled_sum", mutates_args=())
    def scaled_sum(a: torch.Tensor, b: torch.Tensor, factor: float) -> torch.Tensor:
        if a.device != b.device:
            raise ValueError(f"operands on {a.device} and {b.device}")
        return (a + b) * factor

    @torch.library.custom_op("align_test::accumulate", mutates_args=("into",))
    def accumulate(into: torch.Tensor, part: torch.Tensor) -> None:
        if into.device != part.device:
            raise ValueError(f"operands on {into.device} and {part.device}")
        into.add_(part)

    scaled_sum.register_autograd(
        lambda ctx, g: (g * ctx.factor, g * ctx.factor, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[2]),
    )
    return scaled_sum, accumulate


def test_a_custom_operator(custom):
    agree(lambda a, b: custom[0](a, b, 2.0), torch.randn(4), torch.randn(4))


def test_a_custom_operator_backward(custom):
    a, b = (put(torch.randn(4), d).requires_grad_() for d in ("sim:0", "sim:1"))
    custom[0](a, b, 3.0).sum().backward()
    for leaf in (a, b):
        assert leaf.grad.device == leaf.device
        assert torch.equal(leaf.grad.cpu(), torch.full((4,), 3.0))


@pytest.mark.parametrize("home", DEVICES)
def test_a_custom_operator_that_writes(custom, home):
    into, part = at(home, 4), at("sim:1", 4)
    expected = into.cpu() + part.cpu()
    custom[1](into, part)
    assert into.device == torch.device(home)
    assert torch.equal(into.cpu(), expected)


def test_an_operator_of_torch_library(custom):
    library = torch.library.Library("align_test_open", "FRAGMENT")
    library.define("twice(Tensor a, Tensor b) -> Tensor")
    library.impl("twice", lambda a, b: 2 * (a + b), "CompositeExplicitAutograd")
    agree(torch.ops.align_test_open.twice, torch.randn(3), torch.randn(3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    w, x = torch.randn(8, 8), torch.randn(4, 8)
    leaves = w.clone().requires_grad_(), put(w, "cpu").requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        expected = x @ leaves[0]
    there = put(x, "sim:1")
    with torch.autocast("sim", dtype=dtype), torch.autocast("cpu", dtype=dtype):
        result = there @ leaves[1]
    assert (result.dtype, result.device) == (dtype, torch.device("sim:1"))
    assert torch.equal(result.cpu(), expected)
    for out in (expected, result):
        out.sum().backward()
    assert leaves[1].grad.device == leaves[1].device
    assert torch.equal(leaves[0].grad, leaves[1].grad)


def test_torchscript():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, and still used

        @torch.jit.script
        def body(x, w, b):
            for _ in range(3):
                x = torch.tanh(x @ w) + b
            return x

        agree(body, torch.randn(4, 4), torch.randn(4, 4), torch.randn(4))


def test_threads_of_cpp():
    """TorchScript's fork runs its operators on threads of torch, which Python never sees."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")

        @torch.jit.script
        def body(x, w):
            parts = [torch.jit.fork(torch.matmul, x, w) for _ in range(8)]
            return torch.stack([torch.jit.wait(p) for p in parts]).sum(0)

        agree(body, torch.randn(4, 4), torch.randn(4, 4))


def test_threads_of_python():
    there, here = spread(torch.randn(16, 16), torch.randn(16, 16), torch.randn(16))
    expected = torch.tanh(here[0] @ here[1]) + here[2]
    wrong = []

    def work():
        for _ in range(50):
            result = torch.tanh(there[0] @ there[1]) + there[2]
            if not torch.equal(result.cpu(), expected):
                wrong.append(result.cpu() - expected)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_vmap():
    agree(lambda a, b: torch.vmap(lambda x: x * b)(a), torch.randn(5, 4), torch.randn(4))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own
def test_jacobian_and_tangent_of_a_closure_over_another_device():
    x, w = torch.randn(4), torch.randn(4)
    there = put(w, "sim:1")
    expected = torch.func.jacrev(lambda x: (x * w).sin())(x)
    result = torch.func.jacrev(lambda x: (x.to("sim:1") * there).sin())(put(x, "sim:1"))
    assert torch.equal(result.cpu(), expected)
    tangent = torch.func.jvp(lambda x: x * w, (x,), (torch.ones(4),))[1]
    result = torch.func.jvp(lambda x: x * there, (put(x, "sim:1"),), (put(torch.ones(4), "sim:1"),))[1]
    assert torch.equal(result.cpu(), tangent)


def test_gradient_transform_on_one_device():
    w = at("sim:1", 4)
    x = at("sim:1", 4)
    g = torch.func.grad(lambda x: (x * w).sum())(x)
    assert g.device == x.device
    assert torch.equal(g.cpu(), w.cpu())


def test_gradient_transform_over_devices():
    x, w = at("sim:0", 4), at("sim:1", 400)
    g = torch.func.grad(lambda x: (x.repeat(100) * w).sum())(x)
    assert g.device == x.device
    assert torch.equal(g.cpu(), torch.func.grad(lambda x: (x.repeat(100) * w.cpu()).sum())(x.cpu()))


def test_sparse_operands():
    i, v = torch.tensor([[0, 1, 2], [1, 0, 2]]), torch.randn(3)
    dense = torch.randn(3, 2)
    sparse = torch.sparse_coo_tensor(i, v, (3, 3), check_invariants=True)
    agree(torch.sparse.mm, sparse, dense)
    agree(lambda i, v: torch.sparse_coo_tensor(i, v, (3, 3), check_invariants=True).to_dense(), i, v)


def test_inference_mode_then_training():
    w, x = at("cpu", 4, 4).requires_grad_(), at("sim:1", 4, 4)
    with torch.inference_mode():
        assert (x @ w).is_inference()
    (x @ w).sum().backward()
    assert w.grad.device == w.device


def test_results_inside_no_grad_need_no_gradient():
    w, x = at("cpu", 4, 4).requires_grad_(), at("sim:1", 4, 4)
    with torch.no_grad():
        out = x @ w
    assert not out.requires_grad
    assert isinstance(out, ManagedTensor)
    assert managed.stats()["copy"] > 0
