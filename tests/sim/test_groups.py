"""torch.distributed for tensors of simulated devices: values, virtual time, bytes, and failures.

Three processes with four devices each (support/group_ranks.py), and groups of this process alone.
"""

import pytest
import torch
import torch.distributed as dist
from support.devices import D0, D1, device_name
from support.group_ranks import COLLECTIVES, DTYPES, KINDS, PRESET, WORLD, everything, quietly
from support.pressure import on
from support.spawned import spawn

import managed
from managed import _C
from managed._simulated.presets import PRESETS

N = WORLD
LATENCY, BANDWIDTH = PRESETS[PRESET].peer_latency_ns, PRESETS[PRESET].peer_bytes_per_ns


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What every rank found, by name."""
    return spawn(everything, tmp_path_factory.mktemp("group"), WORLD)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_values_are_those_of_gloo(ranks, name, dtype):
    for rank, found in enumerate(ranks):
        if found[name, dtype] is None:
            pytest.skip("this gloo has no such collective")
        host, device, where = found[name, dtype]
        assert device == host
        assert where == {device_name(rank)}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_tensors(ranks, kind):
    for found in ranks:
        host, device, inference = found["kinds"][kind]
        assert device == inference == host


def test_inference_mode_and_gathering_in_place(ranks):
    for found in ranks:
        assert [found["inference"]] == found["reduce_scatter_single", torch.float32][0]
        assert found["in place"] == [2.0 * r + 10 * r + i for r in range(N) for i in range(2)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["all_reduce", "reduce", "reduce_scatter", "coalesced"])
def test_means_are_sums_divided(ranks, name, dtype):
    """NCCL's mean of integers is rounded towards zero, and so is this one."""
    for rank, found in enumerate(ranks):
        means, totals = found["mean", name, dtype]
        assert (len(means) > 0) == (name != "reduce" or rank == 1)
        for mean, total in zip(means, totals, strict=True):
            rounding = None if dtype.is_floating_point else "trunc"
            assert torch.equal(mean, torch.div(total, N, rounding_mode=rounding))


def test_a_collective_of_another_group_is_among_its_members(ranks):
    assert [found["subgroup"] for found in ranks] == [[3.0] * 2, [2.0] * 2, [3.0] * 2]


def test_synced_batch_norm_is_that_of_the_whole_batch(ranks):
    """Outputs, gradients, running statistics; of parts of 3, 4 and 5 samples, plain and managed.

    The group is one for "gloo", or one for simulated devices alone.
    """
    for found in ranks:
        assert len(found["synced"]) == 3 * 7
        assert max(found["synced"]) < 1e-12


def test_collectives_of_one_tensor_come_one_after_the_other(ranks):
    """Also if the program waits for none of them in between."""
    for found in ranks:
        assert found["chained"] == {54.0}


def test_a_future_of_a_tensor_that_has_left_can_be_waited_for(ranks):
    for found in ranks:
        assert found["future of what left"] == (True, N * 2**14)


def test_tensors_are_gathered_and_scattered_in_any_shape(ranks):
    """As NCCL does; gloo wants an output that it can cut along the first dimension."""
    row = [i + 10.0 * rank for rank in range(N) for i in range(6)]
    sums = [N * i + 10.0 * sum(range(N)) for i in range(6)]
    for rank, found in enumerate(ranks):
        mine = sums[2 * rank : 2 * rank + 2]
        assert found["shapes"] == [[row], mine, [row], [sums]]


def test_collectives_of_one_tensor_are_in_order(ranks):
    for found in ranks:
        assert found["unwaited"] == [[3 * 2**N]] * 2


def test_objects_and_barriers(ranks):
    for found in ranks:
        assert found["objects"] == [{"rank": r} for r in range(N)]


def test_futures_hold_the_tensors_of_the_device(ranks):
    for rank, found in enumerate(ranks):
        assert found["future"] == ([device_name(rank)], [[6.0] * 2], True)


# ---- virtual time


def ring(nbytes, rounds):
    """Of an algorithm in which (N - 1) / N of the bytes pass each port in each of the rounds."""
    return rounds * nbytes * (N - 1) / N / BANDWIDTH + rounds * (N - 1) * LATENCY


def test_a_collective_takes_the_time_of_a_ring(ranks):
    for found in ranks:
        size, took = found["times"]
        exchanged = ring(size, 1)
        assert took["all_reduce"] == pytest.approx(ring(size, 2), abs=1)
        assert took["reduce_scatter"] == pytest.approx(exchanged, abs=1)
        assert took["all_gather"] == pytest.approx(exchanged, abs=1)
        assert took["all_to_all"] == pytest.approx(exchanged, abs=1)
        passed_on = size / BANDWIDTH + (N - 1) * LATENCY
        assert took["broadcast"] == pytest.approx(passed_on, abs=1)
        assert took["reduce"] == pytest.approx(passed_on, abs=1)
        to_root = size * (N - 1) / BANDWIDTH + (N - 1) * LATENCY
        assert took["gather"] == pytest.approx(to_root, abs=1)
        assert took["scatter"] == pytest.approx(to_root, abs=1)


def test_a_message_takes_the_time_of_its_bytes(ranks):
    """From when both are there: the receiver was late in the first, the sender in the second."""
    size, ready, end = ranks[1]["received"]
    for one, other in zip(ready, end, strict=True):
        assert other - one == pytest.approx(size / BANDWIDTH + LATENCY, abs=1)


def test_all_begin_when_the_last_has_come(ranks):
    begins, ends = zip(*(found["late"] for found in ranks), strict=True)
    assert begins[1] > begins[0] + 100_000  # ns
    assert len(set(ends)) == 1
    assert ends[0] > begins[1]


def test_what_waits_for_a_callback_waits_for_what_it_computes(ranks):
    waited, computed = ranks[0]["callback"]
    assert waited == computed


def test_work_goes_on_beside_a_collective(ranks):
    for found in ranks:
        collective, work, waited, both = found["beside"]
        assert both == pytest.approx(max(collective, work), rel=0.01)
        assert work > collective / 4
        assert waited == 0  # the stream waits, and not the thread


def test_a_copy_of_a_sum_comes_after_the_sum(ranks):
    for found in ranks:
        size, summed, copied = found["copy of a sum"]
        assert copied >= summed + size / BANDWIDTH + LATENCY


def test_a_message_does_not_wait_for_a_sum(ranks):
    copied, summed = ranks[1]["message beside a sum"]
    assert copied < summed


def test_bytes_of_a_sum_are_free_when_it_has_ended(ranks):
    for found in ranks:
        summed, other = found["freed"]
        assert other > summed


def test_a_barrier_of_devices_holds_the_threads(ranks):
    """Rank 1 has more to do before it."""
    assert len({found["barrier"] for found in ranks}) == 1


def test_collectives_end_one_after_the_other(ranks):
    for found in ranks:
        one, first, three = found["in order"]
        assert first == pytest.approx(one, abs=1)  # of its future
        assert three == pytest.approx(3 * one, abs=3)


def test_two_runs_take_the_same_virtual_time(ranks):
    for found in ranks:
        first, second = found["repeated"]
        assert first == second


# ---- bytes


def test_operands_stay_until_a_collective_has_ended(ranks):
    """Rank 0 waits for the others, which begin when it has tried to evict the operand."""
    meanwhile, afterwards, values = ranks[0]["operand"]
    assert not meanwhile
    assert afterwards
    assert values == {float(N)}


@pytest.fixture(name="alone")
def group_of_one():
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_what_a_collective_has_seen_may_leave():
    x = on(torch.ones(2**14), D0)
    y = [torch.empty_like(x)]
    dist.all_reduce(x)
    dist.all_gather(y, x)
    dist.all_to_all_single(y[0], x)
    _C.spill_all()
    assert _C.is_spilled(x)
    assert _C.is_spilled(y[0])
    dist.all_reduce(x)  # brings it home
    assert not _C.is_spilled(x)
    assert set(x.tolist()) == {1.0}


# Collectives of one process, by the forms of their operands: each gives the values of x to `to`.
GIVES = {
    "a list to a list": lambda to, x: dist.all_to_all([to], [x]),
    "a tensor to a tensor": lambda to, x: dist.all_to_all_single(to, x),
    "a list to lists": lambda to, x: dist.all_gather([to], x),
    "lists to a list": lambda to, x: dist.scatter(to, [x]),
    "a list to lists of the root": lambda to, x: dist.gather(x, [to]),
    "a sum of lists": lambda to, x: dist.reduce_scatter(to, [x]),
    "a list to several lists": lambda to, x: quietly(dist.all_gather_coalesced, [[to]], [x]),
}


def give(name, to, x):
    try:
        GIVES[name](to, x)
    except RuntimeError as error:
        if "gloo does not support" in str(error):
            pytest.skip("this gloo has no such collective")
        raise


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", GIVES)
def test_what_has_left_comes_home_to_a_collective(name):
    x, to = on(torch.arange(2.0**14), D0), on(torch.zeros(2**14), D0)
    _C.spill_all()
    assert _C.is_spilled(x)
    assert _C.is_spilled(to)
    give(name, to, x)
    assert torch.equal(to.cpu(), torch.arange(2.0**14))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", GIVES)
@pytest.mark.parametrize("n", [4, 2**14])
def test_what_a_collective_writes_is_seen_on_other_devices(n, name):
    x, there, news = on(torch.zeros(n), D0), on(torch.zeros(n), D1), torch.ones(n, device=D0)
    there.pin()  # so that x comes to it
    managed.stats(reset=True)
    sums = [x + there for _ in range(3)]
    copies = [managed.stats()["copy"]]
    give(name, x, news)
    sums += [x + there for _ in range(3)]
    copies.append(managed.stats()["copy"])
    assert copies == [1, 2]
    assert [set(s.tolist()) for s in sums] == [{0.0}] * 3 + [{1.0}] * 3


# ---- failures


@pytest.mark.usefixtures("alone")
def test_the_tensors_of_a_collective_are_on_one_device():
    x, y = torch.ones(2, device=D0), torch.ones(2, device=D1)
    with pytest.raises(RuntimeError, match=f"on one device: these are on {D0} and {D1}"):
        dist.all_to_all_single(x, y)
    dist.all_reduce(x)
    assert x.tolist() == [1.0, 1.0]


@pytest.mark.usefixtures("alone")
def test_what_gloo_refuses_is_its_error_and_changes_nothing():
    x = torch.ones(4, device=D0)
    with pytest.raises(RuntimeError) as host:
        dist.all_reduce(x.cpu(), dist._make_nccl_premul_sum(2.0))
    with pytest.raises(RuntimeError) as device:
        dist.all_reduce(x, dist._make_nccl_premul_sum(2.0))
    assert str(device.value) == str(host.value)
    dist.all_reduce(x)
    assert x.sum() == 4


@pytest.mark.usefixtures("alone")
def test_the_future_of_a_work_that_has_ended_has_its_value():
    """DistributedDataParallel.join() asks for it at once."""
    x = torch.ones(2, device=D0)
    for _ in range(500):
        work = dist.all_reduce(x, async_op=True)
        future = work.get_future()
        work.wait()
        assert future.done()
        assert future.value()[0] is x
        other = dist.all_reduce(x, async_op=True)
        while not other.is_completed():
            pass
        assert other.get_future().done()


@pytest.mark.usefixtures("alone")
def test_a_profile_has_each_collective_once():
    """The one that finds when a collective ends is gloo's, too."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds, acc_events=True) as profile:
        dist.all_reduce(torch.ones(2, device=D0))
        dist.broadcast(torch.ones(2, device=D0), 0)
    names = [e.name for e in profile.events() if e.name.startswith("gloo:")]
    assert sorted(names) == ["gloo:all_reduce", "gloo:broadcast"]


@pytest.mark.usefixtures("alone")
def test_sparse_tensors_are_refused():
    with pytest.raises(NotImplementedError, match="collectives of sparse tensors"):
        dist.all_reduce(torch.eye(3, device=D0).to_sparse())


def test_devices_without_values_have_nothing_to_send(run_python):
    program = """
        import torch, torch.distributed as dist, managed
        managed.simulate(2, "64MiB", values=False)
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
        x = torch.ones(2**20, device="sim:0")
        try:
            dist.all_reduce(x)
        except NotImplementedError as error:
            print(error)
        dist.destroy_process_group()
    """
    assert "values=False" in run_python(program)


def test_a_process_that_ends_ends_the_wait_of_the_others(ranks):
    """Long before the timeout, by gloo's error."""
    for found in ranks[:-1]:
        told, seconds = found["killed"]
        assert told == "RuntimeError"
        assert seconds < 30


def test_a_process_that_is_silent_ends_the_wait_when_the_timeout_has_passed(ranks):
    told, seconds = ranks[0]["silent"]
    assert told in ("RuntimeError", "DistBackendError")
    assert 0.5 < seconds < 30


@pytest.mark.usefixtures("alone")
def test_a_barrier_is_of_a_device_that_there_is():
    asked = dist.BarrierOptions()
    asked.device, asked.device_ids = torch.device("sim:0"), [99]
    for barrier in (
        lambda: dist.barrier(device_ids=[99]),
        lambda: dist.distributed_c10d._get_default_group().barrier(asked),
    ):
        with pytest.raises(RuntimeError, match="there is no device sim:99"):
            barrier()
    dist.barrier(device_ids=[1])
