"""Programs that ask torch.distributed for NCCL and "cuda", inside of managed.on()."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import managed

pytestmark = pytest.mark.only_simulated("real GPUs have NCCL")

X, Y = torch.randn(32, 8), torch.randint(4, (32,))


@pytest.fixture
def begin():
    """Starts the group of this process alone; it ends with the test."""

    def start(*args, **kwargs):
        dist.init_process_group(*args, store=dist.HashStore(), rank=0, world_size=1, **kwargs)

    yield start
    dist.destroy_process_group()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def train(model, device):
    """The loop of torch's tutorials."""
    data = TensorDataset(X, Y)
    loader = DataLoader(data, 8, sampler=DistributedSampler(data, num_replicas=1, rank=0))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl", "cuda:gloo", "gloo", None])
def test_a_script_for_several_gpus_has_the_losses_of_the_cpu(begin, backend):
    plain = train(net(), "cpu")
    with managed.on():
        begin(backend, device_id=torch.device("cuda:1"))
        model = DistributedDataParallel(net().cuda(1), device_ids=[1], output_device=1)
        assert train(model, "cuda:1") == plain
        dist.barrier(device_ids=[1])
        x = torch.ones(2, device="cuda:1")
        dist.all_reduce(x, group=dist.new_group([0], backend=backend))
        assert (x.tolist(), str(x.device)) == ([1.0, 1.0], "sim:1")


@pytest.mark.parametrize("type", [torch.float16, torch.bfloat16])
def test_gradients_cross_in_half_precision(begin, type):
    """Torch takes the second hook from builds with CUDA alone."""
    hook = {torch.float16: fp16_compress_hook, torch.bfloat16: bf16_compress_hook}[type]
    x, y = X[:8], Y[:8]
    plain = net()
    nn.functional.cross_entropy(plain(x), y).backward()
    with managed.on():
        begin("nccl")
        model = DistributedDataParallel(net().cuda(), device_ids=[0])
        with pytest.raises(ValueError, match="bucket annotation"):
            model.register_comm_hook(None, wrong_hook)
        with pytest.raises(TypeError, match="must be callable"):
            model.register_comm_hook({}, {})
        model.register_comm_hook(None, hook)
        nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(p.grad.cpu(), q.grad.to(type).float())


@pytest.mark.parametrize("find_unused", [False, True])
def test_a_module_that_was_sent_nowhere_is_reduced(begin, find_unused):
    """It goes to a device before the reducer has hooks on its parameters."""
    plain = net()
    nn.functional.cross_entropy(plain(X), Y).backward()
    reduced = []

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        reduced.append(bucket.buffer().numel())
        done = torch.futures.Future(devices=[bucket.buffer().device])
        done.set_result(bucket.buffer())
        return done

    with managed.on():
        begin("gloo")
        model = DistributedDataParallel(net(), find_unused_parameters=find_unused)
        model.register_comm_hook(None, hook)
        for _ in range(2):
            model.zero_grad()
            nn.functional.cross_entropy(model(X), Y).backward()
    assert {p.device.type for p in model.parameters()} == {"sim"}
    assert sum(reduced) == 2 * sum(p.numel() for p in plain.parameters())
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(p.grad.cpu(), q.grad)


def wrong_hook(state: object, bucket: int) -> torch.futures.Future[torch.Tensor]:
    raise AssertionError


def test_a_mesh_of_cuda_is_one_of_simulated_devices(begin):
    with managed.on():
        begin("nccl", device_id=torch.device("cuda:0"))
        assert dist.get_backend() == "nccl"
        mesh = init_device_mesh("cuda", (1, 1), mesh_dim_names=("replicas", "shards"))["shards"]
        dist.all_reduce(torch.ones(1), group=dist.new_group(backend="gloo"))
        assert mesh.device_type == "sim"
        assert dist.DeviceMesh("cuda", [0]).device_type == "sim"
    model = net().to("sim:0")
    fully_shard(model, mesh=mesh)
    assert train(model, "sim:0") == train(net(), "cpu")


def test_nccl_is_there_inside_and_not_outside():
    before = dist.is_nccl_available(), dist.is_backend_available("nccl")
    with managed.on():
        assert dist.is_nccl_available()
        assert dist.is_backend_available("NCCL")
        assert dist.is_backend_available("gloo")
        assert not dist.is_backend_available("mpi")
        assert torch.cuda.nccl.version() > (2, 10)
    assert (dist.is_nccl_available(), dist.is_backend_available("nccl")) == before
