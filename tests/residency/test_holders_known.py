"""Libraries that the program has imported are asked without a word. Here are stand-ins for them."""

import sys
import types

import pytest
import torch
from support.devices import CAPACITY, D0, ON_CUDA
from support.keeper import Keeper, closes_keepers, raw_alloc, raw_free  # noqa: F401
from support.pressure import MiB, moved, nothing_left, on  # noqa: F401

import managed
from managed import _holders_known, holders

pytestmark = pytest.mark.not_under_torture("it counts what leaves")

BLOCK = 12 * MiB
KEPT = 12 * BLOCK
PART = 6 * BLOCK


@pytest.fixture
def keeper():
    """Keeps nearly 60 % of a device."""
    held = Keeper().keep(KEPT, 12)
    yield held
    held.close()


class Entered:
    """A device of a library, which is made the current one before the library is asked."""

    def __init__(self, index=0):
        self.index = index

    def use(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture
def imported(monkeypatch):
    """imported(name, **attributes): puts a module there, as an import does; it is found again."""
    if not ON_CUDA:  # these libraries know CUDA devices alone
        monkeypatch.setattr(_holders_known, "_index", lambda device: int(device[-1]))
    monkeypatch.setattr(_holders_known, "_known", {})

    def put(name, **attributes):
        module = types.ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return put


def shortage():
    """What leaves when tensors take nearly 30 % of the device, and then as much again."""
    there = [on(torch.full((BLOCK // 4,), float(i))) for i in range(PART // BLOCK)]
    with moved() as found:
        more = [torch.zeros(BLOCK // 4, device=D0) for _ in range(PART // BLOCK)]
    assert [x.sum().item() / x.numel() for x in there] == list(range(PART // BLOCK))
    del more
    return found.bytes("spill")


def shortages():
    """Asked at most at each eighth shortage, the libraries are found before the ninth."""
    return [shortage() for _ in range(9)][-1]


def cupy_of(keeper):
    def free_all_blocks():
        keeper.__gpu_memory_reclaim__(D0, sys.maxsize)

    pool = types.SimpleNamespace(
        used_bytes=lambda: sum(keeper.live.values()),
        free_bytes=lambda: keeper.cached,
        free_all_blocks=free_all_blocks,
    )
    return {
        "cuda": types.SimpleNamespace(Device=Entered),
        "get_default_memory_pool": lambda: pool,
    }


def test_cupy_gives_all_that_it_keeps(imported, keeper):
    imported("cupy", **cupy_of(keeper))
    assert holders.report(D0)["cupy"] == (0, KEPT, 0, 0, 0)
    assert shortage() == 0
    assert keeper.cached == 0
    assert holders.report(D0)["cupy"].given == KEPT


def test_a_library_is_found_in_a_shortage(imported, keeper):
    shortages()
    imported("cupy", **cupy_of(keeper))
    assert shortages() == 0
    assert keeper.cached == 0


def test_a_library_that_is_being_imported_is_left_alone(imported):
    module = imported("cupy")
    module.__spec__ = types.SimpleNamespace(_initializing=True)
    assert not _holders_known.find()
    assert "cupy" not in holders.report(D0)


def test_a_library_that_fails_is_as_if_it_were_not_there(imported, keeper):
    imported("cupy")  # it has none of the functions
    assert holders.report(D0)["cupy"] == (0, 0, 0, 0, 0)
    assert shortage() >= PART + PART + KEPT - CAPACITY


class DriversPool:
    """A cudaMemPool_t of the driver, and the functions of CUDA's runtime for it."""

    def __init__(self, keeper):
        self.keeper = keeper
        names = ("cudaMemPoolAttrUsedMemCurrent", "cudaMemPoolAttrReservedMemCurrent")
        self.cudaMemPoolAttr = types.SimpleNamespace(**{name: name for name in names})

    def cudaMemPool_t(self, handle):
        assert handle == 4711
        return self

    def cudaMemPoolGetAttribute(self, pool, attribute):
        live = sum(self.keeper.live.values())
        return 0, live if "Used" in attribute else live + self.keeper.cached

    def cudaMemPoolTrimTo(self, pool, nbytes):
        live = sum(self.keeper.live.values())
        self.keeper.__gpu_memory_reclaim__(D0, live + self.keeper.cached - nbytes)


class Resource:
    def __init__(self, upstream_mr=None):
        self.upstream_mr = upstream_mr


class View(Resource):
    def pool_handle(self):
        return 4711


def rmm(imported, resource, keeper):
    imported("rmm", mr=types.SimpleNamespace(get_per_device_resource=lambda index: resource))
    pool = DriversPool(keeper)
    imported(
        "cuda.bindings.runtime",
        **{name: getattr(pool, name) for name in dir(pool) if name.startswith("cudaMem")},
    )


def test_a_pool_of_the_driver_is_trimmed_by_what_is_missing(imported, keeper):
    rmm(imported, Resource(Resource(View())), keeper)
    assert holders.report(D0)["rmm"].cached == KEPT
    assert shortage() == 0
    missing = PART + PART + KEPT - CAPACITY
    assert missing <= KEPT - keeper.cached <= missing + BLOCK


@pytest.mark.parametrize("resource", [Resource(), Resource(Resource())])
def test_a_resource_that_cannot_shrink_is_asked_for_nothing(imported, keeper, resource):
    rmm(imported, resource, keeper)
    assert holders.report(D0)["rmm"] == (0, 0, 0, 0, 0)
    assert shortage() > 0
    assert keeper.asked == []


class Waiting:
    """Numba's pending deallocations."""

    def __init__(self, keeper):
        self.keeper = keeper

    @property
    def _size(self):
        return self.keeper.cached

    def clear(self):
        self.keeper.__gpu_memory_reclaim__(D0, sys.maxsize)


@pytest.mark.parametrize("used", [True, False])
def test_what_numba_has_not_freed_yet_is_freed(imported, keeper, used):
    manager = types.SimpleNamespace(deallocations=Waiting(keeper))
    gpu = Entered()
    context = types.SimpleNamespace(memory_manager=manager) if used else None
    gpu._device = types.SimpleNamespace(primary_context=context)
    imported("numba.cuda", gpus=[gpu] * 4)
    assert holders.report(D0)["numba"].cached == (KEPT if used else 0)
    assert (shortage() == 0) is used
    assert keeper.cached == (0 if used else KEPT)


class Buffer:
    def __init__(self, spillable=True):
        self.address, self.size, self.spillable = raw_alloc(BLOCK), BLOCK, spillable

    @property
    def is_spilled(self):
        return self.address is None

    def spill(self):
        raw_free(self.address)
        self.address = None


def test_cudf_spills_what_is_missing(imported):
    buffers = [Buffer(spillable=i > 0) for i in range(12)]

    class Manager:
        def buffers(self):
            return buffers

        def spill_device_memory(self, nbytes):
            for b in buffers:
                if b.spillable and not b.is_spilled and nbytes > 0:
                    b.spill()
                    nbytes -= b.size

    name = "cudf.core.buffer.spill_manager"
    imported(name, get_global_manager=Manager)
    assert holders.report(D0)["cudf"] == (BLOCK, 11 * BLOCK, 0, 0, 0)
    assert shortage() == 0
    left = sum(not b.is_spilled for b in buffers)
    assert left * BLOCK <= KEPT - (PART + PART + KEPT - CAPACITY)
    assert left > 1
    imported(name, get_global_manager=lambda: None)  # its spilling is off
    assert holders.report(D0)["cudf"].cached == left * BLOCK - BLOCK
    for b in buffers:
        if not b.is_spilled:
            b.spill()


def test_a_name_that_the_program_has_taken_stays_its_own(imported):
    mine = Keeper()
    holders.add(mine, name="cupy")
    imported("cupy", **cupy_of(Keeper()))
    assert holders.report(D0)["cupy"] == (0, 0, 0, 0, 0)
    _holders_known._known.clear()
    holders.remove(mine)


def test_nothing_is_imported_for_them():
    assert managed._holders_known  # it is there from the start
    for name in ("cupy", "rmm", "cudf"):
        assert name not in sys.modules
