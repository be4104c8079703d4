"""managed.DataParallel under pressure: budgets, interrupts, many steps; when its sums are made."""

import os
import signal
import threading
import time

import pytest
import torch
from support.data_parallel import made, mlp, parallel, stepper, train, weights
from support.devices import D0, ON_CUDA, device_module, device_name
from torch import nn

import managed
from managed import DataParallel


def wide(layers=6, width=512):
    torch.manual_seed(38)
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])


def steps(net, count=3, samples=16):
    """Losses of steps of AdamW."""
    torch.manual_seed(5)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    losses = []
    for _ in range(count):
        x = torch.randn(samples, 512)
        loss = net.each(lambda net, x: net(x).square().mean(), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().cpu())
    return losses + weights(net)


@pytest.mark.skipif(ON_CUDA, reason="torch's allocator takes 2 MiB at once")
@pytest.mark.parametrize("part", [0.6, 0.4])
def test_less_than_the_peak_is_enough(part):
    for i in range(4):
        device_module.reset_peak_memory_stats(i)
    wanted = steps(DataParallel(wide()))
    peaks = [device_module.max_memory_allocated(i) for i in range(4)]
    try:
        for i, peak in enumerate(peaks):
            managed.budget(device_name(i), int(peak * part))
        managed.stats(reset=True)
        found = steps(DataParallel(wide()))
        assert managed.stats()["spill_bytes"] > 0
    finally:
        for i in range(4):
            managed.budget(device_name(i), None)
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("odds", [None, 1, 3])
def test_a_thread_that_spills_all_the_time_changes_no_bit(odds):
    wanted = steps(DataParallel(wide(3)))
    managed.stats(reset=True)
    with managed.debug.torture(odds=odds, seed=38, at_least=2**14, hammer=True):
        found = steps(DataParallel(wide(3)))
    assert managed.stats()["restore"] > 0
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b)


@pytest.mark.skipif(ON_CUDA, reason="torch's allocator takes 2 MiB at once")
def test_a_model_of_twice_a_device_trains():
    """Half of the parameters fill a device; gradients, states and activations come on top."""
    net = wide(32)
    wanted = steps(DataParallel(wide(32)), 2)
    room = sum(p.nbytes for p in net.parameters()) // 2
    try:
        for i in range(4):
            managed.budget(device_name(i), room)
            device_module.reset_peak_memory_stats(i)
        found = steps(DataParallel(net), 2)
        assert max(device_module.max_memory_allocated(i) for i in range(4)) <= room
    finally:
        for i in range(4):
            managed.budget(device_name(i), None)
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b)


@pytest.mark.only_simulated("of virtual time, on two devices behind one switch")
def test_each_device_follows_its_step_and_the_prediction_counts_the_switch(run_python):
    """Each plan alone would be done in much less time than both take over one link."""
    program = """
        import torch, managed
        from torch import nn
        from managed import _C

        managed.simulate(2, preset="a100-80g-sxm", values=False)
        net = nn.Sequential(*[nn.Linear(4096, 4096, bias=False) for _ in range(16)])
        net = managed.DataParallel(net)
        optimizer = torch.optim.SGD(net.parameters(), 1e-3)

        def step():
            net.each(lambda net, x: net(x).square().mean(), torch.empty(128, 4096)).backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.sim.synchronize(0), torch.sim.synchronize(1)
            return torch.sim.virtual_time("cpu") * 1e9

        step(), step()
        for i in range(2):
            managed.budget(f"sim:{i}", int(0.6 * torch.sim.max_memory_allocated(i)))
        ends = [step() for _ in range(12)]
        states = [_C.step_state(i) for i in (1, 2)]
        assert all(s["follows"] and s["laps"] > 4 and s["lost"] == 0 for s in states), states
        print(max(s["predicted"] for s in states) / (ends[-1] - ends[-2]))
        print(sum(s["bytes_out"] for s in states) / 31.5 / (ends[-1] - ends[-2]))
    """
    predicted, least = map(float, run_python(program).split())
    assert 0.8 < predicted < 1.25
    assert 0.7 < least < 1


def test_bytes_alive_do_not_grow_over_many_steps():
    net = parallel("mlp")
    train(net, "mlp", steps=3)
    for p in net.parameters():
        p.grad = None
    before = [device_module.memory_allocated(i) for i in range(4)]
    managed.stats(reset=True)
    train(net, "mlp", steps=30, clip=None)
    for p in net.parameters():
        p.grad = None
    assert [device_module.memory_allocated(i) for i in range(4)] == before


def test_the_host_waits_for_nothing():
    x = torch.randn(16, 32, dtype=torch.float64)
    step = stepper(parallel("mlp"), x, torch.optim.AdamW, 1e-3)
    step(), step()
    managed.stats(reset=True)
    step()
    assert managed.stats()["host_waits"] == 0


@pytest.mark.skipif(ON_CUDA, reason="the profile has copies alone there")
def test_sums_begin_before_the_backward_pass_ends():
    net = DataParallel(wide(48, 256))  # 12 MiB on each device, three buckets of 4 MiB there
    x = torch.randn(16, 256)
    for _ in range(2):
        with managed.profile() as seen:
            net.each(lambda net, x: net(x).square().mean(), x).backward()
    runs = [s for s in seen.spans if s.kind == "run"]
    last = max(s.begin for s in runs if s.name == "aten::mm")
    sums = [s for s in runs if s.name == "aten::add.Tensor"]
    assert min(s.begin for s in sums) < last


def test_an_interrupt_ends_a_call_when_its_parts_have_ended():
    net = parallel("mlp")
    began, begun, ended = threading.Event(), [], []
    x = torch.randn(8, 32, dtype=torch.float64)
    net(x)

    def slow(net, x):
        begun.append(1)
        began.set()
        time.sleep(0.3)
        ended.append(1)
        return net(x)

    def interrupt():
        began.wait()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        net.each(slow, x)
    assert len(ended) == len(begun) > 0  # no part runs on behind the program's back
    torch.testing.assert_close(net(x).cpu(), made("mlp")(x))


def test_a_model_that_moves_or_changes_its_type_works_on():
    net = parallel("mlp")
    x = torch.randn(8, 32, dtype=torch.float64)
    wanted = net(x).detach().cpu()
    net.cpu()
    torch.testing.assert_close(net(x).cpu(), wanted)
    net(x).sum().backward()
    assert {p.grad.device.type for p in net.parameters()} == {"cpu"}
    net.cuda(1)
    torch.testing.assert_close(net(x).cpu(), wanted)
    net.zero_grad()
    net.float()
    torch.testing.assert_close(net(x.float()).cpu(), wanted.float())
    net(x.float()).sum().backward()
    assert {p.grad.dtype for p in net.parameters()} == {torch.float32}


def test_two_calls_share_a_backward_pass():
    plain, net = made("mlp"), parallel("mlp")
    x = torch.randn(8, 32, dtype=torch.float64)
    for m in (plain, net):
        (m(x).sum() + m(x + 1).square().sum()).backward()
    for p, q in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-9, atol=1e-9)


def test_compiled_modules_run_uncompiled_in_parts():
    net = mlp()
    net[2] = torch.compile(net[2], backend="eager")
    net = DataParallel(net)
    x = torch.randn(8, 32)
    out = net(x)
    out.sum().backward()
    assert str(out.device) == D0
    assert net[2]._orig_mod.weight.grad is not None


def test_a_model_on_one_device_is_called_as_it_is():
    net = DataParallel(mlp(), [device_name(2)])
    x = torch.randn(8, 32)
    assert str(net(x).device) == device_name(2)
    assert str(net.each(lambda net, x: net(x).sum(), x).device) == device_name(2)
    (there,) = net.placement().devices
    assert str(there.device) == device_name(2)
    assert there.homes == sum(p.nbytes for p in net.parameters())
    assert there.copies == 0
