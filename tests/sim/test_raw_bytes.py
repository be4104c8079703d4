"""Memory of simulated devices that is no tensor's: of other libraries, and of torch's allocator."""

import contextlib
import ctypes
import gc
import os

import pytest
import torch
from support.pressure import MiB, moved, nothing_left, on  # noqa: F401

import managed

CAPACITY = 256 * MiB
D = "sim:3"  # of the four the one on which no other test leaves bytes, as torch.export() does


@pytest.fixture
def taken():
    """Takes bytes as another library does; they go back when the test ends."""
    addresses = []

    def take(nbytes):
        address = torch.sim.raw_alloc(nbytes, D)
        if address is not None:
            addresses.append(address)
        return address

    yield take
    for address in addresses:
        with contextlib.suppress(ValueError):
            torch.sim.raw_free(address)


def free():
    return torch.sim.mem_get_info(D)[0]


def test_bytes_of_others_are_the_devices_and_no_tensors(taken):
    gc.collect()
    before, allocated = free(), torch.sim.memory_allocated(D)
    address = taken(64 * MiB)
    assert free() == before - 64 * MiB
    assert torch.sim.memory_allocated(D) == torch.sim.memory_reserved(D) == allocated
    assert managed.stats()["devices"][D]["foreign"] == 64 * MiB
    torch.sim.raw_free(address)
    assert free() == before
    assert managed.stats()["devices"][D]["foreign"] == 0


def test_they_can_be_written(taken):
    address = taken(16)
    ctypes.memset(address, 7, 16)
    assert ctypes.string_at(address, 16) == bytes([7]) * 16


def test_nothing_leaves_for_them(taken):
    x = on(torch.ones(64 * MiB // 4), D)
    with moved() as found:
        assert taken(free() + 1) is None
        assert taken(free()) is not None
    assert found["spill"] == 0
    assert taken(1) is None
    del x


def test_what_does_not_fit_beside_them_leaves(taken):
    there = [on(torch.full((32 * MiB // 4,), float(i)), D) for i in range(4)]
    taken(128 * MiB)
    with moved() as found:
        y = torch.zeros(64 * MiB // 4, device=D)
    assert found.bytes("spill") == 64 * MiB
    del y
    assert [x.sum().item() / x.numel() for x in there] == [0, 1, 2, 3]


def test_an_error_names_them(taken):
    taken(200 * MiB)
    with pytest.raises(torch.OutOfMemoryError, match=r"of other libraries 200.0 MiB \(209715200 "):
        torch.zeros(64 * MiB // 4, device=D)
    with pytest.raises(torch.OutOfMemoryError, match="can never fit"):
        torch.zeros(257 * MiB // 4, device=D)


def test_a_budget_bounds_tensors_alone(taken):
    with managed.budget(D, 64 * MiB):
        taken(100 * MiB)
        x = torch.zeros(64 * MiB // 4, device=D)
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(1, device=D)
        assert taken(92 * MiB) is not None
        assert managed.stats()["devices"][D]["foreign"] == 0  # a budget leaves so much to them
    del x
    assert free() == 64 * MiB


def test_a_budget_with_less_room_than_it_allows(taken):
    with managed.budget(D, 128 * MiB):
        taken(224 * MiB)
        x = torch.zeros(32 * MiB // 4, device=D)
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(1, device=D)
        assert managed.stats()["devices"][D]["foreign"] == 96 * MiB
    del x


def test_addresses_are_given_back_once(taken):
    address = taken(8)
    torch.sim.raw_free(address)
    with pytest.raises(ValueError, match=r"no address that torch.sim.raw_alloc\(\) gave"):
        torch.sim.raw_free(address)
    block = torch.sim.caching_allocator_alloc(8, D)
    with pytest.raises(ValueError, match="raw_alloc"):
        torch.sim.raw_free(block)
    torch.sim.caching_allocator_delete(block)
    with pytest.raises(ValueError, match="caching_allocator_alloc"):
        torch.sim.caching_allocator_delete(block)
    torch.sim.caching_allocator_delete(torch.sim.caching_allocator_alloc(0, D))


@pytest.mark.parametrize("nbytes", [0, -1])
def test_a_size_that_is_none_is_refused(nbytes):
    with pytest.raises(ValueError, match="1 byte or more"):
        torch.sim.raw_alloc(nbytes, D)
    with pytest.raises(ValueError, match="0 bytes or more"):
        torch.sim.caching_allocator_alloc(-1, D)
    with pytest.raises(ValueError, match="there is no device"):
        torch.sim.raw_alloc(1, "sim:99")


def test_tensors_leave_for_memory_of_torchs_allocator():
    x = on(torch.arange(64.0 * MiB // 4), D)
    with moved() as found:
        address = torch.sim.caching_allocator_alloc(free() + 32 * MiB, D)
    assert found.bytes("spill") == 64 * MiB
    assert torch.sim.memory_allocated(D) >= 192 * MiB
    ctypes.memset(address, 1, 4096)
    with pytest.raises(torch.OutOfMemoryError):
        torch.sim.caching_allocator_alloc(CAPACITY + 1, D)
    torch.sim.caching_allocator_delete(address)
    assert torch.equal(x.cpu(), torch.arange(64.0 * MiB // 4))


def test_a_stream_gets_the_bytes():
    stream = torch.Stream(D)
    for named in (stream, stream.stream_id, None):
        address = torch.sim.caching_allocator_alloc(MiB, D, named)
        torch.sim.caching_allocator_delete(address)


def test_the_clock_waits_for_them(taken):
    """Bytes that a tensor takes after them are late if those that left are still being copied."""
    x = on(torch.ones(64 * MiB // 4), D)
    torch.accelerator.synchronize(D)
    taken(192 * MiB)
    begin = torch.sim.elapsed()
    y = torch.zeros(64 * MiB // 4, device=D)
    torch.sim.synchronize(D)
    copied = torch.sim.elapsed() - begin
    assert (
        copied > 64 * MiB / 64e9
    )  # seconds that the copy out takes on the fastest link of a preset
    del x, y


def test_a_child_of_fork_has_them(taken):
    address = taken(MiB)
    before = free()
    child = os.fork()
    if not child:
        right = free() == before
        torch.sim.raw_free(address)
        os._exit(0 if right and free() == before + MiB else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert free() == before


def test_in_on_torch_cuda_gives_such_memory():
    with managed.on():
        address = torch.cuda.caching_allocator_alloc(4096)
        torch.cuda.caching_allocator_delete(address)
