"""Allocators of other libraries

Small stand-ins for the libraries, on a simulated device; CuPy, RMM and Numba need a card.
"""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from support.devices import D0, ON_CUDA
from support.keeper import Keeper, driver_free
from support.pressure import MiB, moved, on

import managed
from managed import ManagedModule, holders, integrations

pytestmark = pytest.mark.skipif(ON_CUDA, reason="stand-ins are for simulated devices")

BLOCK = 8 * MiB


class Pointer:
    """CuPy's and Numba's MemoryPointer, as far as an allocator's user sees it."""

    def __init__(self, *arguments, finalizer=None):
        self.arguments, self.finalizer = arguments, finalizer

    def __del__(self):
        if self.finalizer:
            self.finalizer()


class Manager:
    """Numba's HostOnlyCUDAMemoryManager."""

    def __init__(self, context):
        self.context, self.allocations = context, {}


@pytest.fixture
def libraries(monkeypatch):
    """Modules with what `managed.integrations` asks of them."""
    runtime = SimpleNamespace(getDevice=torch.sim.current_device)
    stream = SimpleNamespace(ptr=0, __cuda_stream__=lambda: (0, 0))
    cupy = {"cuda": SimpleNamespace(get_current_stream=lambda: stream, runtime=runtime)}
    vars(cupy["cuda"]).update(UnownedMemory=Pointer, MemoryPointer=Pointer)
    rmm = {"CallbackMemoryResource": lambda allocate, free: SimpleNamespace(a=allocate, f=free)}
    numba = {"HostOnlyCUDAMemoryManager": Manager, "MemoryPointer": Pointer}
    numba["MemoryInfo"] = lambda free, total: (free, total)
    for name, names in {"cupy": cupy, "rmm.mr": rmm, "numba.cuda": numba}.items():
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
    return stream


def cupy_blocks(stream):
    allocate = integrations.cupy_allocator()
    return lambda: allocate(BLOCK)


def rmm_blocks(stream):
    resource = integrations.rmm_resource()

    class Buffer:
        def __init__(self):
            self.address = resource.a(BLOCK, stream)

        def __del__(self):
            resource.f(self.address, BLOCK, stream)

    return Buffer


def numba_blocks(stream):
    manager = integrations.numba_memory_manager()("context")
    assert manager.get_memory_info() == torch.sim.mem_get_info(D0)
    return lambda: manager.memalloc(BLOCK)


def values(i):
    return torch.full((BLOCK // 4,), float(i))


def same(there):
    return all(torch.equal(x.cpu(), values(i)) for i, x in enumerate(there))


def training(device):
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(12)])
    net = ManagedModule.from_module(net).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step():
        optimizer.zero_grad()
        net(torch.ones(4, 512, device=device)).square().mean().backward()
        optimizer.step()
        return [p.detach().cpu() for p in net.parameters()]

    return step


@pytest.mark.row("CuPy, `integrations.cupy_allocator()`", note="A stand-in: tensors leave for it")
@pytest.mark.row("RMM, `integrations.rmm_resource()`", note="A stand-in: tensors leave for it")
@pytest.mark.row(
    "Numba, `integrations.numba_memory_manager()`", note="A stand-in: tensors leave for it"
)
@pytest.mark.parametrize("blocks", [cupy_blocks, rmm_blocks, numba_blocks])
def test_tensors_leave_for_a_library(libraries, blocks):
    expected, step = training("cpu"), training(D0)
    with managed.on():
        make = blocks(libraries)
        before = driver_free()
        with moved() as found:
            taken = [make() for _ in range(before // BLOCK + 1)]
        assert found.bytes("spill") + found.bytes("drop") > 0
        assert driver_free() < BLOCK
        del taken
        assert driver_free() >= before
    for _ in range(2):
        wanted, got = expected(), step()
        assert all(torch.equal(p, q) for p, q in zip(wanted, got, strict=True))


@pytest.mark.row("`managed.holders.add`", note="What a library keeps goes before tensors do")
def test_what_a_library_keeps_goes_first():
    keeper = Keeper().keep(driver_free() // BLOCK * BLOCK - 4 * BLOCK, 4)
    holders.add(keeper)
    with moved() as found:
        there = [on(values(i)) for i in range(6)]
    assert found.bytes("spill") == 0
    assert same(there)
    holders.remove(keeper)
    keeper.close()


@pytest.mark.row("`managed.give_back`", note="Tensors come back bit for bit when they are used")
def test_room_is_given():
    there = [on(values(i)) for i in range(6)]
    before = driver_free()
    assert managed.give_back(D0, 4 * BLOCK) == driver_free() - before >= 4 * BLOCK
    assert same(there)
