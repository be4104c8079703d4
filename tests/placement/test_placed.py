"""What the program puts on an accelerator stays there, and work goes to placed parameters.

Copies are counted by hand. A tensor that is wrapped where it is, on a device or not, is not placed:
those settle, see test_settling.py.
"""

import copy

import pytest
import torch
from support.apart import use_and_write
from support.devices import D0, D1, D2, D3, DEVICE_TYPE, device_name
from support.slices import slice_of
from torch import nn
from torch.nn.utils import parametrizations

import managed
from managed import _C, ManagedModule, ManagedTensor, device_manager

DEVICES = [device_name(i) for i in range(4)]
KIB = 1024


def at(device, *shape):
    """Only wrapped: a result that stands on the device."""
    return torch.randn(shape, device=device).as_subclass(ManagedTensor).clone()


def wrapped(*shape):
    return torch.randn(shape).as_subclass(ManagedTensor)


def linear(device, *sizes, bias=True):
    """A managed layer that the program puts on the device, or one that stands there."""
    made = ManagedModule.from_module(nn.Linear(*sizes, bias=bias))
    return made.cuda(device)


def reasons(start):
    copies = [e for e in managed.explain().since(start) if e.kind == "copy"]
    return {e.reason for e in copies if e.operator != "gradient"}


def now():
    return managed.stats(reset=True)["events"]


# ---- what is placed


PLACING = {
    "cuda()": lambda x: x.cuda(),
    "cuda(1)": lambda x: x.cuda(1),
    "cuda(disperse=True)": lambda x: x.cuda(disperse=True),
    "cuda(memory_format)": lambda x: x.cuda(1, memory_format=torch.contiguous_format),
    "to(device)": lambda x: x.to(D1),
    "to(device, dtype)": lambda x: x.to(D1, torch.float64),
    "to(kind)": lambda x: x.to("cuda"),
    "send": lambda x: device_manager.send(x, D1),
    "send a nest": lambda x: device_manager.send({"x": [x]}, D1)["x"][0],
    "manager.cuda": lambda x: device_manager.cuda(x),
    "manager.cuda(disperse=True)": lambda x: device_manager.cuda(x, disperse=True),
    "cuda of what is there": lambda x: at(D1, 4, 8).cuda(1),
    "again after unplace": lambda x: x.cuda(1).unplace().cuda(1),
    "a result": lambda x: (x.requires_grad_() * 2).cuda(1),
    "its detached values": lambda x: x.cuda(1).detach(),
    "a view of it": lambda x: x.cuda(1)[0],
    "a parameter made of it": lambda x: nn.Parameter(x.cuda(1)),
    "a deepcopy": lambda x: copy.deepcopy(x.cuda(1)),
    "a deepcopy of a parameter": lambda x: copy.deepcopy(nn.Parameter(x.cuda(1))),
    "moved by the machinery": lambda x: moved(x.cuda(1), D2),
}
NOT_PLACING = {
    "wrapping": lambda x: torch.randn(4, 8, device=D1).as_subclass(ManagedTensor),
    "to() before wrapping": lambda x: torch.randn(4, 8).to(D1).as_subclass(ManagedTensor),
    "device=": lambda x: torch.randn_like(x, device=D1),
    "_C.move": lambda x: moved(x.clone(), D1),
    "computing with it": lambda x: x.cuda(1) * 2,
    "cpu()": lambda x: x.cuda(1).cpu(),
    "to('cpu')": lambda x: x.cuda(1).to("cpu"),
    "unplace()": lambda x: x.cuda(1).unplace(),
    "to() of a result there": lambda x: (at(D1, 4, 8).requires_grad_() * 2).to(D1),
    "moved to the host": lambda x: device_manager.send(x.cuda(1), "cpu"),
}


def moved(x, device):
    _C.move(x, device)
    return x


@pytest.mark.parametrize("name", PLACING)
def test_what_places(name):
    x = PLACING[name](wrapped(4, 8))
    assert x.device.type == DEVICE_TYPE
    assert x.placed is True


@pytest.mark.parametrize("name", NOT_PLACING)
def test_what_does_not_place(name):
    assert NOT_PLACING[name](wrapped(4, 8)).placed is False


def test_placed_is_a_name_of_managed_tensors_only():
    assert not hasattr(torch.rand(3), "placed")
    assert not hasattr(torch.rand(3), "unplace")
    x = wrapped(3)
    with pytest.raises(AttributeError, match="unplace"):
        x.placed = True
    assert x.unplace() is x


MODULES = {
    "cuda(1)": lambda m: m.cuda(1),
    "cuda()": lambda m: m.cuda(),
    "to(device)": lambda m: m.to(D1),
    "to(device, dtype)": lambda m: m.to(D1, torch.float64),
    "disperse": lambda m: m.cuda(disperse=True),
    "disperse parameters": lambda m: m.cuda(disperse="parameters"),
    "send": lambda m: device_manager.send(m, D1),
    "manager.cuda": lambda m: device_manager.cuda(m),
    "to_empty": lambda m: m.to_empty(device=D1),
    "half": lambda m: m.cuda(1).half(),
    "deepcopy": lambda m: copy.deepcopy(m.cuda(1)),
    "a plain module's cuda": lambda m: nn.Module.cuda(m, 1),
}


def tensors(module):
    return [*module.parameters(), *module.buffers()]


def batch_norm():
    return ManagedModule.from_module(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_placed_with_all_it_has(name):
    net = MODULES[name](batch_norm())
    assert [t.placed for t in tensors(net)] == [True] * len(tensors(net))
    net.unplace()
    assert not any(t.placed for t in tensors(net))
    assert all(t.device.type == DEVICE_TYPE for t in tensors(net))


def test_cpu_ends_it_for_a_module():
    net = batch_norm().cuda(1).cpu()
    assert not any(t.placed for t in tensors(net))
    for t in tensors(net):
        _C.move(t, D1)
    assert not any(t.placed for t in tensors(net))


def test_a_module_that_cannot_move_stays_placed():
    net = batch_norm().cuda(1)
    net[1].weight.pin()
    with pytest.raises(managed.errors.PinConflictError):
        net.cpu()
    assert all(t.placed for t in tensors(net))


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("assign", [False, True])
def test_loading_keeps_it(assign, swap):
    net = batch_norm().cuda(1)
    state = {k: v.clone() for k, v in net.state_dict().items()}
    torch.__future__.set_swap_module_params_on_conversion(swap)
    try:
        net.load_state_dict(state, assign=assign)
        assert all(t.placed for t in tensors(net))
        if not swap:  # torch swaps no managed tensor that has autograd's accumulator
            net.double()
            assert all(t.placed for t in tensors(net))
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def test_loading_on_the_host_ends_it():
    net = batch_norm().cuda(1)
    net.load_state_dict({k: v.cpu() for k, v in net.state_dict().items()}, assign=True)
    assert not any(t.placed for t in tensors(net))


def test_swapped_tensors_stay_placed():
    a, b = nn.Parameter(wrapped(4).cuda(1)), nn.Parameter(at(D2, 4))
    torch.utils.swap_tensors(a, b)
    assert (a.device, b.device) == (torch.device(D2), torch.device(D1))
    assert a.placed
    assert b.placed


# ---- it does not move by itself


@pytest.mark.parametrize("kind", ["leaf", "parameter"])
def test_what_is_placed_does_not_settle(kind):
    x = at(D2, 64, 8).pin()
    w = wrapped(8, 8).cuda(1).detach().requires_grad_()
    w = nn.Parameter(w) if kind == "parameter" else w
    moves = _C.move_count()
    for _ in range(10):
        use_and_write(x, w)
    assert w.device == torch.device(D1)
    assert _C.move_count() == moves
    w.unplace()
    for _ in range(3):
        use_and_write(x, w)
    assert w.device == x.device


def test_running_statistics_that_are_placed_stay():
    x = at(D2, 64, 8)
    norm = ManagedModule.from_module(nn.BatchNorm1d(8, affine=False)).cuda(1)
    for _ in range(5):
        norm(x)
    assert {b.device for b in norm.buffers()} == {torch.device(D1)}


# ---- work goes to placed parameters and buffers


@pytest.mark.not_under_torture("the history forgets what it counts")
@pytest.mark.parametrize("bias", [True, False])
def test_a_batch_goes_to_a_layer_however_large(bias):
    layer = linear(1, 8, 8, bias=bias)
    batch = wrapped(4096, 8).cuda(2)  # brought by the program, and yet it draws nothing
    start = now()
    assert layer(batch).device == torch.device(D1)
    assert reasons(start) == {"a parameter or buffer was put there"}
    assert managed.stats()["links"] == {f"{D2}->{D1}": batch.nbytes}


def test_results_and_other_tensors_weigh_by_cost():
    """A mask that the program put elsewhere does not draw a large activation."""
    mask = (wrapped(1, 64) > 0).float().cuda(2)
    hidden = at(D0, 512, 64)
    assert (hidden * mask).device == torch.device(D0)
    assert (hidden * wrapped(64).cuda(3)).device == torch.device(D0)


def test_a_buffer_draws_as_a_parameter_does():
    net = ManagedModule()
    net.register_buffer("scale", torch.randn(64))
    net.cuda(3)
    assert (at(D0, 512, 64) * net.scale).device == torch.device(D3)
    assert (at(D0, 512, 64) * net.scale.unplace()).device == torch.device(D0)


def test_what_was_only_wrapped_draws_nothing():
    layer = ManagedModule.from_module(nn.Linear(8, 8, device=D1))
    assert layer(at(D2, 2**16, 8)).device == torch.device(D2)


def test_a_parameter_without_a_module_draws():
    w = nn.Parameter(wrapped(8, 8).cuda(1))
    x = at(D2, 4096, 8)
    assert (x @ w).device == torch.device(D1)
    assert (x @ w.t()).device == torch.device(D1)
    assert (x[:, :4] @ w[:4]).device == torch.device(D1)


def test_where_parameters_disagree_cost_decides():
    w, b = nn.Parameter(wrapped(64, 64).cuda(1)), nn.Parameter(wrapped(64).cuda(2))
    x = at(D3, 8, 64)
    assert nn.functional.linear(x, w, b).device == torch.device(D1)  # 16 KiB against 2
    assert nn.functional.linear(at(D3, 4096, 64), w, b).device == torch.device(D3)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_casts_of_autocast_count_as_their_parameters(bias, grad):
    layers = [linear(i, 64, 64, bias=bias) for i in (1, 2)]
    conv = ManagedModule.from_module(nn.Conv1d(1, 1, 3, bias=bias)).cuda(3)
    x = at(D0, 4096, 64)
    with torch.autocast(DEVICE_TYPE, torch.bfloat16), torch.set_grad_enabled(grad):
        for _ in range(2):  # the second time the casts are cached
            y = layers[0](x)
            z = layers[1](y)
            assert (y.device, z.device) == (torch.device(D1), torch.device(D2))
            assert conv(z[:, None]).device == torch.device(D3)


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm", "orthogonal"])
def test_parametrized_results_count_as_their_parameters(name, late):
    layer = nn.Linear(16, 16, bias=False)
    if late:
        ManagedModule.from_module(layer)
    getattr(parametrizations, name)(layer)
    ManagedModule.from_module(layer).cuda(2)
    x = at(D1, 4096, 16)
    assert layer.weight.placed
    assert layer(x).device == torch.device(D2)
    layer.unplace()
    assert not layer.weight.placed
    assert layer(at(D1, 4096, 16)).device == torch.device(D1)


@pytest.mark.not_under_torture("a copy that is dropped draws nothing")
def test_a_kept_copy_draws_what_is_not_placed():
    layer, x = linear(2, 64, 64, bias=False), at(D1, 4096, 64)
    assert layer(x).device == torch.device(D2)  # the layer is placed, and x is copied
    layer.unplace()
    start = now()
    assert layer(x).device == torch.device(D2)
    assert reasons(start) == set()  # nothing is copied
    x.add_(1)
    assert layer(x).device == torch.device(D1)  # the copy is stale


# ---- a tie between activations goes to the one that was made last


class Residual(nn.Module):
    def __init__(self, layers, width):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x


def over_devices(layers, width):
    net = ManagedModule.from_module(Residual(layers, width))
    for i, layer in enumerate(net.layers):
        layer.cuda(4 * i // layers)
    return net


@pytest.mark.not_under_torture("it counts what leaves and comes back")
def test_a_residual_stream_crosses_each_border_once():
    """Three borders: one copy of the stream each way, and none returns to the first device."""
    net, plain = over_devices(12, 64), Residual(12, 64)
    plain.load_state_dict({k: v.cpu() for k, v in net.state_dict().items()})
    x = torch.randn(128, 64)  # 32 KiB
    stream = x.nbytes
    out = (f"{D0}->{D1}", f"{D1}->{D2}", f"{D2}->{D3}")
    home = (f"{D1}->{D0}", f"{D2}->{D1}", f"{D3}->{D2}")
    first = x.to(D0)
    for _ in range(3):
        managed.stats(reset=True)
        y = net(first)
        assert managed.stats(reset=True)["links"] == dict.fromkeys(out, stream)
        y.square().sum().backward()
        assert managed.stats(reset=True)["links"] == dict.fromkeys(home, stream)
    assert y.device == torch.device(D3)
    z = plain(x)
    for _ in range(3):
        z.square().sum().backward(retain_graph=True)
    assert torch.equal(y.cpu(), z)
    for p, q in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(p.grad.cpu(), q.grad)


class Normed(nn.Module):
    """What a transformer's block does with its stream."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.linear(self.norm(x)).tanh()


@pytest.mark.not_under_torture("it counts what leaves and comes back")
@pytest.mark.parametrize("grad", [True, False])
def test_a_residual_stream_under_autocast_crosses_each_border_once(grad):
    """The stream weighs more than the branch, but its copy is there since the norm has read it."""
    net = ManagedModule.from_module(nn.Sequential(*(Normed(64) for _ in range(12))))
    for i, layer in enumerate(net):
        layer.cuda(i // 3)
    x = torch.randn(128, 64).to(D0)
    out = (f"{D0}->{D1}", f"{D1}->{D2}", f"{D2}->{D3}")
    home = (f"{D1}->{D0}", f"{D2}->{D1}", f"{D3}->{D2}")
    for _ in range(3):
        managed.stats(reset=True)
        with torch.autocast(DEVICE_TYPE, torch.bfloat16), torch.set_grad_enabled(grad):
            y = net(x)
        assert y.device == torch.device(D3)
        assert managed.stats(reset=True)["links"] == dict.fromkeys(out, x.nbytes)
        if grad:
            y.square().sum().backward()
            assert managed.stats(reset=True)["links"] == dict.fromkeys(home, x.nbytes)


@pytest.mark.not_under_torture("it counts what leaves and comes back")
def test_a_residual_stream_crosses_once_in_inference():
    net = over_devices(12, 64)
    x = torch.randn(128, 64, device=D0)
    managed.stats(reset=True)
    with torch.no_grad():
        net(x)
    out = (f"{D0}->{D1}", f"{D1}->{D2}", f"{D2}->{D3}")
    assert managed.stats(reset=True)["links"] == dict.fromkeys(out, x.nbytes)


class InPlace(Residual):
    def forward(self, x):
        x = x * 1
        for layer in self.layers:
            x += layer(x).tanh()
        return x


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.not_under_torture("it counts what leaves and comes back")
def test_a_stream_that_is_added_to_in_place_crosses_each_border_once(mode):
    """The layer reads its copy of the stream, and then the stream follows: one copy each."""
    net, plain = over_devices(12, 64), InPlace(12, 64)
    plain.load_state_dict({k: v.cpu() for k, v in net.state_dict().items()})
    net.__class__.forward = InPlace.forward
    x = torch.randn(128, 64)
    first = x.to(D0)
    managed.stats(reset=True)
    with mode():
        y = net(first)
    crossed = managed.stats(reset=True)["links"]
    borders = (f"{D0}->{D1}", f"{D1}->{D2}", f"{D2}->{D3}")
    assert crossed == dict.fromkeys(borders, 2 * x.nbytes)
    assert y.device == torch.device(D3)
    with mode():
        assert torch.equal(y.cpu(), plain(x))


@pytest.mark.not_under_torture("the history forgets what it counts")
def test_the_rule_of_ties_has_a_name():
    a = at(D0, 128, 64) * 2
    b = at(D1, 128, 64) * 2
    start = now()
    assert (a + b).device == b.device
    assert reasons(start) == {"as many bytes are there as elsewhere, and made last"}


# ---- programs


def train(net, loss, batches, autocast=False):
    """Links, spilled bytes and peaks of the steps after the first, which makes the states."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for i, batch in enumerate(
        b.clone() for b in batches
    ):  # a copy of one serves as long as it lives
        if i == 1:
            managed.stats(reset=True)
        optimizer.zero_grad()
        with torch.autocast(DEVICE_TYPE, torch.bfloat16, enabled=autocast):
            value = loss(net, batch)
        value.backward()
        optimizer.step()
    total = managed.stats(reset=True)
    peaks = [d["peak"] for d in total["devices"].values()]
    return {"copied": total["copy_bytes"], "spilled": total["spill_bytes"], "peak": max(peaks)}


def dispersed(make):
    return ManagedModule.from_module(make()).cuda(disperse=True)


def assert_as_pinned(make, loss, batches, autocast):
    net = dispersed(make)
    devices = [p.device for p in net.parameters()]
    assert len(set(devices)) == 4
    free = train(net, loss, batches, autocast)
    assert [p.device for p in net.parameters()] == devices
    del net
    pinned = train(dispersed(make).pin(), loss, batches, autocast)
    for what, most in pinned.items():
        assert free[what] <= 1.05 * most, (what, free, pinned)


@pytest.mark.usefixtures("level_devices")
@pytest.mark.not_under_torture("it counts what leaves and comes back")
@pytest.mark.parametrize("autocast", slice_of([False, True]))
def test_a_dispersed_perceptron_stays_dispersed(autocast):
    """Its activations outweigh its weights, which gathered on one device within four steps."""
    batches = [torch.randn(512, 256) for _ in range(5)]
    assert_as_pinned(
        lambda: nn.Sequential(*[nn.Linear(256, 256) for _ in range(16)]),
        lambda net, x: net(x).square().mean(),
        batches,
        autocast,
    )


def gpt2(layers=12, width=64, **more):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=layers, n_embd=width, n_head=4, vocab_size=512, n_positions=64,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, **more,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def language_loss(net, tokens):
    return net(input_ids=tokens, labels=tokens).loss


@pytest.mark.usefixtures("level_devices")
@pytest.mark.not_under_torture("it counts what leaves and comes back")
@pytest.mark.parametrize("autocast", slice_of([False, True]))
def test_a_dispersed_gpt2_stays_dispersed(autocast):
    batches = [torch.randint(0, 512, (8, 64)) for _ in range(4)]
    assert_as_pinned(gpt2, language_loss, batches, autocast)


def border_bytes(net, tokens):
    """Of what is needed on both sides, wherever a layer and the next one that runs are on different
    devices: what goes in and, where that is not the residual stream itself, the stream beside it.
    """
    found, last = [0], [None]
    norms = [norm for b in net.transformer.h for norm in (b.ln_1, b.ln_2)]
    read_the_stream = [net.lm_head, net.transformer.ln_f, *norms]

    def enter(module, inputs):
        device = next(module.parameters(recurse=False)).device
        stream = tokens.numel() * net.config.n_embd * 4
        if last[0] not in (None, device):
            found[0] += inputs[0].nbytes + (0 if module in read_the_stream else stream)
        last[0] = device

    own = [m for m in net.modules() if next(m.parameters(recurse=False), None) is not None]
    handles = [m.register_forward_pre_hook(enter) for m in own]
    with torch.no_grad():
        net(input_ids=tokens)
    for handle in handles:
        handle.remove()
    return found[0]


@pytest.mark.usefixtures("level_devices")
@pytest.mark.not_under_torture("it counts what leaves and comes back")
@pytest.mark.parametrize(
    "ballast", slice_of([0, 8192, 73728])
)  # bytes: each sets the borders elsewhere
def test_a_dispersed_gpt2_copies_its_borders(ballast):
    """Forwards what crosses, backwards its gradient, and the tokens in the beginning."""
    held = torch.empty(ballast, dtype=torch.uint8, device=device_name(0))
    net = dispersed(gpt2)
    del held
    tokens = torch.randint(0, 512, (8, 64))
    once = border_bytes(net, tokens)
    assert once >= 4 * 8 * 64 * 64 * 4  # three borders, and the tied head is on the first device
    copied = train(net, language_loss, [tokens] * 3)["copied"] / 2
    assert copied <= 1.3 * 2 * once
    assert copied == 2 * once + tokens.nbytes


# ---- tiles that a program has placed by hand


def tiles_of(matrix, n, grid):
    """Tile i, j on the device (i mod grid, j mod grid)."""
    size = matrix.shape[0] // n
    return {
        (i, j): matrix[i * size : (i + 1) * size, j * size : (j + 1) * size].clone()
        .as_subclass(ManagedTensor)
        .cuda(i % grid * grid + j % grid)
        for i in range(n)
        for j in range(i + 1)
    }  # fmt: skip


def cholesky(tile, n):
    """As StarPU's example: each task writes one tile."""
    for k in range(n):
        torch.linalg.cholesky(tile[k, k], out=tile[k, k])
        for i in range(k + 1, n):
            solved = torch.linalg.solve_triangular(tile[k, k], tile[i, k].mT, upper=False)
            tile[i, k].copy_(solved.mT)
        for i in range(k + 1, n):
            tile[i, i].addmm_(tile[i, k], tile[i, k].mT, alpha=-1)
            for j in range(k + 1, i):
                tile[i, j].addmm_(tile[i, k], tile[j, k].mT, alpha=-1)


def test_tiles_stay_where_the_program_put_them():
    n, size = 6, 48
    a = torch.randn(n * size, n * size, dtype=torch.float64)
    a = a @ a.T + n * size * torch.eye(n * size, dtype=torch.float64)
    tile = tiles_of(a, n, 2)
    homes = {key: t.device for key, t in tile.items()}
    moves = _C.move_count()
    cholesky(tile, n)
    assert {key: t.device for key, t in tile.items()} == homes
    assert all(t.placed for t in tile.values())
    assert _C.move_count() == moves
    factor = torch.zeros_like(a)
    for (i, j), t in tile.items():
        factor[i * size : (i + 1) * size, j * size : (j + 1) * size] = t.cpu()
    factor = factor.tril()
    torch.testing.assert_close(factor @ factor.T, a)
