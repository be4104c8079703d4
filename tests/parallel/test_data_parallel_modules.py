"""managed.DataParallel and what modules do: checkpoints, caches, hooks, attributes, recordings."""

import copy

import pytest
import torch
import torch.nn.functional as F
from support.data_parallel import made, parallel
from support.devices import DEVICE_TYPE, device_name
from torch import nn
from torch.utils.checkpoint import checkpoint

from managed import DataParallel, ManagedModule

SEED = 39


def rows(n, width=32):
    torch.manual_seed(SEED)
    return torch.randn(n, width, dtype=torch.float64)


# ---- between a forward pass and its backward pass


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
        self.reentrant = reentrant

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("between", ["no_grad", "eval", "fails", "trains"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_call_between_forward_and_backward_passes_of_a_checkpoint(reentrant, between):
    torch.manual_seed(SEED)
    plain = Checkpointed(reentrant).double()
    net = DataParallel(copy.deepcopy(plain))
    x = rows(8, 16)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    plain(inputs[0]).square().sum().backward()
    loss = net(inputs[1]).square().sum()
    if between == "fails":
        with pytest.raises(RuntimeError):
            net(torch.ones(8, 3, dtype=torch.float64).requires_grad_())
    elif between == "trains":
        net(x.clone().requires_grad_()).sum()
    else:
        with torch.no_grad():
            net(inputs[0]) if between == "no_grad" else net.each(lambda net, x: x, x)
    loss.backward()
    for p, q in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad, rtol=1e-9, atol=1e-9)


def test_a_checkpoint_in_a_backward_pass_of_the_part_itself():
    torch.manual_seed(SEED)
    plain = Checkpointed(False).double()
    net = DataParallel(copy.deepcopy(plain))
    x = rows(8, 16)
    torch.use_deterministic_algorithms(True)
    try:
        net.each(lambda net, x: net(x).square().sum().backward(), x)
    finally:
        torch.use_deterministic_algorithms(False)
    plain(x).square().sum().backward()
    for p, q in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-9, atol=1e-9)


def test_training_goes_on_after_inference_mode():
    net = DataParallel(nn.Linear(2200, 4096, bias=False))  # 34 MiB in one: it goes in parts
    x = torch.randn(8, 2200, requires_grad=True)  # so the backward pass needs the weight
    for _ in range(2):
        with torch.inference_mode():
            net(x)
        net.each(lambda net, x: net(x).square().sum(), x).backward()
        with torch.no_grad():
            net.weight.mul_(1.5)
    assert net.weight.grad is not None
    assert x.grad is not None


# ---- gradients


class Summed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.randn(1024, 1024))
        self.b = nn.Parameter(torch.randn(1024, 1024))

    def forward(self, x):
        return F.linear(x, self.a + self.b)


def test_gradients_share_no_memory():
    """Addition gives one gradient to both, each of which is a bucket; one part alone has any."""
    net = DataParallel(ManagedModule.from_module(Summed()).cuda(0).pin())
    net(torch.randn(1, 1024)).sum().backward()
    before = net.b.grad.clone()
    net.a.grad.mul_(2)
    assert torch.equal(net.b.grad, before)


def test_hooks_of_parameters_without_a_gradient_are_not_called():
    net = nn.ModuleDict({k: nn.Linear(8, 8) for k in "abc"})
    seen = []
    net["c"].weight.register_hook(lambda g: seen.append(g is None))  # before it is managed
    net = DataParallel(net, [device_name(i) for i in (0, 1)])
    for name, p in net.named_parameters():
        p.register_hook(lambda g, name=name: seen.append(name) or g.clamp(-1, 1))
    net.each(lambda net, x: net["b"](net["a"](x)).sum(), torch.ones(4, 8)).backward()
    assert sorted(seen) == ["a.bias", "a.weight", "b.bias", "b.weight"]


class Scales(nn.Module):
    """Three types on each of four devices: twelve buckets, more than a sum waits for."""

    def __init__(self):
        super().__init__()
        types = (torch.float64, torch.float32, torch.bfloat16)
        self.scales = nn.ParameterList(torch.ones(512, dtype=types[i % 3]) for i in range(12))

    def forward(self, x):
        for scale in self.scales:
            x = x * scale.double()
        return x


def test_a_pass_for_one_parameter_leaves_nothing_in_the_graph_of_others():
    """Earlier buckets lead to it by the edge alone that lets its sum wait."""
    net = DataParallel(Scales())
    loss = net(rows(8, 512)).sum()
    module = torch.get_device_module(DEVICE_TYPE)
    seen = []
    for _ in range(4):
        for scale in net.scales:
            torch.autograd.grad(loss, [scale], retain_graph=True)
        seen.append([module.memory_allocated(i) for i in range(4)])
    for first, last in zip(seen[0], seen[-1], strict=True):
        assert last - first < 2**13  # the engine's threads drop their last tensor late


# ---- random numbers


@pytest.mark.parametrize("order", [(1, 0), (2, 0, 1), (3, 1)])
def test_numbers_repeat_whichever_device_is_first(order):
    runs = []
    for _ in range(2):
        torch.manual_seed(SEED)
        net = nn.Sequential(nn.Linear(16, 512), nn.Dropout(0.5)).double()
        net = DataParallel(net, [device_name(i) for i in order])
        torch.manual_seed(SEED + 1)
        runs.append(torch.stack([net(rows(8, 16)).detach().cpu() for _ in range(4)]))
    assert torch.equal(*runs)


# ---- attributes


def test_what_hooks_set_on_the_module_stays():
    net = parallel("mlp")
    net.steps = 0
    net[0].register_forward_hook(lambda m, i, o: setattr(net, "steps", net.steps + 1))
    net(rows(4))
    assert net.steps == 4


def test_what_one_part_writes_into_its_copy_is_gone_with_the_next_call():
    net = DataParallel(nn.BatchNorm1d(4))
    module = torch.get_device_module(DEVICE_TYPE)

    def write(net, x):
        if module.current_device() == 2:
            net.running_mean.add_(5)
        return net.running_mean.clone()

    x = torch.randn(8, 4)
    assert net.each(write, x).view(4, 4).sum(1).tolist() == [0, 0, 20, 0]
    assert net.each(lambda net, x: net.running_mean.clone(), x).sum() == 0
    assert net.running_mean.sum() == 0


class Growing(nn.Module):
    def __init__(self, registers="buffer"):
        super().__init__()
        self.weight, self.registers = nn.Parameter(torch.ones(4)), registers
        self.once = 1

    def forward(self, x):
        if self.registers == "buffer":
            self.register_buffer("size", torch.tensor(len(x)), persistent=False)
        elif self.registers == "parameter" and "more" not in self._parameters:
            self.more = nn.Parameter(torch.ones(4))
        if "once" in vars(self):
            del self.once
        return x * self.weight


def test_what_a_forward_pass_registers_or_deletes():
    net = DataParallel(Growing())
    for n in (8, 12):
        net(torch.ones(n, 4))
        assert net._buffers["size"] == n // 4
    assert "size" not in net.state_dict()
    assert not hasattr(net, "once")
    with pytest.raises(RuntimeError, match=r"Growing has registered \['more'\]"):
        DataParallel(Growing("parameter"))(torch.ones(8, 4))


def test_synced_layers_leave_nothing_on_the_module():
    net = DataParallel(made("cnn"), batch_norm="sync")
    x = torch.randn(8, 1, 8, 8, dtype=torch.float64)
    net(x)
    assert not any("forward" in vars(m) for m in net.modules())
    copy.deepcopy(net)
    net[1](torch.randn(4, 8, 8, 8, dtype=torch.float64))


class Activated(nn.BatchNorm2d):
    def forward(self, x):
        return F.relu(super().forward(x))


def test_a_synced_layer_with_a_forward_pass_of_its_own_is_refused():
    net = nn.Sequential(nn.Conv2d(1, 8, 3), Activated(8))
    with pytest.raises(ValueError, match="1 is a Activated with a forward pass of its own"):
        DataParallel(net, batch_norm="sync")
    DataParallel(net)(torch.randn(8, 1, 8, 8))


# ---- modules and arguments of other kinds


def test_a_graph_module_is_split():
    torch.manual_seed(SEED)
    plain = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.ReLU())
    net = DataParallel(torch.fx.symbolic_trace(copy.deepcopy(plain)))
    x = torch.randn(8, 4)
    torch.testing.assert_close(net(x).cpu(), plain(x))
    net(x).sum().backward()


@pytest.mark.parametrize("kind", ["list", "dictionary", "weight norm"])
def test_parameters_in_other_places(kind):
    class Held(nn.Module):
        def __init__(self):
            super().__init__()
            if kind == "list":
                self.held = nn.ParameterList(torch.ones(4) * i for i in range(3))
            elif kind == "dictionary":
                self.held = nn.ParameterDict({str(i): torch.ones(4) * i for i in range(3)})
            else:
                self.held = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))

        def forward(self, x):
            if kind == "weight norm":
                return self.held(x)
            values = self.held.values() if kind == "dictionary" else self.held
            return sum(x * p for p in values)

    torch.manual_seed(SEED)
    plain = Held()
    net = DataParallel(copy.deepcopy(plain))
    x = torch.randn(8, 4)
    for m in (plain, net):
        m(x).square().sum().backward()
    for p, q in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad)


def test_language_models_generate_as_on_one_device():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(SEED)
    config = GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=32)
    plain = GPT2LMHeadModel(config).eval()
    net = DataParallel(copy.deepcopy(plain))
    tokens = torch.randint(1, 50, (6, 5))
    told = {"attention_mask": torch.ones_like(tokens), "pad_token_id": 0, "do_sample": False}
    wanted = plain.generate(tokens, max_new_tokens=5, **told)
    found = net.generate(tokens, max_new_tokens=5, **told)
    assert torch.equal(found.cpu(), wanted)
    each = net.each(
        lambda net, x, mask: net.generate(
            x, attention_mask=mask, max_new_tokens=5, pad_token_id=0, do_sample=False
        ),
        tokens, told["attention_mask"],
    )  # fmt: skip
    assert torch.equal(each.cpu(), wanted)


def test_what_is_recorded_is_not_split():
    from torch.utils.flop_counter import FlopCounterMode

    net = parallel("mlp").float()
    x = torch.randn(8, 32)
    with FlopCounterMode(display=False) as counted:
        net(x)
    assert counted.get_total_flops() == 2 * 8 * (32 * 64 + 3 * 64 * 64 + 64 * 10)
