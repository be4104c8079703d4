"""Distributed training

Two processes over gloo.
"""

import pytest
from support.devices import D1
from support.pressure import PRESSURES
from support.slices import slice_of

from .children import spawn
from .common import difference
from .ranks import both, both_pressed


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
    "refused: RuntimeError",
    note="gloo does not know them; a model on several kinds of devices is DDP's own ValueError",
)
def test_ddp_on_simulated_devices(ranks):
    for found in ranks:
        kind, message = found["DDP one"]
        assert kind == "RuntimeError"
        assert "No backend type associated with device type sim" in message
        kind, message = found["DDP mixed"]
        assert kind == "ValueError"
        assert "must be on the same type of devices" in message


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


@pytest.mark.row(
    "torch.distributed, collectives of tensors on simulated devices",
    "refused: RuntimeError",
    note="Send x.cpu()",
)
def test_collectives_on_simulated_devices(ranks):
    for rank, found in enumerate(ranks):
        for call in ("all_reduce", "broadcast", "all_gather", "send"):
            (kind, message), *values = found[f"{call} sim"]
            assert kind == "RuntimeError"
            assert "No backend type associated with device type sim" in message
            assert values == [[rank + 1.0] * 3] * 2


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
    note="A stage on simulated devices returns its output on the CPU, where gloo sends it",
)
@pytest.mark.parametrize("where", ["cpu", "one", "mixed"])
def test_pipelining(ranks, where):
    for found in ranks:
        equal(found["pipeline plain"], found[f"pipeline {where}"])


# ---- storages leave their devices meanwhile


@pytest.fixture(scope="module")
def pressed_ranks(tmp_path_factory):
    return spawn(both_pressed, tmp_path_factory.mktemp("pressed"))


@pytest.mark.row("DistributedDataParallel, under memory pressure", note="Batch on another device")
@pytest.mark.row(
    "torch.distributed.pipelining, under memory pressure", note="Stages on simulated devices"
)
@pytest.mark.parametrize("pressure", slice_of(PRESSURES, 0))
def test_under_pressure(pressed_ranks, pressure):
    """Both processes compute what they compute with room, and what plain torch does."""
    for found in pressed_ranks:
        pressed, usual = found[pressure], found["usual"]
        equal(*pressed["DDP"])
        assert difference(usual["DDP"][1], pressed["DDP"][1]) is None
        for where in ("cpu", "one", "mixed"):
            equal(pressed["pipeline plain"], pressed[f"pipeline {where}"])
        assert pressed["restored"] > 3
