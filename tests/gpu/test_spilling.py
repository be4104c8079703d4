"""Bytes leave a real CUDA device when room is short and come back when they are used.

Run by `make gpu`. A budget makes the device small: it is the allocator's own limit, so what torch
reserves can be compared with it.
"""

import gc
import time

import pytest
import torch

import managed
from managed import _C as C
from managed import ManagedTensor

pytestmark = pytest.mark.gpu
pytest_plugins = ["emptied"]
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")

CUDA = "cuda:0"
MIB = 1 << 20


def test_a_tensor_leaves_and_comes_back(empty, made, spilled):
    x = made(64)
    view = x.view(-1, 64)
    expected = x.cpu().clone()
    allocated = torch.cuda.memory_allocated(0)
    assert C.spill_all() == 1
    assert spilled(x)
    assert torch.cuda.memory_allocated(0) == allocated - 64 * MIB
    assert str(x.device) == CUDA
    assert torch.equal((x + 0).cpu(), expected)
    assert not spilled(x)
    assert torch.equal(view.cpu(), expected.view(-1, 64))


def test_the_budget_holds_and_nothing_is_lost(cap, made):
    with cap(320):
        most = torch.cuda.memory_reserved(0) + 320 * MIB
        tensors = [made(64) for _ in range(8)]
        sums = [t.double().sum().item() for t in tensors]
        for _ in range(2):
            for t, s in zip(tensors, sums, strict=True):
                assert t.double().sum().item() == s
                assert torch.cuda.memory_reserved(0) <= most
        assert managed.stats()["spill"] > 0
        assert managed.stats()["restore"] > 0


def test_clean_copies_leave_for_nothing(empty, made):
    x = made(64)
    C.spill_all()
    x.sum()
    before = managed.stats()["drop"]
    assert C.spill_all() == 1
    assert managed.stats()["drop"] == before + 1
    x.add_(1)
    expected = x.cpu().clone()
    C.spill_all()
    assert torch.equal(x.cpu(), expected), "what was written after the copy was lost"


def train(steps, form):
    torch.manual_seed(0)
    layers = [m for _ in range(6) for m in (torch.nn.Linear(2048, 2048), torch.nn.ReLU())]
    net = torch.nn.Sequential(*layers).to(CUDA)
    net = managed.ManagedModule.from_module(net)
    optimizer = torch.optim.AdamW(net.parameters(), **{form: True} if form else {"foreach": False})
    batches = torch.rand(steps, 512, 2048, generator=torch.Generator().manual_seed(1))
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = net(batch.to(CUDA)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().cpu().clone() for p in net.parameters()]


@pytest.mark.parametrize("form", ["foreach", "fused", ""], ids=["foreach", "fused", "single"])
def test_training_in_less_room_gives_the_same_bits(cap, form):
    torch.backends.cuda.matmul.allow_tf32 = False
    train(1, form)  # cuBLAS takes its workspace
    gc.collect()
    torch.cuda.empty_cache()
    base = torch.cuda.memory_allocated(0)
    torch.cuda.reset_peak_memory_stats(0)
    expected, weights = train(3, form)
    peak = torch.cuda.max_memory_allocated(0) - base
    gc.collect()
    torch.cuda.empty_cache()
    before = managed.stats()["spill"]
    with cap(int(0.7 * peak) // MIB + 20):  # the allocator's segments are of 20 MiB
        got, got_weights = train(3, form)
    assert managed.stats()["spill"] > before, "the budget was too large to show anything"
    assert got == expected
    for a, b in zip(got_weights, weights, strict=True):
        assert torch.equal(a, b)


def test_out_of_memory_is_explained_and_leaves_all_whole(cap, made, spilled):
    with cap(300):
        held = [made(64) for _ in range(3)]
        for t in held:
            t.pin()
        expected = [t.cpu().clone() for t in held]
        with pytest.raises(managed.OutOfMemoryError, match=r" out of memory\.") as caught:
            torch.cat([held[0], held[1], held[2]])
        assert "pinned" in str(caught.value)
        assert (held[0][:MIB] + 1).shape == (MIB,), "a smaller request works"
        for t, e in zip(held, expected, strict=True):
            assert not spilled(t)
            assert torch.equal(t.cpu(), e)
            t.unpin()
        assert torch.cat([held[0], held[1]]).nbytes == 128 * MIB


def test_what_was_refused_is_freed_the_next_time(cap, made):
    """A plain request far larger than the reserve, of which the allocator tells no size."""
    with cap(640):
        idle = [made(64) for _ in range(8)]
        try:
            large = torch.empty(400 * MIB, dtype=torch.uint8, device=CUDA)
        except torch.OutOfMemoryError:
            large = torch.empty(400 * MIB, dtype=torch.uint8, device=CUDA)
        assert sum(C.is_spilled(t) for t in idle) >= 3
        del large


def test_a_failure_in_the_allocator_is_no_error_of_ours(cap):
    """With nothing to spill, plain torch fails as plain torch."""
    with cap(64), pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        torch.empty(1 << 30, dtype=torch.uint8, device=CUDA)


def test_host_memory_of_what_left_is_not_from_torchs_pool(empty, made):
    before = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    x = made(64)
    C.spill_all()
    assert torch.cuda.host_memory_stats()["allocated_bytes.current"] == before
    assert C.host_memory()["used"] >= 64 * MIB
    del x


def seconds(f, repeats=5):
    best = float("inf")
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        f()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def test_a_gibibyte_moves_as_fast_as_memcpy(empty, made, spilled, capsys):
    """Spill and restore against cudaMemcpyAsync to and from pinned memory in the same run."""
    x = made(1024)
    pinned = torch.empty(x.numel(), pin_memory=True)
    plain = torch.empty(x.numel(), device=CUDA)
    out = seconds(lambda: pinned.copy_(plain))
    back = seconds(lambda: plain.copy_(pinned))

    def spill():
        assert C.spill_all() == 1

    def restore():
        x.record_stream(torch.cuda.current_stream())  # brings it home and runs no kernel

    spill(), restore()  # the host's memory is pinned once
    best = {"spill": float("inf"), "restore": float("inf")}
    for _ in range(5):
        x[:1].add_(1)  # otherwise the copy on the host is still good
        best["spill"] = min(best["spill"], seconds(spill, 1))
        best["restore"] = min(best["restore"], seconds(restore, 1))
    assert not spilled(x)
    with capsys.disabled():
        print(
            f"\n1 GiB: spill {1 / best['spill']:.1f} GiB/s, memcpy {1 / out:.1f}; "
            f"restore {1 / best['restore']:.1f} GiB/s, memcpy {1 / back:.1f}"
        )
    assert out / best["spill"] >= 0.9
    assert back / best["restore"] >= 0.9


@two_gpus
def test_a_peer_with_room_is_used(cap, made):
    torch.empty(1, device="cuda:1")  # a device without a context is left alone
    with cap(256):
        tensors = [made(64) for _ in range(5)]
        expected = [t.cpu() for t in tensors]
        assert C.residency("cuda:1")["guests"] + C.host_memory()["used"] > 0
        for t, e in zip(tensors, expected, strict=True):
            assert torch.equal(t.cpu(), e)


def test_a_context_is_made_only_where_the_program_works(run_python):
    """Every visible device is known, yet only the one in use has a context, which is large."""
    run_python("""
        import torch, managed
        from managed import _C as C
        x = torch.rand(1 << 20, device="cuda:0").as_subclass(managed.ManagedTensor) + 0
        C.spill_all()
        x + 1
        for i in range(1, torch.cuda.device_count()):
            assert not torch._C._cuda_hasPrimaryContext(i)
    """)


BUDGET = """
    import torch, managed
    from managed import _C as C
    x = torch.rand(1, device="cuda:0")
    managed.budget("cuda:0", torch.cuda.memory_reserved(0) + (320 << 20))
    plain = (torch.full((16 << 20,), float(i), device="cuda:0") for i in range(8))
    tensors = [t.as_subclass(managed.ManagedTensor) + 0 for t in plain]
    for i, t in enumerate(tensors):
        assert (t == i).all()
    print(sum(map(C.is_spilled, tensors)))
"""


def test_segments_that_expand(run_python):
    assert int(run_python(BUDGET, PYTORCH_ALLOC_CONF="expandable_segments:True")) > 0


@pytest.mark.parametrize(
    "environment",
    [{"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}],
    ids=["cudaMallocAsync", "no caching"],
)
def test_other_allocators_are_left_alone(run_python, environment):
    run_python(
        """
        import torch, managed
        from managed import _C as C
        x = torch.rand(1 << 20, device="cuda:0").as_subclass(managed.ManagedTensor) + 0
        assert C.spill_all() == 0
        assert (x + 1).shape == x.shape
        """,
        **environment,
    )


def test_a_recorded_memory_history_does_not_hang(run_python):
    """With stack traces a free takes the GIL, which a thread that waits for the lock may hold."""
    run_python(
        """
        import threading, torch, managed
        from managed import _C as C
        torch.cuda.memory._record_memory_history(context="all", stacks="all")
        managed.budget("cuda:0", torch.cuda.memory_reserved(0) + (320 << 20))
        done = threading.Event()
        def ask():
            while not done.is_set():
                torch.cuda.memory_allocated(0)
        thread = threading.Thread(target=ask)
        thread.start()
        try:
            x = torch.rand(16 << 20, device="cuda:0").as_subclass(managed.ManagedTensor) + 0
            for _ in range(3):
                C.spill_all()
                x + 1
        finally:
            done.set()
            thread.join()
        """,
        timeout=120,
    )


def test_plain_tensors_of_torch_stay(empty):
    x = torch.rand(16 * MIB, device=CUDA)
    assert C.spill_all() == 0
    assert x.data_ptr() == x.data_ptr()
    y = x.as_subclass(ManagedTensor)
    y + 1
    assert C.spill_all() == 0, "the plain alias would find its bytes gone"
