"""Models and operators on simulated devices give the CPU's bits, backward and strides included."""

import copy
import gc
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import rnn

DEVICE = "sim:1"


@pytest.fixture(autouse=True)
def nothing_left():
    """No byte stays on the device when a test is over."""
    gc.collect()
    before = torch.sim.memory_allocated(DEVICE)
    yield
    deadline = time.monotonic() + 20  # the engine's threads drop their last tensors a little later
    while torch.sim.memory_allocated(DEVICE) != before and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert torch.sim.memory_allocated(DEVICE) == before


def same(host, sim, what):
    assert sim.device == torch.device(DEVICE), what
    assert (host.dtype, host.shape, host.layout) == (sim.dtype, sim.shape, sim.layout), what
    if host.layout == torch.strided:
        assert host.stride() == sim.stride(), what
    a, b = host.detach(), sim.detach().cpu()
    if a.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    assert torch.equal(a, b), f"{what} differs"


def tensors(x):
    if isinstance(x, torch.Tensor):
        return [x]
    if isinstance(x, rnn.PackedSequence):
        return [x.data]
    return [t for y in x for t in tensors(y)] if isinstance(x, list | tuple) else []


def moved(x):
    return x.detach().to(DEVICE).requires_grad_(x.requires_grad)


def check(function, *inputs, module=None):
    """Runs function(module, *inputs) on both sides: outputs and gradients must be equal."""
    modules = module, copy.deepcopy(module).to(DEVICE) if module else None
    sides = [(modules[0], inputs), (modules[1], [moved(x) for x in inputs])]
    results = []
    for m, xs in sides:
        torch.manual_seed(7)
        outputs = tensors(function(m, *xs))
        wanted = [t for t in [*xs, *(m.parameters() if m else ())] if t.requires_grad]
        targets = [o for o in outputs if o.requires_grad]
        grads = ()
        if targets:
            grads = torch.autograd.grad(
                [o.abs().square().sum() for o in targets], wanted, allow_unused=True
            )
        results.append((outputs, grads))
    (outputs, grads), (sim_outputs, sim_grads) = results
    for i, (a, b) in enumerate(zip(outputs, sim_outputs, strict=True)):
        same(a, b, f"output {i}")
    for i, (a, b) in enumerate(zip(grads, sim_grads, strict=True)):
        assert (a is None) == (b is None)
        if a is not None:
            same(a, b, f"gradient {i}")


def call(module, *inputs):
    return module(*inputs)


def wanted(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


MODELS = {
    "mlp": (
        lambda: nn.Sequential(
            nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Dropout(0.3), nn.Linear(16, 4)
        ),
        lambda: torch.randn(5, 8),
    ),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(72, 3),
        ),
        lambda: torch.randn(4, 3, 8, 8),
    ),
    "lstm": (
        lambda: First(nn.LSTM(6, 7, 2, dropout=0.2, bidirectional=True)),
        lambda: torch.randn(5, 3, 6),
    ),
    "gru": (lambda: First(nn.GRU(6, 7, 2, batch_first=True)), lambda: torch.randn(5, 3, 6)),
    "encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2),
        lambda: torch.randn(2, 5, 16),
    ),
}


class First(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


@pytest.mark.filterwarnings(
    "ignore:enable_nested_tensor is True:UserWarning"
)  # about inference only
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("foreach", [False, True])
def test_training_is_bitwise_equal(name, foreach):
    make, make_input = MODELS[name]
    model, x = make(), make_input()
    other = copy.deepcopy(model).to(DEVICE)
    for m, inputs in ((model, x), (other, x.to(DEVICE))):
        torch.manual_seed(1)
        optimizer = torch.optim.AdamW(m.parameters(), lr=1e-2, foreach=foreach)
        for _ in range(3):
            optimizer.zero_grad()
            m(inputs).square().mean().backward()
            optimizer.step()
    for (key, a), b in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        same(a, b, key)


RNN_OPTIONS = [
    {},
    {"num_layers": 2, "bidirectional": True},
    {"batch_first": True},
    {"bias": False},
    {"num_layers": 2, "dropout": 0.5},
]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", RNN_OPTIONS, ids=str)
def test_recurrent_layers(kind, dtype, options):
    check(call, wanted(5, 3, 6, dtype=dtype), module=kind(6, 7, dtype=dtype, **options))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", RNN_OPTIONS, ids=str)
def test_packed_recurrent_layers(kind, options):
    options = {k: v for k, v in options.items() if k != "batch_first"}

    def run(module, x):
        return module(rnn.pack_padded_sequence(x, [5, 3, 2]))

    check(run, wanted(5, 3, 6), module=kind(6, 7, **options))


@pytest.mark.filterwarnings(
    "ignore:LSTM with projections is not supported:UserWarning"
)  # on the CPU
def test_projections_relu_states_and_no_grad():
    check(call, wanted(5, 3, 6), module=nn.LSTM(6, 8, 2, proj_size=3, bidirectional=True))
    check(call, wanted(5, 3, 6), module=nn.RNN(6, 7, nonlinearity="relu"))
    check(
        lambda m, x, h, c: m(x, (h, c)),
        wanted(5, 3, 6),
        wanted(1, 3, 7),
        wanted(1, 3, 7),
        module=nn.LSTM(6, 7),
    )
    with torch.no_grad():
        check(call, torch.randn(5, 3, 6), module=nn.LSTM(6, 7))
        check(call, torch.randn(5, 3, 6), module=nn.GRU(6, 7))


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_recurrent_cells(kind):
    check(call, wanted(3, 6), module=kind(6, 7))
    check(call, wanted(3, 6), module=kind(6, 7, bias=False))


def test_bad_recurrent_input_is_refused():
    lstm = nn.LSTM(6, 7).to(DEVICE)
    x = torch.randn(5, 3, 6, device=DEVICE)
    state = torch.zeros(2, 3, 7, device=DEVICE)
    with pytest.raises(RuntimeError, match="hidden states of shape"):
        torch.lstm(x, (state, state), lstm._flat_weights, True, 1, 0.0, True, False, False)
    with pytest.raises(RuntimeError, match="batch_sizes"):
        torch.lstm(
            x[0], x[0, 0], (state[:1], state[:1]), lstm._flat_weights, True, 1, 0.0, True, False
        )
    with pytest.raises(RuntimeError, match="larger than 0"):
        torch.gru(
            x[:0],
            state[:1],
            nn.GRU(6, 7).to(DEVICE)._flat_weights,
            True,
            1,
            0.0,
            True,
            False,
            False,
        )


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout(p):
    check(
        lambda m, x: (F.dropout(x, p), F.dropout(x.t(), p), F.dropout(x * 1, p, inplace=True)),
        wanted(64, 8),
    )
    check(lambda m, x: (F.dropout2d(x, p), F.alpha_dropout(x, p / 2)), wanted(3, 4, 5, 5))
    check(lambda m, x: torch.native_dropout(x, p, True)[0], wanted(64, 8))
    with pytest.raises((RuntimeError, ValueError), match="probability"):
        torch.dropout(torch.ones(1, device=DEVICE), 1.5, True)


@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "learned mask", "dropout"])
def test_attention(kind):
    mask = torch.randn(6, 6)

    def run(module, q, k, v, m):
        options = {
            "plain": {},
            "causal": {"is_causal": True},
            "mask": {"attn_mask": m.detach() > 0},
            "learned mask": {"attn_mask": m},
            "dropout": {"dropout_p": 0.2},
        }
        return F.scaled_dot_product_attention(q, k, v, **options[kind])

    check(run, *(wanted(2, 3, 6, 8) for _ in range(3)), mask.requires_grad_(kind == "learned mask"))
    check(
        lambda m, x: m(x, x, x),
        wanted(2, 5, 16),
        module=nn.MultiheadAttention(16, 4, batch_first=True),
    )


def normed(device, dtype=torch.float32, like=torch.channels_last, wanted=(True, True, True)):
    """Leaves in layout `like`, what group_norm makes of them, and the gradient to begin with."""
    generator = torch.Generator().manual_seed(0)
    shape = (3, 12, 7, 5) if like is torch.channels_last else (2, 12, 3, 5, 4)

    def draw(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    leaves = [draw(*shape).to(memory_format=like), draw(12), draw(12)]
    leaves = [t.to(device).requires_grad_(w) for t, w in zip(leaves, wanted, strict=True)]
    return leaves, F.group_norm(leaves[0], 4, *leaves[1:]), draw(*shape).to(device)


def same_layout(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.cpu(), b)
        assert a.stride() == b.stride()


@pytest.mark.parametrize("like", [torch.channels_last, torch.channels_last_3d])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_group_norm_keeps_the_layout_in_both_passes(dtype, like):
    """Torch's formula of the derivative sums in another order on every device but the CPU."""

    def run(device):
        leaves, y, g = normed(device, dtype, like)
        kept = torch.autograd.grad(y, leaves, g, retain_graph=True)
        leaves[0].register_hook(lambda grad: 2 * grad)
        twice = torch.autograd.grad(y, leaves, g)
        with pytest.raises(RuntimeError, match="a second time"):
            torch.autograd.grad(y, leaves, g)
        return [y.detach(), *kept, *twice]

    same_layout(run("sim:1"), run("cpu"))


def test_group_norm_has_torchs_node():
    """What asks the graph finds torch's class, and derivatives beside the first are torch's."""
    (x, w, b), y, g = normed("sim:0")
    (x_cpu, w_cpu, b_cpu), y_cpu, g_cpu = normed("cpu")
    assert type(y.grad_fn) is type(y_cpu.grad_fn)
    assert torch.equal(y.grad_fn._saved_input, x)
    assert y.grad_fn._saved_group == 4
    assert torch.equal(y.grad_fn._saved_result1.cpu(), y_cpu.grad_fn._saved_result1)
    assert [n is None for n, _ in y.grad_fn.next_functions] == [False, False, False]

    def second(x, w, y, g):
        first = torch.autograd.grad(y, (x, w), g, create_graph=True)
        return [*first, *torch.autograd.grad(sum(t.pow(2).sum() for t in first), (x, w))]

    for a, e in zip(second(x, w, y, g), second(x_cpu, w_cpu, y_cpu, g_cpu), strict=True):
        assert torch.equal(a.detach().cpu(), e.detach())

    def moments(x, w, b):
        out = torch.native_group_norm(x, w, b, 3, 12, 35, 4, 1e-5)
        return torch.autograd.grad(out, (x, w, b), [torch.ones_like(t) for t in out])

    same_layout(moments(x, w, b), moments(x_cpu, w_cpu, b_cpu))


@pytest.mark.parametrize("wanted", [(False, True, False), (False, False, True)])
def test_group_norm_without_the_inputs_gradient(wanted):
    """Torch's CPU kernel ends the process for this in channels_last; here it is a part of all."""
    leaves, y, g = normed("sim:0", wanted=wanted)
    everything, y_cpu, g_cpu = normed("cpu")
    found = torch.autograd.grad(y, [t for t in leaves if t.requires_grad], g)
    expected = torch.autograd.grad(y_cpu, everything, g_cpu)
    same_layout(found, [e for e, w in zip(expected, wanted, strict=True) if w])


def test_a_tensor_given_twice_is_one_tensor_to_the_kernel():
    attention = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    with torch.no_grad():  # the fast path asks whether query, key and value are the same tensor
        check(
            lambda m, x: m(x, x, x, need_weights=False)[0], torch.randn(2, 5, 16), module=attention
        )
    check(lambda m, x: (torch.add(x, x), torch.dot(x[0], x[0]), x.clone().mul_(x)), wanted(4, 4))


def test_views_in_place_and_complex():
    def run(m, x):
        y = x * 1
        y[1:].add_(1)
        y.t()[0].mul_(2)
        y.transpose_(0, 1)
        z = torch.complex(y, y.cos())
        return (
            y,
            y.unfold(0, 2, 1),
            y.diagonal(),
            z.conj(),
            z.mH @ z,
            z.imag.neg(),
            torch.fft.fft2(z),
            z.conj().clone(),
        )

    check(run, wanted(4, 4))


def test_indexing():
    i = torch.tensor([0, 3, 1])

    def run(m, x, i):
        return (
            x[i],
            x[:, i],
            x.gather(0, i[None].expand(2, 3)),
            x[x > 0],
            x.scatter_add(0, i[None], x[:1, :3]),
            x.sort(1)[0],
        )

    check(run, wanted(5, 6), i)


@pytest.mark.filterwarnings(
    "ignore:Sparse CSR tensor support:UserWarning"
)  # torch's notice of a beta
def test_sparse():
    i, v = torch.tensor([[0, 1, 2, 2], [1, 0, 2, 0]]), wanted(4)

    def coo(m, i, v, d):
        s = torch.sparse_coo_tensor(i, v, (3, 3), check_invariants=True)
        return torch.sparse.mm(s, d), (s.coalesce() * 2).to_dense(), (s + s).to_dense()

    check(coo, i, v, wanted(3, 4))
    check(lambda m, x: x.relu().to_sparse(), torch.randn(4, 4))
    check(lambda m, x, d: x.relu().to_sparse_csr() @ d, torch.randn(3, 3), torch.randn(3, 2))


def test_sparse_gradients_train():
    table = nn.Embedding(10, 5, sparse=True)
    other = copy.deepcopy(table).to(DEVICE)
    index = torch.randint(0, 10, (4, 6))
    for m, i in ((table, index), (other, index.to(DEVICE))):
        optimizer = torch.optim.SparseAdam(m.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            m(i).square().sum().backward()
            optimizer.step()
    same(table.weight, other.weight, "weight")
    same(table.weight.grad, other.weight.grad, "gradient")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_and_grad_scaler(dtype):
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    other = copy.deepcopy(model).to(DEVICE)
    x = torch.randn(5, 8)
    for m, inputs, kind in ((model, x, "cpu"), (other, x.to(DEVICE), "sim")):
        scaler = torch.amp.GradScaler(kind, init_scale=8.0)
        optimizer = torch.optim.SGD(m.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast(kind, dtype=dtype):
                y = m(inputs)
                assert y.dtype == dtype
            scaler.scale(y.float().square().mean()).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 8.0
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        same(a, b, "parameter")


def test_grad_scaler_skips_a_step_with_infinities():
    w = torch.ones(3, device=DEVICE, requires_grad=True)
    optimizer, scaler = torch.optim.SGD([w], 0.1), torch.amp.GradScaler("sim", init_scale=8.0)
    scaler.scale((w * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert w.tolist() == [1, 1, 1]
    assert scaler.get_scale() == 4.0


def test_list_operators():
    xs = [torch.randn(3), torch.randn(4, 2)]
    ys = [x.to(DEVICE) for x in xs]
    for a, b in zip(torch._foreach_add(xs, 1), torch._foreach_add(ys, 1), strict=True):
        same(a, b, "_foreach_add")
    torch._foreach_mul_(xs, 2.0)
    torch._foreach_mul_(ys, 2.0)
    for a, b in zip(xs, ys, strict=True):
        same(a, b, "_foreach_mul_")


def test_copies_between_all_places():
    x = torch.randn(4, 6, dtype=torch.complex64)
    for source in (x, x.t(), x.conj(), x[::2], x.imag):
        there = source.to(DEVICE)
        assert torch.equal(there.cpu(), source)
        assert torch.equal(there.to("sim:2").cpu(), source)
        assert torch.equal(torch.empty_like(there).copy_(source).cpu(), source)
    assert torch.equal(x.to(DEVICE).to(torch.complex128).cpu(), x.to(torch.complex128))


def test_operators_of_other_libraries_with_a_cpu_kernel():
    with torch.library._scoped_library("sim_test", "DEF") as library:
        library.define("twice(Tensor x, Tensor(a!) count) -> Tensor")
        library.impl("twice", lambda x, count: (count.add_(1), x * 2)[1], "CPU")
        count = torch.zeros((), device=DEVICE)
        y = torch.ops.sim_test.twice(torch.ones(3, device=DEVICE), count)
        assert y.device == torch.device(DEVICE)
        assert y.tolist() == [2, 2, 2]
        assert count.item() == 1
