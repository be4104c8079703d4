"""Addresses of a learned step on CUDA: its allocator's pieces cost no copies and no calls."""

import contextlib
import ctypes
import gc
import os

import pytest
import torch
from support.devices import D0, ON_CUDA
from support.pressure import MiB, nothing_left, on  # noqa: F401
from torch import nn

import managed
from managed import _C as C
from managed import ManagedModule

pytestmark = [
    pytest.mark.skipif(not ON_CUDA, reason="simulated devices have no pieces"),
    pytest.mark.not_under_torture("it counts what leaves"),
]

SIZES = (3, 5, 2, 7, 4, 6, 3, 8)  # MiB
SETTLED, REST = 8, 10  # steps; in the first ones a plan is made, and laid out
library = ctypes.CDLL(os.environ["LD_PRELOAD"].split(os.pathsep)[0]) if ON_CUDA else None


class Layers(nn.Module):
    """Elementwise, of sizes that differ: what one leaves is a piece that the next does not fit."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.parts = nn.ParameterList(torch.randn(n * MiB // 4, generator=generator) for n in SIZES)

    def forward(self, x):
        x = x.mean()
        for p in self.parts:
            x = (p * x).tanh().mean() + 1
        return x


class Training:
    def __init__(self, fraction=None):
        self.net = ManagedModule.from_module(Layers()).to(D0)
        self.optimizer = torch.optim.SGD(self.net.parameters(), 1.0, momentum=0.9, foreach=False)
        self.x = on(torch.ones(2**14))

    def begin_step(self):
        self.optimizer.zero_grad()
        loss = self.net(self.x)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def step(self):
        return self.begin_step().item()

    def weights(self):
        return [p.detach().cpu().clone() for p in self.net.parameters()]


@pytest.fixture(scope="module")
def whole():
    """Losses and weights without a budget, and the bytes that torch had then."""
    training = Training()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(0)
    losses = [training.step() for _ in range(SETTLED + REST)]
    return losses, training.weights(), torch.cuda.max_memory_allocated(0)


def check():
    """Each access had an order."""
    text = ctypes.create_string_buffer(1 << 12)
    library.vgpu_report(text, len(text))
    library.vgpu_clear()
    assert not text.value, text.value.decode()


@contextlib.contextmanager
def pressed(whole, fraction):
    """A training under a budget after SETTLED steps, and the losses so far."""
    gc.collect()
    torch.cuda.empty_cache()
    with managed.budget(D0, int(whole[2] * fraction)):
        training = Training()
        losses = [training.step() for _ in range(SETTLED)]
        yield training, losses
        while len(losses) < SETTLED + REST:
            losses.append(training.step())
        assert losses == whole[0]
        assert all(torch.equal(p, q) for p, q in zip(training.weights(), whole[1], strict=True))
        check()
        assert all(p.data_ptr() % 512 == 0 for p in training.net.parameters())


def driver_calls():
    return [library.vgpu_count(name) for name in (b"cudaMalloc", b"cudaFree")]


def moved():
    stats = managed.stats()
    return stats["spill_bytes"] + stats["spare_bytes"], stats["restore_bytes"]


@pytest.mark.parametrize("fraction", [0.85, 0.7])
def test_a_settled_step_moves_what_the_plan_says(whole, fraction):
    with pressed(whole, fraction) as (training, losses):
        settled = 0
        while settled < 2 and len(losses) < SETTLED + REST:
            before, calls = moved(), driver_calls()
            losses.append(training.step())
            state = C.step_state(1)
            planned = state["bytes_out"], state["bytes_in"]
            found = tuple(now - was for now, was in zip(moved(), before, strict=True))
            settled += state["follows"] and found == planned and driver_calls() == calls
        assert settled == 2
        assert min(planned) > 0


def at_once(n):
    return [torch.empty(n, dtype=torch.uint8, device=D0) for _ in range(2)]


def in_turns(n):
    for part in (n, n, n // 2):
        torch.empty(part, dtype=torch.uint8, device=D0)


def of_the_allocator(n):
    torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(n))


@pytest.mark.parametrize("take", [at_once, in_turns, of_the_allocator])
def test_the_first_plan_knows_what_kernels_need_for_themselves(take):
    """A kernel takes memory that is no tensor of managed's, and nothing is evicted for it."""
    weights = [on(torch.full((n * MiB // 4,), float(n))) for n in SIZES * 2]
    small = on(torch.ones(2**14))

    def step():
        small.mul_(1)
        for w in weights:
            w.mul_(1)
            take(w.nbytes)

    step()
    gc.collect()
    torch.cuda.empty_cache()
    with managed.budget(D0, 56 * MiB):
        for _ in range(SETTLED):
            step()
        before, calls = moved(), driver_calls()
        step()
        state = C.step_state(1)
        assert (state["follows"], state["plans"], driver_calls()) == (True, 1, calls)
        found = tuple(now - was for now, was in zip(moved(), before, strict=True))
        assert found == (state["bytes_out"], state["bytes_in"])
        assert all(torch.all(w == n) for w, n in zip(weights, SIZES * 2, strict=True))
    check()


@pytest.mark.parametrize("segments", [0, 4])
def test_small_results_lie_in_segments_of_torch_that_have_room(segments):
    """One tensor keeps a segment of torch's for small ones, the rest of which is free."""
    small = [torch.empty(MiB // 2, dtype=torch.uint8, device=D0) for _ in range(4 * segments)]
    kept = small[::4]
    weights = [on(torch.full((n * MiB // 4,), float(n))) for n in SIZES * 2]
    x, moment = on(torch.ones(MiB // 8)), on(torch.ones(2**14))

    def step():
        moment.mul_(1)
        y = x * 2
        for w in weights:
            w.mul_(1)
        assert y.sum().item() == 2 * x.numel()
        return in_arena(y)

    del small
    gc.collect()
    torch.cuda.empty_cache()
    with managed.budget(D0, 56 * MiB):
        for _ in range(SETTLED):
            step()
        assert C.step_state(1)["follows"]
        assert step() == (segments == 0)
        assert any(in_arena(w) for w in weights)
    del kept
    check()


def test_another_library_gets_what_is_laid_out(whole):
    with pressed(whole, 0.7) as (training, losses):
        free = torch.cuda.mem_get_info(0)[0]
        assert managed.give_back(D0, 48 * MiB) >= 48 * MiB
        assert torch.cuda.mem_get_info(0)[0] >= free + 48 * MiB
        losses.append(training.step())


def test_bytes_for_another_stream_are_not_in_the_arena(whole):
    """As CuPy asks for them by managed's allocator, for a stream that torch does not order."""
    with pressed(whole, 0.7) as (training, losses):
        stream = torch.cuda.Stream()
        address = torch.cuda.caching_allocator_alloc(6 * MiB, 0, stream)
        segments = torch.cuda.memory_snapshot()
        blocks = [b for s in segments for b in s["blocks"] if b["address"] == address]
        assert [b["state"] for b in blocks] == ["active_allocated"]  # a block of torch's own
        torch.cuda.caching_allocator_delete(address)
        losses.append(training.step())


def test_a_stream_of_its_own_gets_room(whole):
    with pressed(whole, 0.7) as (training, losses):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            there = [torch.full((6 * MiB // 4,), float(i), device=D0) for i in range(6)]
        losses.append(training.step())
        with torch.cuda.stream(stream):
            assert [t.sum().item() / t.numel() for t in there] == list(range(6))
        del there
        losses.append(training.step())


def in_arena(t):
    blocks = [b for s in torch.cuda.memory_snapshot() for b in s["blocks"]]
    return t.data_ptr() not in [b["address"] for b in blocks]


def test_streams_take_ranges_while_others_work(whole):
    """No thread waits in between, so each stream waits for the last users of what it takes."""
    with pressed(whole, 0.7) as (training, losses):
        stream = torch.cuda.Stream()
        begun, found = [], 0
        for _ in range(4):
            begun.append(training.begin_step())
            with torch.cuda.stream(stream):
                there = [torch.full((6 * MiB // 4,), 1.0, device=D0) for _ in range(4)]
            found += sum(in_arena(t) for t in there)
            del there
        assert found > 0
        losses += [loss.item() for loss in begun]


def test_without_events_a_stream_comes_after_all_that_was_begun(whole):
    """The driver refuses events while ranges die, so their users are unknown."""
    cannot_record = 2  # cudaErrorMemoryAllocation
    with pressed(whole, 0.7) as (training, losses):
        begun = [training.begin_step()]
        there = [torch.full((6 * MiB // 4,), 1.0, device=D0) for _ in range(4)]
        assert any(in_arena(t) for t in there)
        library.vgpu_fail_from(b"cudaEventRecord", 1, cannot_record)
        del there
        library.vgpu_fail_from(b"cudaEventRecord", 0, 0)
        with torch.cuda.stream(torch.cuda.Stream()):
            there = [torch.full((6 * MiB // 4,), 2.0, device=D0) for _ in range(4)]
        assert any(in_arena(t) for t in there)
        del there
        begun.append(training.begin_step())
        losses += [loss.item() for loss in begun]


def test_torch_gets_the_whole_after_all_streams(whole):
    with managed.budget(D0, int(whole[2] * 0.7)):
        training = Training()
        for _ in range(SETTLED + 2):
            training.step()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            there = [torch.full((6 * MiB // 4,), 1.0, device=D0) for _ in range(4)]
        assert any(in_arena(t) for t in there)
        del training, there
        gc.collect()
        reserved = torch.cuda.memory_reserved(0)
        pool = torch.cuda.MemPool()
        del pool  # what torch keeps elsewhere stays, and the block is its own again
        assert torch.cuda.memory_reserved(0) == reserved
        rest = torch.full((int(whole[2] * 0.5) // 4,), 2.0, device=D0)
        assert not in_arena(rest)
        assert rest.sum().item() == 2 * rest.numel()
        del rest
    check()


def test_a_smaller_budget_holds(whole):
    with pressed(whole, 0.85) as (training, losses):
        smaller = int(whole[2] * 0.6)
        with managed.budget(D0, smaller):
            assert torch.cuda.memory_reserved(0) <= smaller
            losses.append(training.step())
            assert torch.cuda.memory_reserved(0) <= smaller


def test_an_evaluation_in_between_has_a_plan_too(whole):
    with pressed(whole, 0.7) as (training, losses):
        for _ in range(2):
            with torch.no_grad():
                for _ in range(4):
                    training.net(training.x)
            losses.append(training.step())


def test_what_has_died_is_free(whole):
    """Torch counts the arena's ranges as it counts its own blocks, and gets the whole back."""
    before = torch.cuda.memory_allocated(0), torch.cuda.memory_reserved(0)
    with pressed(whole, 0.7) as (training, _):
        assert torch.cuda.memory_allocated(0) < whole[2] * 0.7
    del training
    gc.collect()
    assert torch.cuda.memory_allocated(0) == before[0]
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved(0) <= before[1]


def test_pinned_bytes_in_the_arena_stay(whole):
    with pressed(whole, 0.7) as (training, losses):
        pinned = training.net.parts[3]
        pinned.pin()
        address = pinned.data_ptr()
        with managed.budget(D0, int(whole[2] * 0.65)):
            losses += [training.step() for _ in range(2)]
        assert pinned.data_ptr() == address
