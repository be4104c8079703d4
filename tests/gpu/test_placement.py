"""Managed tensors on real CUDA devices: where things go, what is counted, what stays.

Run by `make gpu`. One GPU is enough; tests that need two say so.
"""

import ctypes
import gc
import threading
import time

import pytest
import torch

import managed
from managed import DeviceManager, ManagedModule, ManagedTensor, device_manager

pytestmark = pytest.mark.gpu
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


@pytest.fixture(autouse=True)
def empty_gpu():
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(0)
    yield
    gc.collect()
    assert torch.cuda.memory_allocated(0) == before, "bytes were left on cuda:0"


def rand(*shape, device="cpu", **options):
    return torch.rand(*shape, device=device, **options).as_subclass(ManagedTensor)


def test_cuda_names_the_real_device():
    assert [str(d) for d in device_manager.cuda_devices] == [
        f"cuda:{i}" for i in range(torch.cuda.device_count())
    ]
    x = rand(3, 4)
    y = x.cuda()
    assert y.device.type == "cuda"
    assert isinstance(y, ManagedTensor)
    assert torch.equal(y.cpu(), x)
    assert str(x.cuda(0).device) == "cuda:0"
    assert str(x.to("cuda:0").device) == "cuda:0"


@pytest.mark.parametrize("disperse", [False, True])
def test_the_manager_picks_a_device_with_room(disperse):
    x = rand(1024).cuda(disperse=disperse)
    assert x.device.type == "cuda"
    assert device_manager.find_device(1 << 20, disperse=disperse).type == "cuda"
    total = torch.cuda.mem_get_info(0)[1]
    assert str(device_manager.find_device(64 * total, disperse=disperse)) == "cpu"


@two_gpus
def test_disperse_spreads_equal_objects():
    devices = [rand(1 << 20).cuda(disperse=True) for _ in range(2 * torch.cuda.device_count())]
    counts = [sum(x.device.index == i for x in devices) for i in range(torch.cuda.device_count())]
    assert max(counts) - min(counts) <= 1


def test_memory_of_the_manager_is_that_of_the_driver():
    """The ledger's figures are CUDA's own, within what the driver rounds up (2 MiB a segment)."""
    granularity = 2 << 20
    held = torch.empty(64 << 20, dtype=torch.uint8, device="cuda:0")
    device_manager.find_device(1)  # observes
    told = managed.stats()["devices"]["cuda:0"]
    free, total = torch.cuda.mem_get_info(0)
    cached = torch.cuda.memory_reserved(0) - torch.cuda.memory_allocated(0)
    assert told["capacity"] == total
    assert abs(told["free"] - (free + cached)) <= granularity
    assert told["managed"] == torch.cuda.memory_allocated(0)
    del held


def test_memory_outside_of_torch_counts():
    """Bytes that another library took from the driver are foreign: they make room smaller."""
    runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")
    device_manager.find_device(1)
    before = managed.stats()["devices"]["cuda:0"]
    size, pointer = 256 << 20, ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0
    try:
        device_manager.find_device(1)
        after = managed.stats()["devices"]["cuda:0"]
    finally:
        runtime.cudaFree(pointer)
    assert after["foreign"] - before["foreign"] >= size
    assert before["free"] - after["free"] >= size


def test_a_module_moves_whole_and_keeps_its_parameters():
    net = ManagedModule.from_module(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()))
    weight = net[0].weight
    optimizer = torch.optim.AdamW(net.parameters())
    assert net.cuda() is net
    assert net[0].weight is weight
    assert optimizer.param_groups[0]["params"][0] is weight
    assert weight.device.type == "cuda"
    assert isinstance(weight, torch.nn.Parameter)
    assert isinstance(weight, ManagedTensor)
    net(rand(2, 8)).sum().backward()
    assert weight.grad.device == weight.device
    optimizer.step()
    net.cpu()
    assert str(weight.device) == "cpu"


def test_a_wait_ends_when_bytes_come_back():
    """A manager that waits for room is woken by the tensor's death, long before its deadline."""
    free, total = torch.cuda.mem_get_info(0)
    manager = DeviceManager(reserved=0.0, retry_limit=1, wait_time=30.0, cuda_devices=[0])
    with managed.budget("cuda:0", total - free + (512 << 20)):
        held = [torch.empty(400 << 20, dtype=torch.uint8, device="cuda:0")]
        timer = threading.Timer(0.5, held.clear)
        started = time.monotonic()
        timer.start()
        moved = manager.send(rand(300 << 18), device=0)
        waited = time.monotonic() - started
        timer.join()
    assert str(moved.device) == "cuda:0"
    assert 0.4 < waited < 20.0


def test_importing_and_wrapping_initialises_no_cuda(run_python):
    run_python("""
        import torch, managed
        from managed import ManagedModule, ManagedTensor
        x = torch.rand(3).as_subclass(ManagedTensor)
        (x + 1).sum()
        ManagedModule.from_module(torch.nn.Linear(2, 2))
        assert not torch.cuda.is_initialized()
    """)


DRAWS = {
    "dropout": lambda x: torch.dropout(x, 0.4, True),
    "native_dropout": lambda x: torch.native_dropout(x, 0.4, True)[0],
    "randn_like": torch.randn_like,
    "bernoulli": lambda x: torch.bernoulli(torch.sigmoid(x)),
    "multinomial": lambda x: torch.multinomial(torch.sigmoid(x).flatten(), 9),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(
        x[None], x[None], x[None], dropout_p=0.3
    ),
}


@two_gpus
@pytest.mark.parametrize("name", DRAWS)
def test_one_stream_of_random_numbers(name):
    """On cards of one kind: what the first would draw, and the second's own stream is untouched."""
    if torch.cuda.get_device_name(0) != torch.cuda.get_device_name(1):
        pytest.skip("cards of two kinds draw in other orders")
    x, told = torch.randn(8, 64, 32), []
    for t in (x.to("cuda:0"), x.to("cuda:1").as_subclass(ManagedTensor)):
        torch.manual_seed(7)
        own = torch.cuda.get_rng_state(1)
        drawn = [DRAWS[name](t).cpu() for _ in range(2)]
        assert torch.equal(torch.cuda.get_rng_state(1), own)
        told.append([*drawn, torch.cuda.get_rng_state(0)])
    assert all(torch.equal(a, b) for a, b in zip(*told, strict=True))
