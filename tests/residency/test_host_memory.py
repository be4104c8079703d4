"""The host's memory for what leaves devices: what is page-locked, and what the driver refuses."""

import contextlib
import ctypes
import os
import time
import warnings

import pytest
import torch
from support.devices import D0, ON_CUDA
from support.pressure import MiB, counted, mlp, module_on, no_guests, nothing_left, on, sized, spill  # noqa: F401

import managed
from managed import _C

LOCKS = b"cudaHostAlloc"
NO_MEMORY = 2  # cudaErrorMemoryAllocation
refuses = pytest.mark.skipif(not ON_CUDA, reason="only a driver refuses to page-lock memory")
not_tortured = pytest.mark.not_under_torture("it says what leaves, and when")
said = []  # warnings of this process that pages were not locked


def host():
    """The figures, which add up when nothing is under way."""
    found = managed.stats()["host"]
    assert found == _C.host_memory()
    assert found["pinned"] + found["pageable"] == found["used"]
    return found


class Driver:
    """The virtual GPU's, which refuses to lock pages from the n-th call on."""

    def __init__(self):
        self.library = ctypes.CDLL(os.environ["LD_PRELOAD"].split(":")[0])
        self.library.vgpu_count.restype = ctypes.c_long

    def calls(self):
        return self.library.vgpu_count(LOCKS)

    @contextlib.contextmanager
    def refuses(self, n=1):
        self.library.vgpu_fail_from(LOCKS, ctypes.c_long(n), NO_MEMORY)
        try:
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                yield
                torch.ones(1).sum()  # warnings are issued between instructions of the program
        finally:
            self.library.vgpu_fail(LOCKS, ctypes.c_long(0), 0)
            said.extend(w for w in found if "page-lock" in str(w.message))


def is_asked_again():
    """The driver that has refused, after some allocations."""
    for i in range(200):
        x = sized(1, float(i))
        before = host()["pinned"]
        spill(x)
        if host()["pinned"] > before:
            return True
    return False


@pytest.fixture
def driver():
    assert is_asked_again()
    yield Driver()
    assert is_asked_again()


@not_tortured
def test_bytes_in_use_are_pinned_or_pageable():
    """Exactly as many as the storages have, whatever the blocks have."""
    kind = "pinned" if ON_CUDA else "pageable"
    before = host()
    xs = [on(torch.full((n,), 1.0)) for n in (MiB // 4 + 1025, 64 * 1024 + 3, MiB)]
    nbytes = sum(x.untyped_storage().nbytes() for x in xs)
    xs = [x.clone() for x in xs]  # their storages may leave
    spill(*xs)
    found = host()
    assert found[kind] - before[kind] == found["used"] - before["used"] == nbytes
    assert [x.sum().item() for x in xs] == [float(x.numel()) for x in xs]
    del xs
    assert {k: host()[k] for k in ("used", "pinned", "pageable")} == {
        k: before[k] for k in ("used", "pinned", "pageable")
    }


def test_stats_show_them():
    x = sized(1)
    spill(x)
    text = str(managed.stats())
    assert "pinned" in text
    assert "pageable" in text


@not_tortured
def test_an_eighth_more_is_kept_than_was_used_at_once():
    """Sizes that take turns need no new memory each time; the limit of the host is kept."""

    def take_turns():
        for mib in (2, 3, 2, 3):
            x = sized(mib)
            spill(x)
            if ON_CUDA:
                torch.cuda.synchronize()  # no copy writes what is kept
            del x

    base = sized(24)
    spill(base)
    used = host()["used"]
    take_turns()
    assert host()["kept"] == 5 * MiB
    locked = Driver().calls() if ON_CUDA else 0
    take_turns()
    assert host()["kept"] == 5 * MiB
    assert not ON_CUDA or Driver().calls() == locked
    with managed.budget("cpu", used + 3 * MiB):
        take_turns()
        assert host()["kept"] == 3 * MiB
    assert base[3].item() == 1.0


@refuses
@not_tortured
def test_what_is_given_back_to_the_driver_is_locked_again(driver):
    before = host()
    a = sized(4, 1.0)
    spill(a)
    b = sized(6, 2.0)
    with driver.refuses():
        spill(b)
        assert host()["pageable"] - before["pageable"] == 6 * MiB
    torch.cuda.synchronize()  # no copy writes that memory any more
    del a
    c = sized(5, 3.0)  # other memory than that of a, which the driver gets back
    spill(c)
    assert host()["pinned"] - before["pinned"] == 5 * MiB
    assert (b[7].item(), c[7].item()) == (2.0, 3.0)


@refuses
@not_tortured
def test_free_locked_blocks_make_room_for_one_of_another_size(driver):
    """The limit of locked memory is reached by blocks that are kept."""
    first, kept = sized(2, 1.0), [sized(20), *(sized(2) for _ in range(4))]
    spill(first, *kept)
    torch.cuda.synchronize()  # no copy writes what is kept
    del kept
    x = sized(5, 2.0)
    spill(x)  # the block of 20 MiB goes back: no more is kept than was needed at once
    assert host()["kept"] == 8 * MiB
    os.environ["VIRTUAL_GPU_PINNED_BYTES"] = str(driver.library.vgpu_bytes(-1))
    try:
        y = sized(6, 3.0)
        before = host()
        spill(y)
    finally:
        del os.environ["VIRTUAL_GPU_PINNED_BYTES"]
    found = host()
    assert found["pinned"] - before["pinned"] == before["kept"] - found["kept"] == 6 * MiB
    assert [t[3].item() for t in (first, x, y)] == [1.0, 2.0, 3.0]


@refuses
@not_tortured
def test_a_driver_that_keeps_refusing_is_asked_less_and_less(driver):
    with driver.refuses():
        xs, before = [], driver.calls()
        for i in range(200):
            xs.append(sized(1, float(i)))
            spill(xs[-1])
        assert 4 <= driver.calls() - before <= 10
        assert host()["pageable"] >= 190 * MiB
        before = driver.calls()
        small = on(torch.ones(MiB // 8)).clone()  # less than all that was refused
        spill(small)
        assert driver.calls() == before + 1
    assert [x[3].item() for x in xs] == [float(i) for i in range(200)]


def training():
    """Two steps for which there is half of the room: what was pageable at most, losses, weights."""
    torch.manual_seed(0)
    net = module_on(mlp(512, 5))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    batch, losses, pageable = on(torch.randn(16, 512)), [], [0]

    def look(*_):
        pageable.append(host()["pageable"])

    for layer in net:
        layer.register_forward_hook(look)
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(look)
    optimizer.register_step_post_hook(look)
    for _ in range(2):
        optimizer.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return max(pageable), [torch.tensor(losses), *(p.detach().cpu() for p in net.parameters())]


def wait_for_engine(used):
    """Until its threads have dropped the last tensors of a backward pass."""
    deadline = time.monotonic() + 3
    while host()["used"] > used and time.monotonic() < deadline:
        time.sleep(0.002)
    assert host()["used"] == used


@refuses
@not_tortured
def test_a_training_whose_memory_is_not_page_locked_from_any_call_on(driver):
    """The same bits as without a refusal, and one warning in all."""
    noticed, there = 0, host()["used"]
    with no_guests(), managed.budget(D0, counted() + 7 * MiB):
        before = driver.calls()
        pageable, expected = training()
        most = driver.calls() - before
        assert pageable == 0
        assert most > 5
        for n in range(most, 0, -1):
            wait_for_engine(there)
            before = driver.calls()
            with driver.refuses(n):
                pageable, values = training()
            assert (pageable > 0) == (driver.calls() - before >= n), n
            assert all(map(torch.equal, expected, values)), n
            noticed += pageable > 0
        assert noticed > most / 2
    assert len(said) == 1
    assert issubclass(said[0].category, RuntimeWarning)
    assert "ulimit -l" in str(said[0].message)
