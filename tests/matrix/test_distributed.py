"""Distributed training

Two processes over gloo.
"""

import pytest
import torch
from support.devices import D1
from support.pressure import PRESSURES
from support.slices import slice_of
from support.spawned import spawn

from .common import difference
from .ranks import both


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What every rank found, by name."""
    return spawn(both, tmp_path_factory.mktemp("ranks"))


def equal(plain, managed):
    """Losses, weights, buffers or gradients are the same bits, and gradients are at home."""
    assert difference(plain[:2], managed[:2]) is None
    assert managed[2]
    assert all(managed[2])
    assert not any(plain[2])


@pytest.mark.row("DistributedDataParallel, model on the CPU")
@pytest.mark.row("DistributedDataParallel, no_sync")
@pytest.mark.row("DistributedDataParallel, find_unused_parameters")
@pytest.mark.row("DistributedDataParallel, static_graph, gradient_as_bucket_view")
@pytest.mark.row("ZeroRedundancyOptimizer")
def test_ddp(ranks):
    for found in ranks:
        for name in ("DDP", "no_sync", "unused", "static_graph", "bucket views", "ZeRO"):
            equal(*found[name])
    first, second = (found["DDP"][1] for found in ranks)
    assert difference(first[1][:6], second[1][:6]) is None
    assert first[0] != second[0]  # each had data of its own


@pytest.mark.row(
    "DistributedDataParallel, model on the CPU",
    note="The batch may be on any device",
)
def test_ddp_with_a_batch_on_another_device(ranks):
    for found in ranks:
        equal(*found["batch elsewhere"])


@pytest.mark.row(
    "DistributedDataParallel, model on simulated devices",
    note="On one or several; a model on several kinds of devices is DDP's own ValueError",
)
def test_ddp_on_simulated_devices(ranks):
    for found in ranks:
        for where in ("one", "several"):
            equal(found["DDP"][0], found[f"DDP {where}"])
        kind, message = found["DDP mixed"]
        assert kind == "ValueError"
        assert "must be on the same type of devices" in message


@pytest.mark.row("DistributedDataParallel of managed.DataParallel", note="simulated devices")
def test_two_processes_with_two_devices_are_one_with_four(ranks):
    for found in ranks:
        parts, whole = found["2 x 2"]
        for one, other in zip(parts, whole, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.row("torch.distributed, collectives of managed CPU tensors")
def test_collectives(ranks):
    for found in ranks:
        assert found["all_reduce cpu"][:2] == (None, [3.0] * 3)
        assert found["broadcast cpu"][:2] == (None, [1.0] * 3)
        assert found["parts"] == [([1.0] * 3, True), ([2.0] * 3, True)]
        assert found["send cpu"][:2] == (None, [1.0] * 3)


def test_what_a_collective_writes_is_seen_on_other_devices(ranks):
    for found in ranks:
        for call in ("all_reduce", "broadcast", "send"):
            _, here, elsewhere = found[f"{call} cpu"]
            assert here == elsewhere


@pytest.mark.row("torch.distributed, collectives of tensors on simulated devices")
def test_collectives_on_simulated_devices(ranks):
    """tests/sim/test_groups.py has all of them."""
    for found in ranks:
        for call in ("all_reduce", "broadcast", "all_gather", "send"):
            assert found[f"{call} sim"] == found[f"{call} cpu"]


@pytest.mark.row("FSDP2, fully_shard, plain module on simulated devices")
@pytest.mark.row("Tensor parallelism, plain module on simulated devices")
@pytest.mark.row("ZeroRedundancyOptimizer, plain module on simulated devices")
@pytest.mark.parametrize("kind", ["FSDP2", "tensor parallel", "ZeRO"])
def test_plain_modules_on_simulated_devices(ranks, kind):
    for found in ranks:
        plain, there = found[f"plain {kind}"]
        assert difference(plain, there) is None


@pytest.mark.row(
    "FSDP2, fully_shard",
    "refused: TypeError",
    note="Its parameters are DTensors, which cannot be managed, before and after",
)
def test_fsdp(ranks):
    for found in ranks:
        for name in ("FSDP2 of managed", "managed of FSDP2"):
            kind, message = found[name]
            assert kind == "TypeError"
            assert "__torch_dispatch__ cannot be managed" in message
        assert found["FSDP2 elsewhere"][0] in ("RuntimeError", "TypeError")


@pytest.mark.row("Tensor parallelism, parallelize_module", "refused: TypeError")
def test_tensor_parallel(ranks):
    for found in ranks:
        kind, message = found["tensor parallel"]
        assert kind == "TypeError"
        assert "__torch_dispatch__ cannot be managed" in message


@pytest.mark.row("FullyShardedDataParallel, model on the CPU")
def test_first_fsdp(ranks):
    for found in ranks:
        assert difference(*found["FSDP1"]) is None


@pytest.mark.row("torch.distributed.checkpoint", note="Tensors on any device")
def test_checkpoint(ranks):
    for found in ranks:
        expected, loaded, homes = found["checkpoint"]
        assert difference(expected, loaded) is None
        assert homes == [D1] * 2


@pytest.mark.row(
    "torch.distributed.pipelining",
    note="A stage returns its output on the device that it tells PipelineStage",
)
@pytest.mark.parametrize("where", ["cpu", "one", "mixed"])
def test_pipelining(ranks, where):
    for found in ranks:
        equal(found["pipeline plain"], found[f"pipeline {where}"])


# ---- storages leave their devices meanwhile


@pytest.mark.row(
    "DistributedDataParallel, under memory pressure",
    note="Batch on another device, or model on a simulated one",
)
@pytest.mark.row(
    "torch.distributed.pipelining, under memory pressure", note="Stages on simulated devices"
)
@pytest.mark.parametrize("pressure", slice_of(PRESSURES, 0))
def test_under_pressure(ranks, pressure):
    """Both processes compute what they compute with room, and what plain torch does."""
    for found in ranks:
        pressed, usual = found["pressed"][pressure], found["pressed"]["usual"]
        equal(*pressed["DDP"])
        equal(pressed["DDP"][0], pressed["DDP there"])
        assert difference(usual["DDP"][1], pressed["DDP"][1]) is None
        for where in ("cpu", "one", "mixed"):
            equal(pressed["pipeline plain"], pressed[f"pipeline {where}"])
        assert pressed["restored"] > 3
