"""Operands that cross to another device beside what runs there and where they come from."""

import pytest
import torch
from support.apart import rand
from support.virtual_clock import BYTES, FROM, TO, alone, makes_busy, ran  # noqa: F401

import managed
from managed import ManagedTensor
from managed._simulated.presets import DEFAULT

pytestmark = pytest.mark.only_simulated("on the virtual clock")
COPY = (DEFAULT.peer_latency_ns + BYTES / DEFAULT.peer_bytes_per_ns) * 1e-9  # s, alone on its way


def test_the_copy_comes_after_what_wrote_the_operand_and_not_after_what_came_later(busy):
    work, begin = busy
    x, y = rand(FROM, 1024, 1024), rand(TO, 1024, 2048)
    start = begin()
    x.mul_(2)
    work(FROM)
    z = y[:, :1024] + x
    assert z.device == torch.device(TO)
    assert COPY < ran(TO, start) < ran(FROM, start) / 2
    assert torch.equal(z.cpu(), y.cpu()[:, :1024] + x.cpu())


def test_the_copy_waits_for_what_wrote_the_operand(busy):
    work, begin = busy
    x, y = rand(FROM, 1024, 1024), rand(TO, 1024, 2048)
    start = begin()
    work(FROM)
    x.mul_(2)
    y[:, :1024] + x
    written = ran(FROM, start)
    assert ran(TO, start) > written + COPY


def test_an_operand_that_nobody_is_known_to_have_written_waits_for_all(busy):
    work, begin = busy
    x, y = rand(FROM, 1).new_empty(1024, 1024), rand(TO, 1024, 2048)
    start = begin()
    work(FROM)
    y[:, :1024] + x
    worked = ran(FROM, start)
    assert ran(TO, start) > worked + COPY


def test_neither_device_stands_still_for_the_copy(busy):
    work, begin = busy
    x, y, other = rand(FROM, 1024, 1024), rand(TO, 1024, 2048), rand(FROM, 1024, 1024)
    without = alone(TO, busy)
    start = begin()
    work(TO)
    y[:, :1024] += x  # what is written stays where it is
    other.sin_()
    issued = torch.sim.virtual_time("cpu") - start
    assert ran(FROM, start) < issued + COPY / 2
    took = ran(TO, start)
    assert took == pytest.approx(without, rel=0.1)  # the copy was there when it was needed
    assert without > 4 * COPY


def test_a_gradient_goes_home_beside_what_runs(busy):
    """It is copied like any operand: where it comes from nothing waits for its way."""
    work, begin = busy
    w, x = rand(FROM, 1024, 1024).requires_grad_(), rand(TO, 1024, 2048)
    other = rand(TO, 1024, 1024)
    with torch.enable_grad():
        y = (x[:, :1024] * w).sum()
    assert y.device == torch.device(TO)
    start = begin()
    work(FROM)
    y.backward()
    other.sin_()
    issued = torch.sim.virtual_time("cpu") - start
    assert ran(TO, start) < issued + COPY / 2
    assert w.grad.device == torch.device(FROM)
    assert torch.equal(w.grad.cpu(), x.detach().cpu()[:, :1024])


def test_who_writes_the_operand_comes_after_the_copies(busy):
    _, begin = busy
    x, y, z = rand(FROM, 1024, 1024), rand(TO, 1024, 2048), rand("sim:3", 1024, 2048)
    start = begin()
    before = x.cpu()
    start = begin()
    first, second = y[:, :1024] + x, z[:, :1024] + x
    x.zero_()
    assert ran(FROM, start) > 2 * COPY - 1e-6  # one lane leads out of the card
    assert torch.equal(first.cpu(), y.cpu()[:, :1024] + before)
    assert torch.equal(second.cpu(), z.cpu()[:, :1024] + before)
    start = begin()
    x.zero_()
    assert ran(FROM, start) < COPY / 2  # who writes again waits for nobody


def test_an_operand_that_leaves_and_dies_after_the_copy(busy):
    """The audit of the suite sees bytes that are used by two at once."""
    work, _ = busy
    y = rand(TO, 1024, 2048)
    others = torch.sim.memory_allocated(FROM) - BYTES  # what other tests have left; not `scratch`
    managed.budget(FROM, 16 * 2**20 + others)
    try:
        work(FROM)
        results = []
        for _ in range(4):
            x = rand(FROM, 1024, 1024).add_(1)
            results.append((y[:, :1024] + x, x))
        for z, x in results:
            assert torch.equal(z.cpu(), y.cpu()[:, :1024] + x.cpu())
        del results, x
    finally:
        managed.budget(FROM, None)


def test_an_operand_whose_storage_is_given_up_keeps_its_block_until_the_copy_ends(busy):
    """No operator does that, so nothing else on the device comes after the copy."""
    _, begin = busy
    x, y = rand(FROM, 1024, 1024), rand(TO, 1024, 2048)
    storage = x.untyped_storage()
    free, _ = torch.sim.mem_get_info(FROM)
    full = torch.empty(free, dtype=torch.uint8, device=FROM)
    start = begin()
    z = y[:, :1024] + x
    storage.resize_(0)
    new = torch.empty(1024, 1024, device=FROM).zero_()
    assert ran(FROM, start) > COPY
    del z, new, full


@pytest.mark.parametrize("made", [lambda x: x, lambda x: x.as_subclass(ManagedTensor)])
def test_bytes_of_the_host_arrive_beside_what_runs(busy, made):
    work, begin = busy
    x = torch.rand(1024, 1024)
    without = alone(TO, busy)
    start = begin()
    work(TO)
    y = made(x).as_subclass(ManagedTensor).cuda(2, non_blocking=True)
    assert torch.sim.virtual_time("cpu") - start < without / 2  # nobody waits
    z = y + 1
    assert ran(TO, start) < without + COPY / 2
    assert torch.equal(z.cpu(), x + 1)
    x.zero_()
    assert not torch.equal(y.cpu(), x)


def test_what_is_no_single_piece_crosses_as_it_did(busy):
    _, begin = busy
    x, y = rand(FROM, 1024, 1024), rand(TO, 512, 2048)
    start = begin()
    z = y[:, ::2] + x[::2]
    assert torch.equal(z.cpu(), y.cpu()[:, ::2] + x.cpu()[::2])
    assert ran(TO, start) > 0


def test_kernels_that_were_measured():
    x = rand(FROM, 1024, 1024)
    torch.sim.synchronize(FROM)
    before = torch.sim.busy()[FROM]
    assert torch.sim._sim.exchange_duration(1_234_567) == -1
    try:
        x @ x
    finally:
        assert torch.sim._sim.exchange_duration(-1) == 1_234_567
    torch.sim.synchronize(FROM)
    assert torch.sim.busy()[FROM] - before == pytest.approx(1_234_567e-9, abs=2e-9)


def test_all_copies_of_a_machine_may_share_a_bus(run_python):
    program = """
        import torch, managed
        managed.simulate(4, "64MiB", preset="sirocco")
        x = torch.ones(4 * 2**20)
        there = [torch.empty_like(x, device=f"sim:{i}") for i in range(4)]

        def copy(*pairs):
            [torch.sim.synchronize(i) for i in range(4)]
            begin = torch.sim.elapsed()
            for to, source in pairs:
                to.copy_(source, non_blocking=True)
            return torch.sim.elapsed() - begin

        alone = copy((there[0], x))
        for second in ((there[1], x), (there[2], there[1])):
            print(copy((there[0], x), second) / alone)
    """
    ratios = [float(r) for r in run_python(program).split()]
    assert ratios == pytest.approx([2, 2], rel=0.03)


# ---- what torch would copy on the current streams of both devices

SHAPES = {
    "small": lambda x: x[0, :512].clone(),  # too small for a handle
    "expanded": lambda x: x[:1, :].expand(1024, 1024),
    "with gaps": lambda x: x[:, ::2],
    "a permuted part": lambda x: x[:, :512].t(),
}


@pytest.mark.parametrize("name", SHAPES)
def test_whatever_crosses_goes_beside_what_the_target_runs(busy, name):
    """The source's device does not stand still until the target has come that far."""
    work, begin = busy
    x, y = SHAPES[name](rand(FROM, 1024, 1024)), rand(TO, 1024, 2048)
    z = y[: x.shape[0]] if x.dim() > 1 else y[0]
    z = z[..., : x.shape[-1]].contiguous()
    z = torch.cat([z, z, z]) if x.dim() > 1 else torch.cat([z.expand(3, -1)] * 500)
    other = rand(FROM, 1024, 1024)
    without = alone(TO, busy)
    start = begin()
    work(TO)
    made = z[: x.shape[0]] + x if x.dim() > 1 else z + x
    other.sin_()
    assert made.device == torch.device(TO)
    assert ran(FROM, start) < without / 2
    assert torch.equal(made.cpu(), (z[: x.shape[0]] if x.dim() > 1 else z).cpu() + x.cpu())


def test_who_writes_an_operand_without_a_handle_comes_after_the_copy(busy):
    _, begin = busy
    x, y = rand(FROM, 512), rand(TO, 2048, 512)
    before = x.cpu()
    begin()
    made = y + x
    x.zero_()
    assert torch.equal(made.cpu(), y.cpu() + before)


def test_an_expanded_operand_crosses_by_one_row(busy):
    x, y = rand(FROM, 1, 4096).expand(1024, 4096), rand(TO, 2048, 4096)
    managed.stats(reset=True)
    made = y[:1024] + x
    assert made.device == torch.device(TO)
    assert managed.stats()["links"] == {f"{FROM}->{TO}": 4096 * 4}


def test_a_strided_operand_keeps_the_layout_of_torchs_copy():
    x = rand(FROM, 64, 64, 32).permute(2, 0, 1)[:, ::4]
    there = managed._C.bring_gradient(x, torch.device(TO))
    plain = x.cpu().as_subclass(torch.Tensor)
    assert there.stride() == plain.to("meta").stride() == plain.clone().stride()
    assert torch.equal(there.cpu(), plain)


# ---- links


def test_a_card_has_one_port_for_its_peers(busy):
    """Two copies out of a card, or into it, share the bandwidth of one link."""
    _, begin = busy
    x = rand(FROM, 1024, 1024)
    others = [rand(d, 1024, 2048) for d in ("sim:0", TO, "sim:3")]
    start = begin()
    for y in others:
        y[:, :1024] + x
    took = [ran(d, start) for d in ("sim:0", TO, "sim:3")]
    assert max(took) > 3 * (COPY - DEFAULT.peer_latency_ns * 1e-9)
    into = [rand(d, 1024, 1024) for d in ("sim:0", FROM, "sim:3")]
    y = rand(TO, 1024, 2048)
    start = begin()
    for x in into:
        y[:, :1024] + x
    assert ran(TO, start) > 3 * (COPY - DEFAULT.peer_latency_ns * 1e-9)


def test_pairs_of_devices_do_not_wait_for_each_other(busy):
    """What waits for its source does not hold up what comes from another device."""
    from managed import _sim

    work, begin = busy
    late, early = rand(FROM, 1024, 1024), rand("sim:0", 1024, 1024)
    y, z = rand(TO, 1024, 2048), rand(TO, 1024, 2048)
    begin()
    _sim.start_log()
    work(FROM)
    late.mul_(2)
    y[:, :1024] + late
    z[:, :1024] + early
    spans = [s for s in _sim.stop_log() if s[0] == "copy"]
    ends = {source: end for _, _, source, _, _, _, end, *_ in spans}
    assert ends[0] < ends[1]
