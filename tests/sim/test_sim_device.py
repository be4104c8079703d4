"""torch.sim: devices, random numbers, streams, events and virtual time, as torch.cuda has them."""

import copy
import threading

import pytest
import torch
from support.paths import PROGRAMS
from torch.utils.checkpoint import checkpoint

from managed import ManagedModule, _sim
from managed._simulated.presets import DEFAULT, PRESETS

A, B = "sim:1", "sim:2"


@pytest.fixture(autouse=True)
def current_device():
    yield
    torch.sim.set_device(0)


def test_it_is_torchs_device_module():
    assert torch.sim.is_available()
    assert torch.sim.is_initialized()
    assert torch.sim.device_count() == 4 == torch.accelerator.device_count()
    assert torch.get_device_module("sim") is torch.sim
    assert torch.accelerator.current_accelerator().type == "sim"
    assert torch.ones(1).to("sim").is_sim
    assert torch.ones(1).sim(2).device == torch.device(B)
    assert torch.nn.Linear(1, 1).to(A).weight.device == torch.device(A)
    assert torch.sim.get_amp_supported_dtype() == [torch.float16, torch.bfloat16]
    assert all(hasattr(torch.sim, name) for name in torch.sim.__all__)


def test_properties():
    properties = torch.sim.get_device_properties(A)
    assert properties.total_memory == 256 * 1024**2
    assert properties.name == torch.sim.get_device_name(1) == "simulated device 1"
    assert torch.sim.can_device_access_peer(0, 1)
    assert not torch.sim.can_device_access_peer(1, 1)


def test_the_current_device_is_each_threads_own():
    torch.sim.set_device(A)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.sim.current_device()))
    thread.start()
    thread.join()
    assert seen == [0]
    assert torch.sim.current_device() == 1
    assert torch.empty(1, device="sim").device == torch.device(A)
    with torch.sim.device(B):
        assert torch.empty(1, device="sim").device == torch.device(B)
        with torch.sim.device_of(torch.empty(1, device="sim:3")):
            assert torch.sim.current_device() == 3
        with torch.sim.device_of(torch.empty(1)):
            assert torch.sim.current_device() == 2
    assert torch.sim.current_device() == 1
    with pytest.raises(KeyError), torch.sim.device(3):
        raise KeyError
    assert torch.sim.current_device() == 1


@pytest.mark.parametrize("bad", [4, -1, "sim:4", "cpu", "cuda:0"])
def test_devices_that_do_not_exist(bad):
    with pytest.raises(ValueError, match="sim"):
        torch.sim.memory_allocated(bad)
    with pytest.raises(ValueError, match="sim"):
        torch.sim.set_device(bad)
    assert torch.sim.current_device() == 0


# ---- random numbers


def test_equal_seeds_give_the_cpus_numbers():
    torch.manual_seed(3)
    expected = torch.randn(5), torch.randperm(7), torch.rand(3, dtype=torch.float64)
    torch.manual_seed(3)
    given = (
        torch.randn(5, device=A),
        torch.randperm(7, device=A),
        torch.rand(3, dtype=torch.float64, device=A),
    )
    assert all(torch.equal(e, g.cpu()) for e, g in zip(expected, given, strict=True))


def test_each_device_has_its_own_generator():
    torch.sim.manual_seed_all(5)
    a = torch.rand(3, device=A)
    assert torch.equal(torch.rand(3, device=B).cpu(), a.cpu())
    state = torch.sim.get_rng_state(A)
    b = torch.rand(3, device=A)
    torch.sim.set_rng_state(state, A)
    assert torch.equal(torch.rand(3, device=A), b)
    states = torch.sim.get_rng_state_all()
    c = torch.rand(3, device=B)
    torch.sim.set_rng_state_all(states)
    assert torch.equal(torch.rand(3, device=B), c)
    torch.sim.set_device(A)
    torch.sim.manual_seed(8)
    assert torch.sim.initial_seed() == 8
    assert isinstance(torch.sim.seed(), int)


def test_generators():
    g = torch.Generator(A).manual_seed(5)
    expected = torch.randn(4, generator=torch.Generator().manual_seed(5))
    assert torch.equal(torch.randn(4, device=A, generator=g).cpu(), expected)
    other = torch.Generator(A)
    other.set_state(g.get_state())
    assert torch.equal(
        torch.rand(3, device=A, generator=g), torch.rand(3, device=A, generator=other)
    )
    assert g.device == torch.device(A)
    assert g.initial_seed() == 5
    twin = g.clone_state()
    assert torch.equal(
        torch.rand(3, device=A, generator=g), torch.rand(3, device=A, generator=twin)
    )


def test_fork_rng_and_checkpoint_keep_the_numbers():
    with torch.random.fork_rng(devices=[1], device_type="sim"):
        a = torch.rand(4, device=A)
    assert torch.equal(torch.rand(4, device=A), a)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)).to(A)
    x = torch.randn(6, 8, device=A, requires_grad=True)
    grads = []
    for run in (model, lambda x: checkpoint(model, x, use_reentrant=False)):
        torch.manual_seed(1)
        grads.append(torch.autograd.grad(run(x).square().sum(), x)[0])
    assert torch.equal(*grads)


# ---- virtual time


def timed(work):
    """Virtual milliseconds of work on the current device's stream."""
    begin, end = torch.Event("sim", enable_timing=True), torch.Event("sim", enable_timing=True)
    torch.sim.synchronize()  # otherwise the device may still be behind the host
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def test_time_is_a_roofline_of_bytes_and_arithmetic():
    preset = torch.sim.get_device_properties(0)
    n = 512
    a, b = torch.ones(n, n, device="sim:0"), torch.ones(n, n, device="sim:0")
    one = torch.ones((), device="sim:0")
    launch = timed(lambda: one.add_(0))
    assert launch == pytest.approx((DEFAULT.issue_ns + DEFAULT.launch_ns) * 1e-6, rel=1e-2)
    bytes_time = 3 * a.nbytes / preset.bytes_per_second * 1e3
    flops_time = 2 * n**3 / preset.flops_per_second * 1e3
    assert timed(lambda: a + b) == pytest.approx(launch + bytes_time, rel=1e-2)
    assert timed(lambda: a @ b) == pytest.approx(launch + max(flops_time, bytes_time), rel=1e-2)
    assert flops_time > bytes_time
    assert timed(lambda: a.view(-1).view(n, n).t()) == 0  # views do no work


def test_the_host_waits_for_values_it_needs_and_for_nothing_else():
    x = torch.ones(1024, 1024, device="sim:0")
    torch.sim.synchronize(0)
    begin = torch.sim.virtual_time("cpu")
    y = x.sum()
    assert y.is_contiguous()
    issued = begin + DEFAULT.issue_ns * 1e-9
    assert torch.sim.virtual_time("cpu") == pytest.approx(issued, rel=1e-12)
    y.item()
    assert torch.sim.virtual_time("cpu") == torch.sim.virtual_time(0) > begin


def test_questions_about_a_tensors_form_take_no_time():
    s = torch.eye(4, device="sim:0").to_sparse()
    before = torch.sim.virtual_time(0)
    assert s.is_coalesced()
    assert s.sparse_dim() == 2
    assert s._nnz() == 4
    assert torch.sim.virtual_time(0) == before


def test_convolution_counts_its_products():
    preset = torch.sim.get_device_properties(0)
    x, w = torch.ones(2, 16, 20, 20, device="sim:0"), torch.ones(32, 16, 3, 3, device="sim:0")
    flops = 2 * (2 * 32 * 18 * 18) * 16 * 9
    expected = flops / preset.rates["convolution"]["tf32"] * 1e3
    assert timed(lambda: torch.conv2d(x, w)) == pytest.approx(0.007 + expected, rel=1e-2)


def test_arithmetic_has_the_rate_of_its_kind_and_numbers(run_python):
    """Measured on the clock as work / (time - launch), beside what the preset says."""
    program = PROGRAMS / "rates_of_arithmetic.py"
    assert run_python(program) == "True\n"


def test_every_preset_has_a_rate_for_all_arithmetic():
    for preset in PRESETS.values():
        for kind in _sim.KINDS:
            assert all(preset.rate(kind, numbers) > 0 for numbers in _sim.PRECISIONS)
        assert preset.rate("matrix", "float16") >= preset.rate("matrix", "float64")


def test_a_thousand_operators_cost_their_thread_what_issuing_them_costs():
    x = torch.ones((), device="sim:0")
    torch.sim.synchronize(0)
    begin = torch.sim.virtual_time("cpu")
    for _ in range(1000):
        x.add_(1)
    took = torch.sim.virtual_time("cpu") - begin
    assert took == pytest.approx(1000 * DEFAULT.issue_ns * 1e-9, rel=1e-9)
    # The device is faster, so it is never more than one operator behind.
    behind = torch.sim.virtual_time(0) - torch.sim.virtual_time("cpu")
    assert 0 < behind < 1.1 * DEFAULT.launch_ns * 1e-9
    assert torch.sim.elapsed() >= torch.sim.virtual_time(0)


def test_threads_on_devices_of_their_own_take_no_time_from_each_other(run_python):
    """Where runs repeat. Else they share the interpreter's lock: see test_sim_clock.py."""
    program = PROGRAMS / "threads_on_devices.py"
    first = run_python(program)
    assert first == run_python(program)
    numbers = [float(n) for n in first.split()]
    assert numbers[:2] == pytest.approx([5e-3, 5e-3], rel=1e-2)
    assert numbers[3:] == pytest.approx([10e-3, 15e-3], rel=1e-2)


def test_a_backward_pass_costs_its_issue_time_and_the_caller_goes_on_after_it():
    x = torch.ones(4, device="sim:0", requires_grad=True)
    y = x
    for _ in range(100):
        y = y * 2.0
    y = y.sum()
    torch.sim.synchronize(0)
    begin = torch.sim.virtual_time("cpu")
    y.backward()
    x.grad.add_(1)
    took = torch.sim.virtual_time("cpu") - begin
    assert took == pytest.approx(102 * DEFAULT.issue_ns * 1e-9, rel=0.05)


def test_the_same_program_takes_the_same_virtual_time(run_python):
    program = """
        import torch, managed
        managed.simulate(2, "64MiB")
        model = torch.nn.LSTM(8, 8).to("sim:0")
        model(torch.ones(5, 3, 8).to("sim:0"))[0].to("sim:1").sum().backward()
        torch.sim.synchronize(0)
        print(*(torch.sim.virtual_time(d) for d in (0, 1, "cpu")))
    """
    first = run_python(program)
    assert first == run_python(program)
    assert all(float(t) > 0 for t in first.split())


def test_streams_run_beside_each_other():
    a = torch.ones(1024, 1024, device=A)
    torch.sim.set_device(A)
    torch.sim.synchronize(A)
    side = torch.Stream(A)
    both = timed(lambda: (a + a, a + a))

    def overlapped():
        with torch.sim.stream(side):
            assert torch.sim.current_stream(A) == side
            a + a
        a + a
        torch.sim.current_stream(A).wait_stream(side)

    assert torch.sim.current_stream(A) == torch.sim.default_stream(A)
    # The device waits for the first to be issued; for the second it does so only beside the first.
    issue = DEFAULT.issue_ns * 1e-6
    assert timed(overlapped) == pytest.approx(2 * issue + (both - issue) / 2)


def test_a_stream_waits_for_an_event():
    x = torch.ones(1024, 1024, device=A)
    torch.sim.set_device(A)
    first, second = torch.Stream(A), torch.Stream(A)
    done = torch.Event("sim", enable_timing=True)
    with first:
        x + x
        done.record()
    second.wait_event(done)
    late = torch.Event("sim", enable_timing=True)
    late.record(second)
    assert not late.query()  # the host has not waited yet; polling lets it
    assert late.query()
    assert second.query()
    assert done.elapsed_time(late) == 0
    x.record_stream(first)


def test_copies_on_one_link_queue_and_the_host_waits_only_when_it_must():
    host = torch.ones(1024, 1024)
    torch.sim.synchronize(A)
    begin = torch.sim.virtual_time("cpu")
    one = torch.empty(1024, 1024, device=A)
    one.copy_(host, non_blocking=True)
    issued = begin + DEFAULT.issue_ns * 1e-9
    assert torch.sim.virtual_time("cpu") == pytest.approx(issued, rel=1e-12)
    one.copy_(host, non_blocking=True)
    torch.sim.synchronize(A)
    two_copies = torch.sim.virtual_time("cpu") - begin
    begin = torch.sim.virtual_time("cpu")
    one.copy_(host)
    assert torch.sim.virtual_time("cpu") - begin == pytest.approx(two_copies / 2, rel=1e-2)


def test_events_that_were_not_recorded():
    e = torch.Event("sim", enable_timing=True)
    assert e.query()
    e.synchronize()
    with pytest.raises((RuntimeError, ValueError)):
        e.elapsed_time(torch.Event("sim", enable_timing=True))


def test_pinned_memory():
    x = torch.ones(10).pin_memory()
    assert x.is_pinned()
    assert x[3:].is_pinned()
    assert not torch.ones(10).is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert torch.empty(0, pin_memory=True).numel() == 0
    assert torch.equal(x.to(A, non_blocking=True).cpu(), x)


def test_a_data_loader_forks_and_pins():
    data = torch.utils.data.TensorDataset(torch.arange(12.0))
    loader = torch.utils.data.DataLoader(data, 4, num_workers=1, pin_memory=True)
    total = sum(x.to(A, non_blocking=True).sum() for (x,) in loader)
    assert total.item() == 66


def test_plain_data_parallel_is_what_it_is_without_simulation():
    """It copies with CUDA's functions, and without CUDA it calls its module."""
    plain = torch.nn.Linear(3, 2)
    x = torch.randn(4, 3)
    parallel = torch.nn.DataParallel(plain, device_ids=[0, 1])
    assert torch.equal(parallel(x), plain(x))
    net = ManagedModule.from_module(copy.deepcopy(plain)).cuda(2)
    spread = torch.nn.DataParallel(net)(x)
    assert spread.device == torch.device("sim:2")
    assert torch.equal(spread.cpu(), plain(x))
