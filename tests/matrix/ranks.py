"""What each of two processes computes for the distributed rows, plainly and managed.

A child imports this file and no test. Every rank does the same things in the same order, and what
raises does so on all of them before anything is sent, so nobody waits for the other.
"""

import copy
import warnings
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from support.devices import D1
from support.pressure import PRESSURES, pressed
from support.spawned import LIMIT
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import managed
from managed import ManagedModule, ManagedTensor

from .common import Place, managed_on

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it scripts functions when imported
    from torch.distributed.optim import ZeroRedundancyOptimizer

__all__ = ["both"]


class Branches(nn.Module):
    """A model with a branch that the first rank does not use."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 3)])

    def forward(self, x, all_heads=True):
        y = self.body(x)
        return sum(head(y) for head in self.heads) if all_heads else self.heads[0](y)


class Deep(nn.Module):
    """Layers of which most can leave while one works."""

    def __init__(self, inputs, outputs):
        super().__init__()
        layers = [nn.Linear(inputs, 16)]
        for _ in range(6):
            layers += [nn.Tanh(), nn.Linear(16, 16)]
        self.body = nn.Sequential(*layers, nn.Tanh(), nn.Linear(16, outputs))

    def forward(self, x, all_heads=True):
        return self.body(x)


def at_home(model):
    """Whether parameters and gradients are managed and together; plain models have no say."""
    return [
        isinstance(p, ManagedTensor)
        and isinstance(p.grad, ManagedTensor)
        and p.grad.device == p.device
        for p in model.parameters()
    ]


def result(model, losses):
    tensors = [t.detach().cpu() for t in (*model.parameters(), *model.buffers())]
    return losses, tensors, at_home(model)


def train(model, rank, *, device="cpu", accumulate=False, unused=False, zero=False, **options):
    """Three AdamW steps on this rank's data; losses, weights and where the gradients are."""
    wrapped = DistributedDataParallel(model, find_unused_parameters=unused, **options)
    kind = [ZeroRedundancyOptimizer, torch.optim.AdamW] if zero else [torch.optim.AdamW]
    optimizer = kind[0](model.parameters(), *kind[1:], lr=0.01)
    draw = torch.Generator().manual_seed(rank)

    def loss():
        x = torch.randn(4, 6, generator=draw)
        y = wrapped(x if device == "cpu" else managed_on(x, device), not unused or rank == 1)
        return y.square().sum()

    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        if accumulate:
            with wrapped.no_sync():
                loss().backward()
        losses.append(loss())
        losses[-1].backward()
        optimizer.step()
    return result(model, [x.item() for x in losses])


def pipeline(model, rank, device="cpu"):
    """One step of GPipe with two stages and two micro-batches."""
    stage = PipelineStage(model, rank, 2, torch.device(device))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda y, t: (y - t).square().sum())
    x, t = torch.randn(4, 6).to(device), torch.randn(4, 3).to(device)
    losses = []
    outputs = schedule.step(x) if rank == 0 else schedule.step(target=t, losses=losses)
    gradients = [p.grad.cpu() for p in model.parameters()]
    home = [
        isinstance(p.grad, ManagedTensor) and p.grad.device == p.device for p in model.parameters()
    ]
    made = [] if outputs is None else [outputs.detach().cpu()]
    return [x.item() for x in losses], [*gradients, *made], home


class OnHost(nn.Module):
    """Brings what a module returns to the CPU."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x).cpu()


def refusal(function):
    try:
        function()
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def data_parallel(rank):
    torch.manual_seed(0)
    model = Branches()
    found = {}
    for name, options in {
        "DDP": {},
        "no_sync": {"accumulate": True},
        "unused": {"unused": True},
        "static_graph": {"static_graph": True},
        "bucket views": {"gradient_as_bucket_view": True},
        "ZeRO": {"zero": True},
    }.items():
        plain = train(copy.deepcopy(model), rank, **options)
        found[name] = plain, train(ManagedModule.from_module(copy.deepcopy(model)), rank, **options)
    there = train(ManagedModule.from_module(copy.deepcopy(model)), rank, device="sim:1")
    found["batch elsewhere"] = found["DDP"][0], there
    found["DDP one"] = train(Place("one").module(model), rank)
    found["DDP several"] = train(several(model), rank)
    net = Place("mixed").module(model)
    found["DDP mixed"] = refusal(lambda: DistributedDataParallel(net))
    return found | {"2 x 2": two_by_two(rank)}


def several(model):
    """A managed copy whose body and heads are on two simulated devices."""
    there = ManagedModule.from_module(copy.deepcopy(model))
    there.body.to("sim:0")
    there.heads.to("sim:1")
    return there


def two_by_two(rank):
    """Weights after three steps: in two processes on two devices each, and in one on four."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    data = [torch.randn(8, 6, dtype=torch.float64) for _ in range(3)]

    def weights(devices, rows, wrap):
        model = managed.DataParallel(copy.deepcopy(net), devices=devices)
        wrapped = wrap(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for x in data:
            optimizer.zero_grad()
            wrapped(x[rows]).square().mean().backward()
            optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    mine = slice(4 * rank, 4 * rank + 4)
    parts = weights([2 * rank, 2 * rank + 1], mine, DistributedDataParallel)
    return parts, weights(range(4), slice(None), lambda model: model)


def collectives(rank):
    calls = {
        "all_reduce": dist.all_reduce,
        "broadcast": lambda x: dist.broadcast(x, 0),
        "all_gather": lambda x: dist.all_gather([torch.empty_like(x) for _ in range(2)], x),
        "send": lambda x: dist.send(x, 1) if rank == 0 else dist.recv(x, 0),
    }
    found = {}
    for name, device in (("cpu", "cpu"), ("sim", f"sim:{rank}")):
        for call, function in calls.items():
            x = managed_on(torch.full((3,), rank + 1.0), device)
            elsewhere = managed_on(torch.zeros(3), "sim:2")
            x + elsewhere  # a copy that is kept on sim:2 is stale when x is written
            told = refusal(lambda f=function, x=x: f(x))
            found[f"{call} {name}"] = told, x.tolist(), (x + elsewhere).tolist()
    x = managed_on(torch.full((3,), rank + 1.0), "cpu")
    dist.all_gather(parts := [torch.empty_like(x) for _ in range(2)], x)
    found["parts"] = [(p.tolist(), isinstance(p, ManagedTensor)) for p in parts]
    return found


def flat(model, rank):
    """Three AdamW steps with the first FSDP."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it tells of FSDP2
        wrapped = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(wrapped(torch.randn(4, 6, generator=draw)).square().sum())
        losses[-1].backward()
        optimizer.step()
    with FullyShardedDataParallel.summon_full_params(wrapped):
        return [x.item() for x in losses], [p.detach().clone() for p in wrapped.parameters()]


def sharded(rank):
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    after = copy.deepcopy(net)
    fully_shard(after, mesh=mesh)
    before, there, split = (ManagedModule.from_module(copy.deepcopy(net)) for _ in range(3))
    there.cuda(1)
    columns = {"0": ColwiseParallel()}
    return {
        "FSDP2 of managed": refusal(lambda: fully_shard(before, mesh=mesh)),
        "FSDP2 elsewhere": refusal(lambda: fully_shard(there, mesh=mesh)),
        "managed of FSDP2": refusal(lambda: ManagedModule.from_module(after)),
        "tensor parallel": refusal(lambda: parallelize_module(split, mesh, columns)),
        "FSDP1": (flat(copy.deepcopy(net), rank), flat(ManagedModule.from_module(net), rank)),
    }


def plain_modules(rank):
    """What plain modules compute on the CPU and on a simulated device, by kind."""
    found = {}
    for kind, weights in {"FSDP2": fsdp, "tensor parallel": tensors_parallel, "ZeRO": zero}.items():
        found[f"plain {kind}"] = weights(rank, "cpu"), weights(rank, "sim")
    return found


def steps(model, optimizer, device, draw):
    """Three steps; the data are those of the rank, or of both."""
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 6, generator=draw).to(device)).square().sum().backward()
        optimizer.step()


def on_device(kind, rank):
    torch.manual_seed(2)
    device = torch.device(kind, rank) if kind == "sim" else torch.device("cpu")
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).to(device), device


def fsdp(rank, kind):
    net, device = on_device(kind, rank)
    for module in (net[0], net[2], net):
        fully_shard(module, mesh=init_device_mesh(kind, (2,)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    steps(net, optimizer, device, torch.Generator().manual_seed(rank))
    return [p.full_tensor().detach().cpu() for p in net.parameters()]


def tensors_parallel(rank, kind):
    net, device = on_device(kind, rank)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(net, init_device_mesh(kind, (2,)), plan)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, foreach=False)
    steps(net, optimizer, device, torch.Generator().manual_seed(0))
    full = [p.full_tensor() if isinstance(p, DTensor) else p for p in net.parameters()]
    return [p.detach().cpu() for p in full]


def zero(rank, kind):
    net, device = on_device(kind, rank)
    wrapped = DistributedDataParallel(net)
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=0.01)
    steps(wrapped, optimizer, device, torch.Generator().manual_seed(rank))
    return [p.detach().cpu() for p in net.parameters()]


def checkpoints(rank, folder):
    """Saves a scattered model and loads it into one that stands elsewhere."""
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    file = f"{folder}/checkpoint"
    dcp.save({"model": Place("mixed").module(model).state_dict()}, checkpoint_id=file)
    other = Place("one").module(nn.Linear(6, 4))
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=file)
    other.load_state_dict(state["model"])
    expected, found = (list(m.parameters()) for m in (model, other))
    return {"checkpoint": (expected, [p.cpu() for p in found], [str(p.device) for p in found])}


def pipelines(rank, stages=None):
    torch.manual_seed(0)
    stages = stages or [nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 3)]
    make = {
        "plain": lambda m: m,
        "cpu": ManagedModule.from_module,
        "one": Place("one").module,
        "mixed": lambda m: OnHost(Place("mixed").module(m)),
    }
    found = {}
    for name, wrap in make.items():
        torch.manual_seed(1)
        stage = wrap(copy.deepcopy(stages[rank]))
        device = D1 if name == "one" else "cpu"
        found[f"pipeline {name}"] = pipeline(stage, rank, device)
    return found


@contextmanager
def group(rank, world, folder):
    """Both processes, over gloo, each with simulated devices."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "The AccumulateGrad node's stream does")  # torch 2.11
    managed.simulate(4, "16MiB")
    torch.sim.set_device(rank)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=LIMIT),
    )
    yield
    dist.destroy_process_group()


def deep(rank):
    """What computes on simulated devices."""
    torch.manual_seed(0)
    model, stages = Deep(6, 3), [Deep(6, 16), Deep(16, 3)]
    host, there = ManagedModule.from_module(copy.deepcopy(model)), Place("one").module(model)
    found = {
        "DDP": (train(model, rank), train(host, rank, device="sim:1")),
        "DDP there": train(there, rank),
    }
    return found | pipelines(rank, stages)


def pressures(rank):
    """The same with room and while storages leave; and how many came back."""
    found = {"usual": deep(rank)}
    for pressure in PRESSURES:
        before = managed.stats()["restore"]
        found[pressure] = pressed(pressure, lambda: deep(rank))
        found[pressure]["restored"] = managed.stats()["restore"] - before
    return found


def both(rank, world, folder):
    """Everything, in one process group: starting one costs more than all that it does."""
    found = {}
    with group(rank, world, folder):
        for scenario in (data_parallel, collectives, sharded, plain_modules, pipelines):
            found |= scenario(rank)
        found |= checkpoints(rank, folder)
        found["pressed"] = pressures(rank)
    return found
