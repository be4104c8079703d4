"""managed.DataParallel trains as one device does with the whole batch, in the module itself."""

import copy
import dataclasses
import pickle
import threading
from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F
from support.data_parallel import MODELS, SEED, Images, made, mlp, parallel, stepper, train, weights
from support.devices import D0, D1, D2, D3, DEVICE_TYPE, device_name
from torch import nn
from torch.utils.checkpoint import checkpoint

import managed
from managed import DataParallel, ManagedModule
from managed._parallel.shells import Shells
from managed.errors import PinConflictError


def close(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def rows(n, width=32):
    torch.manual_seed(SEED + n)
    return torch.randn(n, width, dtype=torch.float64)


# ---- training


@pytest.mark.parametrize("devices", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_steps_equal_those_of_the_whole_batch_on_one_device(name, devices):
    plain, net = made(name), parallel(name, devices)
    close(train(net, name), train(plain, name))
    close(weights(net), weights(plain))
    assert {str(p.device) for p in net.parameters()} == {device_name(i) for i in range(devices)}
    assert all(p.grad.device == p.device for p in net.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_a_second_run_has_the_same_bits(name):
    runs = []
    for _ in range(2):
        net = parallel(name)
        runs.append((train(net, name, steps=4), weights(net)))
    for a, b in zip(*(losses + after for losses, after in runs), strict=True):
        assert torch.equal(a, b)


def test_gradients_are_summed_in_the_order_of_the_devices():
    """To the last bit: those of the parts, weighted by their samples."""
    plain, net, x = made("mlp"), parallel("mlp"), rows(18) * 10
    net.each(lambda net, x: net(x).square().mean(), x).backward()
    totals = None
    for part in x.split([5, 5, 4, 4]):
        loss = plain(part).square().mean()
        weight = torch.full_like(loss, len(part) / len(x))
        grads = torch.autograd.grad(loss, [*plain.parameters()], weight)
        totals = grads if totals is None else [a + b for a, b in zip(totals, grads, strict=True)]
    for p, total in zip(net.parameters(), totals, strict=True):
        assert torch.equal(p.grad.cpu(), total)


@pytest.mark.parametrize("clip", [None, 0.1])
def test_gradients_accumulate(clip):
    plain, net = made("mlp"), parallel("mlp")
    train(plain, "mlp", steps=5, clip=clip, passes=3)
    train(net, "mlp", steps=5, clip=clip, passes=3)
    close(weights(net), weights(plain))


@pytest.mark.parametrize("samples", [0, 1, 3, 4, 5, 9])
def test_any_number_of_samples_will_do(samples):
    plain, net = made("mlp"), parallel("mlp")
    x = rows(samples)
    out, wanted = net(x), plain(x)
    close([out.detach().cpu()], [wanted.detach()])
    assert str(out.device) == D0
    out.square().sum().backward()
    wanted.square().sum().backward()
    close([p.grad.cpu() for p in net.parameters()], [p.grad for p in plain.parameters()])


def test_nine_samples_on_four_devices_are_three_and_six_pairs():
    net = parallel("mlp")
    seen = net.each(lambda net, x: torch.tensor([len(x)]), rows(9))
    assert seen.tolist() == [3, 2, 2, 2]


@pytest.mark.parametrize("odds", [2, 5])
def test_torture_changes_no_bit(odds):
    runs = []
    for tortured in (False, True):
        net = parallel("tied gpt-2")
        if tortured:
            with managed.debug.torture(seed=SEED, odds=odds, at_least=1024):
                losses = train(net, "tied gpt-2", steps=2)
        else:
            losses = train(net, "tied gpt-2", steps=2)
        runs.append(losses + weights(net))
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a, b)


# ---- the module stays what it is


def test_the_module_itself_becomes_parallel():
    net = made("mlp")
    parameters, keys = [*net.parameters()], [*net.state_dict()]
    net.note = "mine"
    found = DataParallel(net)
    assert found is net
    assert isinstance(net, nn.Sequential)
    assert isinstance(net, DataParallel)
    assert isinstance(net, ManagedModule)
    assert isinstance(net[0], ManagedModule)
    assert [*map(id, net.parameters())] == [*map(id, parameters)]
    assert [*net.state_dict()] == keys
    assert net.note == "mine"
    assert type(net).__name__ == "Sequential"
    assert DataParallel(net) is net  # once more changes nothing
    net(rows(4))


def test_an_object_of_its_class_is_made_as_before():
    net = DataParallel(Images())
    other = type(net)()
    assert [*other.state_dict()] == [*net.state_dict()]
    assert other[0].weight is not net[0].weight


@pytest.mark.parametrize("way", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_is_a_managed_module(way):
    net = parallel("mlp")
    net(rows(4))
    other = way(net)
    assert isinstance(other, ManagedModule)
    assert not isinstance(other, DataParallel)
    torch.testing.assert_close(other(rows(4)).cpu(), net(rows(4)).cpu())


def test_placement_says_what_is_where():
    net = parallel("mlp")
    found = net.placement()
    assert [str(d.device) for d in found.devices] == [D0, D1, D2, D3]
    everything = sum(p.nbytes for p in net.parameters())
    assert sum(d.homes for d in found.devices) == everything
    for d in found.devices:
        here = [p for p in net.parameters() if p.device == d.device]
        assert d.parameters == len(here)
        assert d.homes == sum(p.nbytes for p in here)
        assert d.copies == everything - d.homes
    assert found.best <= found.balance
    assert "times an equal share" in str(found)
    assert D3 in str(found)
    assert "<table" in found._repr_html_()


def test_homes_do_not_depend_on_what_is_in_use():
    first = [p.device for p in parallel("mlp").parameters()]
    taken = torch.zeros(1 << 20, device=D0)
    assert [p.device for p in parallel("mlp").parameters()] == first
    del taken


def test_what_the_program_sets_later_holds_for_all_parts():
    net = DataParallel(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9)).double())
    x = torch.ones(8, 4, dtype=torch.float64)
    net(x)
    net.eval()
    assert torch.equal(net(x), net(x))
    net[1].note = 3
    assert net.each(lambda net, x: float(net[1].note), x) == 3
    del net[1].note
    assert net.each(lambda net, x: hasattr(net[1], "note"), x) is False


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.last = x.sum().detach()
        self.seen = len(x)
        return x * self.weight


def test_what_the_first_part_sets_is_on_the_module_afterwards():
    net = DataParallel(Counting())
    for _ in range(3):
        net(torch.arange(28.0).view(7, 4))
    assert net.calls == 3
    assert net.seen == 2
    assert net.last == sum(range(8))
    assert net.last is net._buffers["last"]
    assert managed._C.is_managed(net.last)


def test_running_statistics_are_those_of_the_first_part():
    plain, net = made("cnn"), DataParallel(made("cnn"))
    x = torch.randn(8, 1, 8, 8, dtype=torch.float64)
    for _ in range(2):
        net(x), plain(x[:2])
    close([b.cpu() for b in net.buffers()], [*plain.buffers()])
    net.eval(), plain.eval()
    close([net(x).cpu()], [plain(x)])


def test_hooks_of_modules_run_in_each_part_and_those_of_parameters_once():
    net, calls = parallel("mlp"), []
    net[0].register_forward_hook(lambda m, i, o: calls.append(len(o)))
    net[0].weight.register_hook(lambda g: calls.append(g.shape))
    net[0].weight.register_post_accumulate_grad_hook(lambda p: calls.append(p.shape))
    net(rows(9)).sum().backward()
    assert sorted(calls[:4]) == [2, 2, 2, 3]
    assert calls[4:] == [torch.Size([64, 32])] * 2


def test_another_structure_is_seen():
    net = parallel("mlp")
    x = rows(8)
    net(x)
    net[0] = nn.Linear(32, 64).double()
    with torch.no_grad():
        net[2].weight = nn.Parameter(torch.zeros(64, 64, dtype=torch.float64))
    wanted = copy.deepcopy(net).cpu()(x)
    torch.testing.assert_close(net(x).cpu(), wanted)


def test_shells_are_made_once(monkeypatch):
    net, made_shells = parallel("mlp"), []
    make = Shells.__init__
    monkeypatch.setattr(Shells, "__init__", lambda *a: (made_shells.append(1), make(*a))[1])
    train(net, "mlp", steps=3)
    assert len(made_shells) == 1


# ---- what crosses


@pytest.mark.parametrize("devices", [2, 4])
def test_each_device_sends_and_receives_what_an_exchange_needs(devices):
    width = 256
    net = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(8)])
    net = DataParallel(net, [device_name(i) for i in range(devices)])
    size = sum(p.nbytes for p in net.parameters())
    step = stepper(net, torch.randn(2 * devices, width))
    step(), step()
    managed.stats(reset=True)
    step()
    links = managed.stats()["links"]
    wanted = 2 * (devices - 1) / devices * size
    for i in range(devices):
        name = device_name(i)
        sent = sum(n for k, n in links.items() if k.startswith(f"{name}->") and "cpu" not in k)
        got = sum(n for k, n in links.items() if k.endswith(f"->{name}") and "cpu" not in k)
        assert abs(sent / wanted - 1) < 0.01
        assert abs(got / wanted - 1) < 0.01
    assert managed.stats()["host_waits"] == 0


def between_devices():
    links = managed.stats(reset=True)["links"]
    return sum(n for k, n in links.items() if "cpu" not in k)


@pytest.mark.parametrize("write", ["data", "in place", "load"])
def test_what_was_not_written_is_not_sent_again(write):
    net = parallel("mlp")
    x = rows(8)
    net.each(lambda net, x: net(x).sum(), x)  # orders the parameters
    net.each(lambda net, x: net(x).sum(), x)
    between_devices()
    net.each(lambda net, x: net(x).sum(), x)
    assert between_devices() < 1000  # numbers
    changed = copy.deepcopy(net).cpu()
    with torch.no_grad():
        for p in changed.parameters():
            p.mul_(2)
        if write == "data":
            for p in net.parameters():
                p.data.mul_(2)
        elif write == "in place":
            for p in net.parameters():
                p.mul_(2)
        else:
            net.load_state_dict(changed.state_dict())
    between_devices()
    torch.testing.assert_close(net(x).cpu(), changed(x))
    assert between_devices() > sum(p.nbytes for p in net.parameters()) * 2


def test_a_large_parameter_goes_in_parts_and_comes_back_in_parts():
    rng = torch.Generator().manual_seed(SEED)
    table = torch.randn(2200, 4096, generator=rng)  # 34.4 MiB, above MGD_BUCKET_LARGE
    net = DataParallel(nn.Embedding(*table.shape, _weight=table.clone()))
    plain = nn.Embedding(*table.shape, _weight=table.clone())
    where = torch.arange(2200)[:: 2200 // 64][:60]
    net(where).square().sum().backward()
    plain(where).square().sum().backward()
    torch.testing.assert_close(net.weight.grad.cpu(), plain.weight.grad)
    managed.stats(reset=True)
    net(where).square().sum().backward()
    links = managed.stats()["links"]
    home = str(net.weight.device)
    into_home = sum(n for k, n in links.items() if k.endswith(f"->{home}") and "cpu" not in k)
    assert into_home < 1.6 * table.nbytes  # one sum, less its own part, and its part of three


# ---- gradients


def test_a_parameter_that_no_part_uses_has_no_gradient():
    net = nn.ModuleDict({"used": nn.Linear(4, 4), "other": nn.Linear(4, 4)})
    net = DataParallel(net)
    net.each(lambda net, x: net["used"](x).sum(), torch.ones(8, 4)).backward()
    assert net["used"].weight.grad is not None
    assert net["other"].weight.grad is None


def test_a_parameter_that_one_part_uses_has_its_gradient():
    net = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    net = DataParallel(net)
    x = torch.arange(8.0)[:, None].expand(8, 4).contiguous()
    loss = net.each(lambda net, x: net["b" if x[0, 0] == 6 else "a"](x).sum(), x)
    loss.backward()
    torch.testing.assert_close(net["b"].weight.grad.cpu(), torch.full((4, 4), 13.0 / 4))
    torch.testing.assert_close(net["a"].weight.grad.cpu(), torch.full((4, 4), 15.0 / 4))


def test_gradients_can_be_asked_for_and_passes_repeated():
    plain, net = made("mlp"), parallel("mlp")
    x = rows(8)
    wanted = torch.autograd.grad(plain(x).sum(), [*plain.parameters()])
    loss = net(x).sum()
    found = torch.autograd.grad(loss, [*net.parameters()], retain_graph=True)
    close([g.cpu() for g in found], wanted)
    loss.backward(inputs=[net[0].weight], retain_graph=True)
    close([net[0].weight.grad.cpu()], wanted[:1])
    assert net[2].weight.grad is None
    loss.backward()
    close([net[0].weight.grad.cpu() / 2], wanted[:1])


def test_gradients_of_gradients_are_refused_by_name():
    net = parallel("mlp")
    with pytest.raises(NotImplementedError, match="create_graph=True"):
        torch.autograd.grad(net(rows(4)).sum(), [*net.parameters()], create_graph=True)
    net(rows(4)).sum().backward()


def test_frozen_parameters_and_inputs_with_gradients():
    plain, net = made("mlp"), parallel("mlp")
    for m in (plain, net):
        m[0].requires_grad_(False)
    x = rows(8)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    plain(inputs[0]).sum().backward()
    net(inputs[1]).sum().backward()
    close([inputs[1].grad], [inputs[0].grad])
    assert net[0].weight.grad is None
    net[0].requires_grad_(True)
    net(x).sum().backward()
    assert net[0].weight.grad is not None


def test_sparse_gradients_come_home():
    torch.manual_seed(SEED)
    plain = nn.Embedding(40, 8, sparse=True)
    net = DataParallel(copy.deepcopy(plain))
    where = torch.randint(40, (12, 3))
    for m in (plain, net):
        m(where).square().sum().backward()
    assert net.weight.grad.is_sparse
    torch.testing.assert_close(net.weight.grad.cpu().to_dense(), plain.weight.grad.to_dense())


def test_strides_of_parameters_stay():
    torch.manual_seed(SEED)
    plain = nn.Conv2d(8, 8, 3).to(memory_format=torch.channels_last)
    net = DataParallel(copy.deepcopy(plain))
    x = torch.randn(8, 8, 6, 6)
    for m in (plain, net):
        m(x).square().sum().backward()
    assert net.weight.grad.stride() == plain.weight.grad.stride()
    torch.testing.assert_close(net.weight.grad.cpu(), plain.weight.grad)


# ---- random numbers


def dropped(seed, **given):
    torch.manual_seed(SEED)
    net = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Linear(64, 4)).double()
    net = DataParallel(net, **given)
    torch.manual_seed(seed)
    out = [net(torch.ones(8, 16, dtype=torch.float64)) for _ in range(2)]
    return torch.stack([o.detach().cpu() for o in out])


def test_random_numbers_repeat_and_differ_between_parts_and_calls():
    first, again, other = dropped(1), dropped(1), dropped(2)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    rows_of_calls = first.flatten(0, 1)
    assert len({tuple(r.tolist()) for r in rows_of_calls}) == len(rows_of_calls)
    some = [device_name(i) for i in (1, 2, 3)]
    assert torch.equal(dropped(1, devices=some), dropped(1, devices=some))


def test_a_call_without_random_numbers_draws_none():
    net, x = parallel("mlp"), rows(8)
    torch.manual_seed(SEED)
    wanted = torch.rand(3, device=D0)
    torch.manual_seed(SEED)
    net(x)
    assert torch.equal(torch.rand(3, device=D0), wanted)


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Tanh())
        self.out = nn.Linear(16, 16)
        self.reentrant = reentrant

    def forward(self, x):
        x = self.out(x)
        if self.reentrant is None:
            return self.out(self.inner(x))
        return self.out(checkpoint(self.inner, x, use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_draw_the_same_numbers_again(reentrant):
    grads = []
    for way in (None, reentrant):
        torch.manual_seed(SEED)
        net = DataParallel(Checkpointed(way).double())
        torch.manual_seed(SEED + 1)
        x = torch.ones(8, 16, dtype=torch.float64, requires_grad=True)
        net(x).square().sum().backward()
        grads.append([p.grad.cpu() for p in net.parameters()])
    close(*grads)


# ---- what goes in and comes out

Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    name: str
    loss: torch.Tensor = None


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, given, *, scale=1.0, table=None, flag="a", none=None):
        assert flag == "b"
        assert none is None
        assert table.shape == (3, 4)
        x = given["pair"].left * self.weight * scale
        record = Record(given["record"].x * 2, given["record"].name, x.mean())
        return {
            "x": x, "pair": Pair(x, (given["pair"].right, len(x))), "record": record,
            "none": none, "flag": flag, "number": 2.5,
        }  # fmt: skip


def test_nests_of_all_kinds_are_split_and_put_together():
    net = DataParallel(Nested())
    x, y = rows(10, 4), torch.arange(10)
    given = {"pair": Pair(x, y), "record": Record(x, "r")}
    table = torch.zeros(3, 4)
    out = net(given, scale=3.0, table=table, flag="b")
    assert torch.equal(out["x"].cpu(), 3 * x)
    assert type(out["pair"]) is Pair
    assert torch.equal(out["pair"].right[0].cpu(), y)
    assert out["record"].name == "r"
    assert torch.equal(out["record"].x.cpu(), 2 * x)
    torch.testing.assert_close(out["record"].loss.cpu(), (3 * x).mean())
    assert out["none"] is None
    assert out["flag"] == "b"
    assert out["number"] == 2.5
    out["record"].loss.backward()
    torch.testing.assert_close(net.weight.grad.cpu(), 3 * x.mean(0) / 4)


def test_a_tensor_that_is_given_twice_stays_one_and_crosses_once():
    net, x = parallel("mlp"), rows(8)
    net(x)
    managed.stats(reset=True)
    assert net.each(lambda net, x, y: [x is y], x, {"y": x}["y"])[0]
    assert sum(managed.stats()["links"].values()) == x.nbytes


def test_losses_of_parts_are_averaged_by_samples_or_by_counts():
    net = parallel("mlp")
    x = rows(9)
    plain = made("mlp")
    mean = net.each(lambda net, x: net(x).square().mean(), x)
    torch.testing.assert_close(mean.cpu(), plain(x).square().mean())
    counts = torch.arange(9)

    def weighted(net, x, n):
        return (net(x).mean(1) * n).sum(), n.sum()

    loss = net.each(weighted, x, counts)
    wanted = (plain(x).mean(1) * counts).sum() / counts.sum()
    torch.testing.assert_close(loss.cpu(), wanted)
    one = parallel("mlp", 1)
    torch.testing.assert_close(one.each(weighted, x, counts).cpu(), wanted)
    assert net.each(lambda net, x: len(x), x) == pytest.approx((9 + 3 * 4) / 9)


def test_caches_of_language_models_are_put_together():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(SEED)
    config = GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=32)
    plain = GPT2LMHeadModel(config).eval()
    net = DataParallel(copy.deepcopy(plain))
    tokens = torch.randint(50, (6, 5))
    with torch.no_grad():
        wanted, found = plain(tokens), net(tokens)
    torch.testing.assert_close(found.logits.cpu(), wanted.logits)
    for layer, other in zip(found.past_key_values, wanted.past_key_values, strict=True):
        torch.testing.assert_close(layer[0].cpu(), other[0])


# ---- surroundings


def test_what_the_thread_has_set_goes_along():
    net = parallel("mlp").float()
    x = torch.randn(8, 32)

    def told(net, x):
        mode = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        return [*mode, torch.is_autocast_enabled(DEVICE_TYPE), str(net(x).dtype)]

    assert net.each(told, x) == [True, False, False, "torch.float32"]
    with torch.no_grad():
        assert net.each(told, x)[0] is False
        assert not net(x).requires_grad
    with torch.inference_mode():
        assert net.each(told, x)[1] is True
    with torch.autocast(DEVICE_TYPE, torch.bfloat16):
        assert net.each(told, x) == [True, False, True, "torch.bfloat16"]
    assert net(x).requires_grad


def test_each_part_has_its_device_as_the_current_one():
    net = parallel("mlp")
    module = torch.get_device_module(DEVICE_TYPE)
    seen = net.each(lambda net, x: torch.full((1,), module.current_device()), rows(8))
    assert seen.tolist() == [0, 1, 2, 3]
    assert module.current_device() == 0


def test_two_threads_may_call_one_model():
    net, x = parallel("mlp"), rows(12)
    wanted, found = net(x).detach().cpu(), []

    def call():
        found.extend(net(x).detach().cpu() for _ in range(5))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 15
    assert all(torch.equal(f, wanted) for f in found)


# ---- BatchNorm over the whole batch


@pytest.mark.parametrize("momentum", [0.1, None])
def test_synced_statistics_are_those_of_the_whole_batch(momentum):
    torch.manual_seed(SEED)
    plain = nn.Sequential(nn.BatchNorm1d(6, momentum=momentum), nn.Linear(6, 3)).double()
    net = DataParallel(copy.deepcopy(plain), batch_norm="sync")
    for n in (9, 6, 2):
        x = rows(n, 6) * 1e3 + 1e3
        mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        net(mine).square().sum().backward()
        plain(other).square().sum().backward()
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-6, atol=1e-9)
    close([b.cpu() for b in net.buffers()], [*plain.buffers()])
    close([p.grad.cpu() for p in net.parameters()], [p.grad for p in plain.parameters()])
    net.eval(), plain.eval()
    close([net(x).cpu()], [plain(x)])


def test_a_synced_layer_that_a_part_leaves_out_is_named():
    net = DataParallel(nn.BatchNorm1d(4), batch_norm="sync")
    with pytest.raises(RuntimeError, match="one has ended without this one"):
        net.each(lambda net, x: net(x) if x[0, 0] else x, torch.arange(8.0)[:, None].expand(8, 4))
    net(torch.randn(8, 4)).sum().backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_synced_layer_in_a_checkpoint_is_refused(reentrant):
    class Inside(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            return checkpoint(self.norm, x, use_reentrant=reentrant)

    net = DataParallel(Inside(), batch_norm="sync")
    with pytest.raises(RuntimeError, match=r"does not go with torch\.utils\.checkpoint"):
        net(torch.randn(8, 4, requires_grad=True))


# ---- errors


def test_an_exception_names_its_part_and_the_next_call_works():
    net = parallel("mlp")
    x = rows(9)

    def fails(net, x):
        if len(x) == 3 or x is None:
            raise KeyError("mine")
        return net(x)

    with pytest.raises(KeyError, match="mine") as caught:
        net.each(fails, x)
    notes = getattr(caught.value, "__notes__", caught.value.args)
    assert f"in part 1 of 4, on {D0}" in str(notes)
    torch.testing.assert_close(net(x).cpu(), made("mlp")(x))


def test_an_exception_lets_no_part_wait():
    net = DataParallel(made("cnn"), batch_norm="sync")
    x = torch.randn(8, 1, 8, 8, dtype=torch.float64)

    def fails(net, x):
        if torch.get_device_module(DEVICE_TYPE).current_device() == 2:
            raise ValueError("mine")
        return net(x)

    with pytest.raises(ValueError, match="mine"):
        net.each(fails, x)
    net(x).sum().backward()


@pytest.mark.parametrize(
    "devices", [[], [D0, D0], ["cpu"], [DEVICE_TYPE], [f"{DEVICE_TYPE}:9"], D0, [0, D0]]
)
def test_devices_that_make_no_sense_are_refused(devices):
    net = mlp()
    with pytest.raises(ValueError, match="managed: "):
        DataParallel(net, devices)
    assert type(net) is nn.Sequential
    assert {p.device.type for p in net.parameters()} == {"cpu"}


def test_bad_input_is_refused():
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.Module"):
        DataParallel(print)
    with pytest.raises(ValueError, match=r'batch_norm="sync"'):
        DataParallel(mlp(), batch_norm="all")
    with pytest.raises(ValueError, match="is lazy and has no shapes yet"):
        DataParallel(nn.Sequential(nn.LazyLinear(3)))
    with pytest.raises(ValueError, match="no tensor that has a dimension"):
        parallel("mlp")("text")
    with pytest.raises(TypeError, match="unexpected argument 'device_ids'"):
        DataParallel(mlp(), device_ids=[0])


def test_pins_are_kept():
    net = ManagedModule.from_module(mlp()).cuda(0)
    net[0].weight.pin()
    with pytest.raises(PinConflictError, match=r"Linear\.weight is pinned"):
        DataParallel(net, [1, 2])
    assert {str(p.device) for p in net.parameters()} == {D0}
    DataParallel(net)
    assert str(net[0].weight.device) == D0
    x = torch.randn(8, 32)
    F.mse_loss(net(x), torch.zeros(8, 10, device=D0)).backward()
    assert str(net[0].weight.grad.device) == D0
