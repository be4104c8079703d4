"""Pipelines: gradients of parts over devices are those of the same parts on one, to the last bit.

Shared by several devices, a parameter gets its gradient in another order of summation: 1e-9 then.
"""

import re

import pytest
import torch
import torch.nn.functional as F
from support.devices import D0, D1, D3, DEVICE_TYPE, ON_CUDA, device_name
from support.pipelines import (
    MODELS,
    SEED,
    clear,
    copied,
    gradients,
    in_turns,
    loss_of,
    made,
    rows,
    same,
    stepped,
)
from support.slices import slice_of
from torch import nn

import managed
from managed import ManagedTensor, Pipeline
from managed._parallel import parts, schedule


@pytest.mark.parametrize("order", ["1f1b", "gpipe"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_the_parts_one_after_the_other(name, order):
    net, batch, target = made(name)
    plain = copied(net, name)
    pipe = Pipeline(net, 4, schedule=order)
    tolerance = 1e-9 if "tied" in name else 0
    for step in range(3):
        wanted = in_turns(plain, batch, target, 4)
        loss = pipe.step(loss_of, batch, target)
        torch.testing.assert_close(loss.cpu(), wanted, rtol=tolerance, atol=tolerance)
        same(gradients(net), gradients(plain), tolerance)
        for (key, a), b in zip(net.named_buffers(), plain.buffers(), strict=True):
            assert torch.equal(a.cpu(), b), (step, key)
        clear(net), clear(plain)
    plan = pipe.plan()
    assert len(plan.stages) >= 2, str(plan)
    assert {p.device for p in net.parameters()} == {s.device for s in plan.stages}
    assert plan.goes_back is None, str(plan)
    assert plan.schedule == order


@pytest.mark.parametrize("name", ["mlp", "residual", "u-net", "lstm", "gpt-2", "tied gpt-2"])
def test_gradients_are_those_of_the_whole_batch(name):
    net, batch, target = made(name)
    plain = copied(net, name)
    pipe = Pipeline(net, 5)  # 12 samples: parts of 3, 3, 2, 2 and 2
    wanted = in_turns(plain, batch, target, 1)
    for _ in range(2):
        clear(net)
        torch.testing.assert_close(pipe.step(loss_of, batch, target).cpu(), wanted)
        same(gradients(net), gradients(plain), 1e-9)


def test_outputs_of_eval_are_put_together():
    net, batch, target = made("residual")
    plain = copied(net, "residual")
    pipe = Pipeline(net, 4)
    wanted = torch.cat([plain(x) for x in batch.split(3)]).detach()
    assert torch.equal(pipe.eval(batch).cpu(), wanted)  # before it is measured
    pipe.step(loss_of, batch, target)
    out = pipe.eval(batch)
    assert torch.equal(out.cpu(), wanted)
    assert not out.requires_grad
    assert str(out.device) == D3
    assert pipe.module is net


def test_targets_go_to_the_last_stage_alone():
    net, batch, _ = made("mlp")
    target = torch.rand(12, 1000, dtype=torch.float64)
    loss = lambda output, target: (output.mean() - target.mean()).square()  # noqa: E731
    pipe = Pipeline(net, 4)
    for _ in range(2):
        pipe.step(loss, batch, target)
    managed.stats(reset=True)
    pipe.step(loss, batch, target)
    links = managed.stats()["links"]
    border = batch.nbytes  # an activation, and a gradient back
    assert links.pop(f"cpu->{D0}") == batch.nbytes
    assert links.pop(f"cpu->{D3}") == target.nbytes
    inner = {f"{device_name(a)}->{device_name(b)}" for a, b in [(0, 1), (1, 2), (2, 3)]}
    inner |= {f"{device_name(b)}->{device_name(a)}" for a, b in [(0, 1), (1, 2), (2, 3)]}
    assert links == dict.fromkeys(inner, border)


def test_a_tied_weight_crosses_once_a_step():
    net, batch, target = made("tied gpt-2")
    weight = net.transformer.wte.weight
    pipe = Pipeline(net, 4)
    for _ in range(2):
        pipe.step(loss_of, batch, target)
    assert net.lm_head.weight is weight
    assert str(weight.device) == D0
    managed.stats(reset=True)
    pipe.step(loss_of, batch, target)
    links = managed.stats()["links"]
    assert links[f"{D0}->{D3}"] == weight.nbytes
    assert links[f"{D3}->{D0}"] == weight.nbytes


@pytest.mark.parametrize("steps", slice_of([10, 50]))
def test_tied_weights_stay_equal_under_clipping_and_adamw(steps):
    net, batch, target = made("tied gpt-2")
    plain = copied(net, "tied gpt-2")
    pipe = Pipeline(net, 4)
    mine = torch.optim.AdamW(net.parameters(), 1e-3)
    theirs = torch.optim.AdamW(plain.parameters(), 1e-3)
    for _ in range(steps):
        pipe.step(loss_of, batch, target)
        in_turns(plain, batch, target, 4)
        for model, optimizer in ((net, mine), (plain, theirs)):
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    for (name, a), b in zip(net.state_dict().items(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("samples", [1, 2, 3, 7])
def test_fewer_samples_than_parts_are_fewer_parts(samples):
    net, batch, target = made("mlp", samples)
    plain = copied(net, "mlp")
    pipe = Pipeline(net, 4)
    stepped(pipe, batch, target)
    in_turns(plain, batch, target, 4)
    same(gradients(net), gradients(plain), 0)


def test_a_loss_that_is_a_sum_and_a_count_is_averaged_by_counts():
    net, batch, _ = made("mlp")
    plain = copied(net, "mlp")
    mask = torch.zeros(12, 48, 32, dtype=torch.float64)
    mask[:5, :3] = 1
    mask[7:] = 1
    counted = lambda output, mask: ((output.square() * mask).sum(), mask.sum())  # noqa: E731
    total, count = counted(plain(batch), mask)
    (total / count).backward()
    pipe = Pipeline(net, 4)
    for _ in range(2):
        clear(net)
        loss = pipe.step(counted, batch, mask)
        torch.testing.assert_close(loss.cpu(), (total / count).detach())
        same(gradients(net), gradients(plain), 1e-9)


def test_gradients_of_steps_add_up():
    net, batch, target = made("mlp")
    plain = copied(net, "mlp")
    pipe = Pipeline(net, 4)
    pipe.step(loss_of, batch, target)
    first = {name: p.grad for name, p in net.named_parameters()}
    pipe.step(loss_of, batch, target)
    in_turns(plain, batch, target, 4)
    for name, p in net.named_parameters():
        assert p.grad is first[name]
    same(gradients(net), {k: g + g for k, g in gradients(plain).items()}, 0)


def test_hooks_run_as_in_one_pass():
    net, batch, target = made("mlp")
    pipe = Pipeline(net, 4)
    pipe.step(loss_of, batch, target)
    seen = []
    parameter = net[5].weight
    parameter.register_hook(lambda g: seen.append("tensor"))
    parameter.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    net[5].register_full_backward_hook(lambda *_: seen.append("module"))
    pipe.step(loss_of, batch, target)
    assert seen.count("tensor") == seen.count("accumulated") == seen.count("module") == 4


def test_a_frozen_layer_has_no_gradient():
    net, batch, target = made("mlp")
    plain = copied(net, "mlp")
    for model in (net, plain):
        model[0].requires_grad_(False)
        model[4].requires_grad_(False)
    pipe = Pipeline(net, 4)
    stepped(pipe, batch, target)
    in_turns(plain, batch, target, 4)
    same(gradients(net), gradients(plain), 0)


class Back(nn.Sequential):
    """Its last layer adds what the first device has: the chain of stages goes back there."""

    def forward(self, x):
        first = self[0](x)
        y = first
        for layer in list(self)[1:]:
            y = layer(y)
        return y + F.linear(y, self[0].weight)


def test_a_chain_that_goes_back_is_named_and_right():
    print("seed", SEED)
    torch.manual_seed(SEED)
    net, plain = (Back(*[nn.Linear(32, 32) for _ in range(8)]).double() for _ in range(2))
    plain.load_state_dict(net.state_dict())
    batch, target = rows(12), torch.rand(12).double()
    pipe = Pipeline(net, 4)
    stepped(pipe, batch, target)
    in_turns(plain, batch, target, 4)
    same(gradients(net), gradients(plain), 1e-12)
    plan = pipe.plan()
    assert re.search(rf"goes back from {DEVICE_TYPE}:\d to {DEVICE_TYPE}:0", plan.goes_back)
    assert plan.schedule == "gpipe"
    assert "because the result of" in str(plan)


# ---- pieces


def stage_of(device):
    return 1 if str(device) == D1 else 0


def crossing_losses(factors):
    """Losses on the second device that share the kept copy of a leaf on the first, and the leaf."""
    rand = lambda *shape: torch.rand(shape, dtype=torch.float64).as_subclass(ManagedTensor)  # noqa: E731
    leaf = rand(64, 64).to(D0).unplace().detach().clone().requires_grad_()
    large = rand(64, 256).to(D1).unplace()
    losses = [(large[:, :64] * factor * leaf).sum() for factor in factors]
    assert {str(loss.device) for loss in losses} == {D1}
    return losses, leaf, large[:, :64].cpu()


def pieces_of(loss):
    weight = torch.ones_like(loss.detach())
    backward = schedule.Backward(schedule.Loss(loss, weight), stage_of)
    assert backward.why is None
    return backward


def test_parts_that_share_a_kept_copy_keep_their_gradients_apart():
    """All of them end at one node of autograd before the first of them goes on."""
    losses, leaf, factor = crossing_losses([1.0, 16.0, 256.0])
    found = [pieces_of(loss) for loss in losses]
    for stage in (1, 0):
        for backward in found:
            backward.run(stage)
    torch.testing.assert_close(leaf.grad.cpu(), factor * 273, rtol=1e-14, atol=0)


def test_a_piece_that_fails_leaves_the_graphs_of_others_alone():
    (first, second), leaf, factor = crossing_losses([1.0, 2.0])

    def fail(_):
        raise KeyError("stop")

    first.grad_fn.register_prehook(fail)
    backward = pieces_of(first)
    with pytest.raises(KeyError, match="stop"):
        backward.run(1)
    second.backward()  # by the node at which the other pass was to end
    assert torch.equal(leaf.grad.cpu(), factor * 2)


def test_parts_in_flight_that_are_given_up_leave_no_gradient_behind():
    (first, second), leaf, factor = crossing_losses([1.0, 2.0])
    backward = pieces_of(first)
    backward.run(1)
    del backward  # an exception in another part has ended the step
    again = pieces_of(second)
    for stage in (1, 0):
        again.run(stage)
    assert torch.equal(leaf.grad.cpu(), factor * 2)


@pytest.mark.parametrize(
    ("device", "home", "back"),
    [(D1, D0, False), (D1, "cpu", False), (D0, "cpu", False), (D0, D1, True), ("cpu", D0, True)],
)
def test_the_order_of_pieces_is_known(device, home, back):
    """A piece comes after all that send it gradients, or the pass is not cut."""

    class Node:
        def name(self):
            return "MulBackward0"

    crossing = (None, None, torch.device(home), Node(), 0)
    pieces = [(torch.device(device), [], [crossing]), (torch.device(home), [], [])]
    why = schedule._back(pieces, stage_of)
    assert (why is not None) is back
    if back:
        assert why == f"the result of Mul goes back from {home} to {device}"


@pytest.mark.parametrize("part", [0, 2, 3])
@pytest.mark.parametrize("when", ["measured", "forward", "loss", "backward"])
def test_an_exception_leaves_no_gradient_behind_and_the_next_step_works(part, when):
    net, batch, target = made("mlp")
    plain = copied(net, "mlp")
    pipe = Pipeline(net, 4)
    if when != "measured":
        pipe.step(loss_of, batch, target)
        clear(net)
    calls = [0]

    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            if calls[0] == part + 1:
                raise KeyError("stop")
            calls[0] += 1
            return g

    def count(*_):
        calls[0] += 1
        if calls[0] == part + 1:
            raise KeyError("stop")

    calls[0] = 1 if when == "backward" else 0
    bad = lambda o, t: loss_of(Stop.apply(o), t) if when == "backward" else loss_of(o, t)  # noqa: E731
    if when == "loss":
        bad = lambda o, t: (count(), loss_of(o, t))[1]  # noqa: E731
    hook = net[3].register_forward_pre_hook(count) if when in ("measured", "forward") else None
    with pytest.raises(KeyError, match="stop") as caught:
        pipe.step(bad, batch, target)
    if hook:
        hook.remove()
    notes = "".join(caught.value.__notes__)
    passing = "backward" if when == "backward" else "forward"
    assert f"the {passing} pass of part {part + 1} of 4 (samples {3 * part} to " in notes
    assert all(p.grad is None for p in net.parameters())
    assert all(not m._forward_pre_hooks and not m._forward_hooks for m in net.modules())
    stepped(pipe, batch, target)
    in_turns(plain, batch, target, 4)
    same(gradients(net), gradients(plain), 0)


def test_an_exception_keeps_earlier_gradients():
    net, batch, target = made("mlp")
    pipe = Pipeline(net, 4)
    pipe.step(loss_of, batch, target)
    before = gradients(net)
    with pytest.raises(ZeroDivisionError):
        pipe.step(lambda *_: 1 / 0, batch, target)
    same(gradients(net), before, 0)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"microbatches": 0}, ValueError, "at least 1, not 0"),
        ({"microbatches": True}, ValueError, "not True"),
        ({"microbatches": 2.5}, ValueError, "not 2.5"),
        ({"schedule": "zb"}, ValueError, '"1f1b" or "gpipe", not \'zb\''),
        ({"module": 3}, TypeError, "torch.nn.Module"),
    ],
)
def test_what_it_cannot_be_made_of(change, error, text):
    given = {"module": nn.Linear(2, 2), "microbatches": 4} | change
    with pytest.raises(error, match=text):
        Pipeline(**given)


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (lambda o, t: 3.0, "returned float: 3.0"),
        (lambda o, t: o, r"a tensor of shape \(3, 48, 32\)"),
        (lambda o, t: None, "NoneType"),
        (lambda o, t: o.mean().detach(), "depends on no parameter"),
        (lambda o, t: (o.sum(), 3, 4), "tuple"),
    ],
)
@pytest.mark.parametrize("measured", [False, True])
def test_a_loss_that_is_none(loss, text, measured):
    net, batch, target = made("mlp")
    pipe = Pipeline(net, 4)
    if measured:
        pipe.step(loss_of, batch, target)
    with pytest.raises(TypeError, match=text):
        pipe.step(loss, batch, target)


@pytest.mark.parametrize("measured", [False, True])
def test_hooks_of_a_tied_weight_see_all_of_its_gradient(measured):
    net, batch, target = made("tied gpt-2")
    plain = copied(net, "tied gpt-2")
    pipe = Pipeline(net, 4)
    if measured:
        pipe.step(loss_of, batch, target)
        clear(net)
    for model in (net, plain):
        model.transformer.wte.weight.register_hook(lambda g: 2 * g)
    pipe.step(loss_of, batch, target)
    in_turns(plain, batch, target, 4)
    same(gradients(net), gradients(plain), 1e-9)


class Twice(nn.Module):
    """Its first layer is called again at the end."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return self.layers[0](x)


def test_a_module_that_is_called_twice_stays_whole():
    print("seed", SEED)
    torch.manual_seed(SEED)
    net, plain = Twice().double(), Twice().double()
    plain.load_state_dict(net.state_dict())
    batch, target = rows(12), torch.rand(12).double()
    pipe = Pipeline(net, 4)
    stepped(pipe, batch, target, 5)
    in_turns(plain, batch, target, 4)
    same(gradients(net), gradients(plain), 1e-9)
    assert str(net.layers[0].weight.device) == D0


def test_a_batch_without_samples():
    pipe = Pipeline(nn.Linear(2, 2), 4)
    with pytest.raises(ValueError, match="no samples"):
        pipe.step(loss_of, torch.ones(0, 2))
    with pytest.raises(ValueError, match="first dimension"):
        pipe.step(loss_of, {"x": 3}, None)


def test_nothing_waits_on_the_host_and_nothing_grows():
    net, batch, target = made("residual")
    pipe = Pipeline(net, 4)
    stepped(pipe, batch, target, 3)
    managed.stats(reset=True)
    module = getattr(torch, DEVICE_TYPE)
    alive = [module.memory_allocated(i) for i in range(4)]
    for _ in range(10):
        clear(net)
        pipe.step(loss_of, batch, target)
    assert managed.stats()["host_waits"] == 0
    assert [module.memory_allocated(i) for i in range(4)] == alive


@pytest.mark.skipif(ON_CUDA, reason="torch's allocator takes 2 MiB at once")
@pytest.mark.parametrize("name", ["residual", "u-net", "tied gpt-2"])
def test_a_budget_changes_no_bit(name):
    net, batch, target = made(name)
    plain = copied(net, name)
    pipe = Pipeline(net, 4)
    stepped(pipe, batch, target)
    peak = max(s.peak for s in pipe.plan().stages)
    try:
        for i in range(4):
            managed.budget(device_name(i), peak // 2)
        clear(net)
        pipe.step(loss_of, batch, target)
    finally:
        for i in range(4):
            managed.budget(device_name(i), None)
    in_turns(plain, batch, target, 4)
    same(gradients(net), gradients(plain), 1e-9 if "tied" in name else 0)


def test_the_schedule_is_1f1bs():
    for m, p in [(1, 1), (2, 4), (4, 4), (9, 3)]:
        running = [0] * p
        most = [0] * p
        ran = set()
        for part, pieces in schedule.ticks(m, p):
            if part is not None:
                running = [n + 1 for n in running]
                most = [max(a, b) for a, b in zip(most, running, strict=True)]
            for k, s in pieces:
                assert s == p - 1 or (k, s + 1) in ran
                ran.add((k, s))
                running[s] -= 1
        assert ran == {(k, s) for k in range(m) for s in range(p)}
        assert most == [min(m, p - s) for s in range(p)]


@pytest.mark.parametrize("pieces", [False, True])
def test_equal_stages_have_the_bubble_of_the_formula(pieces):
    for m, p in [(4, 4), (16, 4), (8, 2), (32, 8)]:
        step = schedule.simulate([1.0] * p, [2.0] * p, [0.0] * (p - 1), m, pieces)
        assert step == pytest.approx(3.0 * (m + p - 1))


def test_inputs_of_several_kinds_are_split():
    from collections import OrderedDict, namedtuple
    from dataclasses import dataclass

    @dataclass
    class Given:
        x: torch.Tensor
        scale: float

    Pair = namedtuple("Pair", "x name")
    x = torch.arange(6.0)
    nest = OrderedDict(
        a=x, b=[x, (x, None)], c=Given(x, 2.0), d=Pair(x, "n"), e=torch.ones(4), f=torch.tensor(3.0)
    )
    first, second = parts.split(nest, 6, [4, 2])
    assert type(first) is OrderedDict
    assert type(first["d"]) is Pair
    assert type(first["c"]) is Given
    assert first["d"].name == "n"
    assert first["e"] is nest["e"]
    assert first["f"] is nest["f"]
    for part, wanted in ((first, x[:4]), (second, x[4:])):
        for found in (part["a"], part["b"][0], part["b"][1][0], part["c"].x, part["d"].x):
            assert torch.equal(found, wanted)
    whole = parts.gather([first, second], [4, 2])
    assert torch.equal(whole["c"].x, x)
    assert whole["f"] == 3.0
    with pytest.raises(ValueError, match="different sizes"):
        parts.gather([[x], [x, x]], [1, 1])


@pytest.mark.skipif(ON_CUDA, reason="virtual time is the simulator's")
def test_a_plan_is_shown():
    net, batch, target = made("mlp", 64)
    pipe = Pipeline(net, 16)
    pipe.step(loss_of, batch, target)
    text = str(pipe.plan())
    assert "1f1b, 16 parts" in text
    assert "idle for" in text


def test_a_managed_batch_may_be_anywhere():
    net, batch, target = made("mlp")
    plain = copied(net, "mlp")
    pipe = Pipeline(net, 4)
    for _ in range(2):
        clear(net)
        pipe.step(loss_of, batch.as_subclass(ManagedTensor).cuda(2), target.to(D0))
    in_turns(plain, batch, target, 4)
    same(gradients(net), gradients(plain), 0)
