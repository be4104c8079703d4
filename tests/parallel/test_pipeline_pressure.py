"""Pipelines under pressure: budgets, torture, recompute, interrupts; what parts in flight hold."""

import os
import signal
import threading

import pytest
import torch
from support.devices import DEVICE_TYPE, ON_CUDA, device_module, device_name
from support.pipelines import (
    Residual,
    clear,
    copied,
    gradients,
    in_turns,
    loss_of,
    made,
    rows,
    same,
)
from support.slices import slice_of
from torch import nn

import managed
from managed import Pipeline


def settled(name, **given):
    """A pipeline after the steps that place its layers, and a plain copy of its model."""
    net, batch, target = made(name)
    plain = copied(net, name)
    pipe = Pipeline(net, 4, **given)
    for _ in range(3):
        pipe.step(loss_of, batch, target)
        clear(net)
    return net, plain, pipe, batch, target


@pytest.mark.parametrize("name", ["residual", "u-net", "tied gpt-2"])
@pytest.mark.parametrize("order", ["1f1b", "gpipe"])
def test_torture_changes_no_bit(name, order):
    net, plain, pipe, batch, target = settled(name, schedule=order)
    with managed.debug.torture(odds=2):
        pipe.step(loss_of, batch, target)
        found = gradients(net)
    in_turns(plain, batch, target, 4)
    same(found, gradients(plain), 1e-9 if "tied" in name else 0)


@pytest.mark.skipif(ON_CUDA, reason="torch's allocator takes 2 MiB at once")
@pytest.mark.parametrize("name", ["residual", "in place"])
def test_half_of_the_peak_is_enough(name):
    net, plain, pipe, batch, target = settled(name)
    module = device_module
    for i in range(4):
        module.reset_peak_memory_stats(i)
    pipe.step(loss_of, batch, target)
    clear(net)
    peaks = [module.max_memory_allocated(i) for i in range(4)]
    try:
        for i, peak in enumerate(peaks):
            managed.budget(device_name(i), max(peak * 6 // 10, 2**18))
        pipe.step(loss_of, batch, target)
    finally:
        for i in range(4):
            managed.budget(device_name(i), None)
    in_turns(plain, batch, target, 4)
    same(gradients(net), gradients(plain), 0)


class Dropped(nn.Sequential):
    """Dropout, and buffers that each forward pass writes."""

    def __init__(self):
        block = lambda: nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(48), nn.Dropout(0.3))  # noqa: E731
        super().__init__(*(block() for _ in range(6)))


def test_recompute_changes_nothing_but_the_memory():
    """Losses, gradients and buffers are the same bits; the activations of a part are fewer."""
    told = []
    for what in (False, True):
        torch.manual_seed(20)
        net = Dropped().double()
        batch, target = rows(12), torch.rand(12, dtype=torch.float64)
        pipe = Pipeline(net, 4, recompute=[*net] if what else None)
        torch.manual_seed(5)
        losses = [pipe.step(loss_of, batch, target).cpu() for _ in range(4)]
        held = sum(s.part_bytes for s in pipe.plan().stages)
        told.append((losses, gradients(net), {k: b.cpu() for k, b in net.named_buffers()}, held))
    (losses, grads, buffers, held), (again, grads2, buffers2, less) = told
    assert all(torch.equal(a, b) for a, b in zip(losses, again, strict=True))
    same(grads2, grads, 0)
    for name, b in buffers.items():
        assert torch.equal(buffers2[name], b), name
    assert less < held


@pytest.mark.skipif(ON_CUDA, reason="torch frees what other streams used a little later")
@pytest.mark.parametrize("order", ["1f1b", "gpipe"])
def test_so_many_parts_hold_activations(order):
    """At most p - s parts on stage s in 1F1B's order, all of them in GPipe's."""
    torch.manual_seed(20)
    net = Residual(32, 8).double()
    batch, target = rows(48), torch.rand(48, dtype=torch.float64)
    pipe = Pipeline(net, 12, schedule=order)
    for _ in range(4):
        pipe.step(loss_of, batch, target)
        clear(net)
    plan = pipe.plan()
    for i in range(4):
        torch.sim.reset_peak_memory_stats(i)
    pipe.step(loss_of, batch, target)
    assert len(plan.stages) > 1
    for s, stage in enumerate(plan.stages):
        count = min(12, len(plan.stages) - s) if order == "1f1b" else 12
        assert stage.in_flight == count
        peak = torch.sim.max_memory_allocated(stage.device)
        assert 0.8 * stage.peak < peak < 1.25 * stage.peak, (stage, peak)


@pytest.mark.parametrize("steps", slice_of([100, 1_000]))
def test_bytes_alive_do_not_grow_over_many_steps(steps):
    torch.manual_seed(20)
    net = nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)])
    batch, target = torch.randn(8, 16), torch.rand(8)
    pipe = Pipeline(net, 4)
    loss = lambda o, t: (o.mean(1) - t).square().mean()  # noqa: E731
    for _ in range(5):
        pipe.step(loss, batch, target)
        clear(net)
    before = [device_module.memory_allocated(i) for i in range(4)]
    managed.stats(reset=True)
    for _ in range(steps):
        pipe.step(loss, batch, target)
        clear(net)
    assert [device_module.memory_allocated(i) for i in range(4)] == before
    assert managed.stats()["host_waits"] == 0


def test_ctrl_c_ends_a_step_and_leaves_no_gradient():
    net, plain, pipe, batch, target = settled("residual")
    calls = []

    def interrupted(output, target):
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return loss_of(output, target)

    with pytest.raises(KeyboardInterrupt):
        pipe.step(interrupted, batch, target)
    assert len(calls) <= 4
    assert all(p.grad is None for p in net.parameters())
    pipe.step(loss_of, batch, target)
    in_turns(plain, batch, target, 4)
    same(gradients(net), gradients(plain), 0)


def test_two_pipelines_train_in_two_threads():
    """They share the devices; each has the bits that it has alone."""
    given = [settled(name) for name in ("residual", "mlp")]
    errors = []

    def train(net, plain, pipe, batch, target):
        try:
            for _ in range(3):
                clear(net)
                pipe.step(loss_of, batch, target)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=train, args=one) for one in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for net, plain, _, batch, target in given:
        in_turns(plain, batch, target, 4)
        same(gradients(net), gradients(plain), 0)


def test_t5_has_the_gradients_of_its_parts():
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(20)
    config = T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=3, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    net, plain = (T5ForConditionalGeneration(config).double() for _ in range(2))
    plain.load_state_dict(net.state_dict())
    tokens = torch.randint(64, (8, 40))
    batch = {"input_ids": tokens, "labels": tokens, "use_cache": False}
    loss = lambda output, _: output.loss  # noqa: E731
    pipe = Pipeline(net, 4)
    for _ in range(3):
        clear(net)
        found = pipe.step(loss, batch)
    wanted = sum(plain(input_ids=x, labels=x, use_cache=False).loss / 4 for x in tokens.split(2))
    wanted.backward()
    torch.testing.assert_close(found.cpu(), wanted.detach())
    same(gradients(net), gradients(plain), 1e-9)


def test_an_optimizer_in_the_backward_pass():
    """Hooks that step as soon as a gradient is there see each part's, as with torch."""
    net, plain, pipe, batch, target = settled("mlp")
    for model in (net, plain):
        seen = model.seen = []
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(
                lambda p, seen=seen: seen.append(p.grad.sum().item())
            )
    pipe.step(loss_of, batch, target)
    in_turns(plain, batch, target, 4)
    assert sorted(net.seen) == sorted(plain.seen)
    assert DEVICE_TYPE in str(next(net.parameters()).device)
