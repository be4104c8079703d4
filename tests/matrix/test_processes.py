"""Processes

Workers, queues and pools, by fork and by spawn.
"""

import concurrent.futures
import copy

import pytest
import torch
import torch.multiprocessing as mp
from support.devices import D1
from torch import nn
from torch.utils.data import DataLoader

from managed import ManagedModule, ManagedTensor

from .children import LIMIT, Held, Made, doubled, echo, train
from .common import managed_on

ROWS = torch.arange(24.0).reshape(8, 3)
REFUSAL = f"tensor on {D1} cannot be shared with another process"

# Forking with threads, as the engine's, is what is shown here; Python 3.12 warns of it.
START = """
    import sys, warnings
    import torch, managed
    from managed import ManagedTensor
    from torch.utils.data import DataLoader

    sys.path.insert(0, sys.argv[1])
    from matrix.children import LIMIT, Held, Made

    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    torch.set_num_threads(1)
    managed.simulate(3, "16MiB")
    rows = torch.arange(24.0).reshape(8, 3)

    def backward():
        x = rows.to("sim:1").as_subclass(ManagedTensor).requires_grad_()
        y = rows.to("sim:2").as_subclass(ManagedTensor)
        ((x * y).cpu() * x).sum().backward()
        assert torch.equal(x.grad.cpu(), 2 * rows * rows) and x.grad.device == x.device
"""


@pytest.fixture
def fork(run_python, request):
    """Runs a program that forks, in an interpreter that nobody else uses."""
    tests = request.path.parents[1]
    return lambda body: run_python(START.rstrip() + body, tests, timeout=2 * LIMIT)


@pytest.mark.row(
    "DataLoader, workers by fork",
    note="Batches arrive as plain tensors, those on simulated devices on the same device",
)
def test_dataloader_fork(fork):
    fork(
        """
    held = rows.as_subclass(ManagedTensor)
    there = held.cuda(1)

    def batches(dataset, **options):
        loader = DataLoader(dataset, 4, num_workers=2, timeout=LIMIT, **options,
                            multiprocessing_context="fork")
        for _ in range(2):
            yield from loader

    for step in range(2):
        for dataset in (Held(held), Made(held), Held(there), Made(there)):
            for options in ({}, {"persistent_workers": True}):
                found = list(batches(dataset, **options))
                assert torch.equal(torch.cat(found).cpu(), rows.repeat(2, 1))
                assert all(b.device == dataset.rows.device for b in found)
                assert not any(isinstance(b, ManagedTensor) for b in found)
                del found
        before = torch.sim.memory_allocated(1)
        assert before == rows.nbytes
        backward()  # the second time, with the engine's threads running
    """
    )


@pytest.mark.row("DataLoader, workers by spawn")
def test_dataloader_spawn():
    loader = DataLoader(
        Made(ROWS.as_subclass(ManagedTensor)),
        4,
        num_workers=1,
        timeout=LIMIT,
        multiprocessing_context="spawn",
    )
    assert torch.equal(torch.cat(list(loader)), ROWS)


@pytest.mark.row(
    "DataLoader, spawned workers, dataset on simulated devices", "refused: RuntimeError"
)
def test_dataloader_spawn_of_simulated_tensors():
    there = Held(managed_on(ROWS, D1))
    loader = DataLoader(there, 4, num_workers=1, timeout=LIMIT, multiprocessing_context="spawn")
    with pytest.raises(RuntimeError, match=REFUSAL):
        next(iter(loader))


@pytest.mark.row("DataLoader, pin_memory", note="CPU tensors only, as in plain PyTorch")
def test_dataloader_pin_memory(fork):
    for batch in DataLoader(Held(ROWS.as_subclass(ManagedTensor)), 8, pin_memory=True):
        assert batch.is_pinned()
        assert isinstance(batch, ManagedTensor)
        assert torch.equal(batch, ROWS)
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        next(iter(DataLoader(Held(managed_on(ROWS, D1)), 8, pin_memory=True)))
    fork(
        """
    options = dict(num_workers=1, timeout=LIMIT, pin_memory=True, multiprocessing_context="fork")
    held = rows.as_subclass(ManagedTensor)
    for dataset in (Held(held), Made(held)):
        [batch] = DataLoader(dataset, 8, **options)
        assert batch.is_pinned() and torch.equal(batch, rows)
    try:
        next(iter(DataLoader(Held(held.cuda(1)), 8, **options)))
    except RuntimeError as error:
        assert "only dense CPU tensors can be pinned" in str(error)
    else:
        raise AssertionError
    """
    )


@pytest.mark.row(
    "fork() before the first backward pass",
    note="The child has a copy of the devices, and threads of its own for backward passes",
)
def test_fork_before_backward(fork):
    # Many times: device threads that start together made torch abort in one child of forty.
    fork(
        """
    import os
    torch.set_num_threads(1)
    there = rows.to("sim:1").as_subclass(ManagedTensor)
    for _ in range(30):
        child = os.fork()
        if child == 0:
            backward()
            there.mul_(2)
            assert torch.equal(there.cpu(), rows * 2)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert torch.equal(there.cpu(), rows)
    backward()
    """
    )


@pytest.mark.row("fork() after a backward pass, forward in the child")
@pytest.mark.row(
    "fork() after a backward pass, backward in the child",
    "refused: RuntimeError",
    note="As with CUDA: autograd's device threads do not survive a fork. Use spawn",
)
def test_fork_after_backward(fork):
    fork(
        """
    import os
    backward()
    there = rows.to("sim:1").as_subclass(ManagedTensor)
    child = os.fork()
    if child == 0:
        assert torch.equal((there * rows).cpu(), rows * rows)
        try:
            backward()
        except RuntimeError as error:
            assert "fork-based multiprocessing" in str(error)
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    backward()
    """
    )


@pytest.mark.row("torch.multiprocessing, managed CPU tensors")
@pytest.mark.row("torch.multiprocessing, tensors on simulated devices", "refused: RuntimeError")
def test_queues_of_a_forked_child(fork):
    fork(
        """
    import torch.multiprocessing as mp
    from matrix.children import echo

    backward()
    context = mp.get_context("fork")
    there, back = context.Queue(), context.Queue()
    process = context.Process(target=echo, args=(there, back), daemon=True)
    process.start()
    x = rows.clone().as_subclass(ManagedTensor)
    there.put(x)
    assert back.get(timeout=LIMIT) == "Tensor"
    assert torch.equal(back.get(timeout=LIMIT), rows * 2) and torch.equal(x, rows * 2)
    there.put([x.cuda(1)])
    assert "sim:1 cannot be shared" in back.get(timeout=LIMIT)
    there.put(None)
    process.join(LIMIT)
    assert process.exitcode == 0
    """
    )


@pytest.fixture(scope="module")
def talk():
    """A spawned process that doubles what it gets: send(x) returns all that it says about it."""
    context = mp.get_context("spawn")
    there, back = context.Queue(), context.Queue()
    process = context.Process(target=echo, args=(there, back), daemon=True)
    process.start()

    def send(x, answers):
        there.put(x)
        return [back.get(timeout=LIMIT) for _ in range(answers)]

    yield send
    there.put(None)
    process.join(LIMIT)
    process.kill()


@pytest.mark.row(
    "torch.multiprocessing, managed CPU tensors",
    note="Memory is shared; a tensor arrives plain, a ManagedModule managed",
)
def test_queues_share_memory(talk):
    for x in (ROWS.clone(), ROWS.clone().share_memory_()):
        x = x.as_subclass(ManagedTensor)
        kind, y = talk(x, 2)
        assert kind == "Tensor"
        assert isinstance(x, ManagedTensor)
        assert torch.equal(x, ROWS * 2)
        assert torch.equal(y, ROWS * 2)
        y.add_(1)
        assert torch.equal(x, ROWS * 2 + 1)


@pytest.mark.row("torch.multiprocessing, managed CPU tensors")
def test_what_a_child_writes_is_seen_on_other_devices(talk):
    x = managed_on(ROWS, "cpu")
    there = managed_on(ROWS, D1)
    for share in (x.share_memory_, lambda: None):
        share()
        before = x.clone()
        assert torch.equal((x + there).cpu(), before + ROWS)
        talk(x, 2)
        assert torch.equal((x + there).cpu(), before * 2 + ROWS)


@pytest.mark.row(
    "torch.multiprocessing, tensors on simulated devices",
    "refused: RuntimeError",
    note="Raised by the sender, or by the receiver of a queue that sends in a thread",
)
def test_simulated_tensors_are_not_shared(talk):
    x = managed_on(ROWS, D1)
    [told] = talk(x, 1)
    assert REFUSAL in told
    [told] = talk([x.detach()], 1)
    assert REFUSAL in told
    context = mp.get_context("spawn")
    left, _ = context.Pipe()
    net = ManagedModule.from_module(nn.Linear(2, 2)).cuda(1)
    refused = [
        lambda: left.send(x),
        lambda: context.SimpleQueue().put({"x": x}),
        context.Process(target=doubled, args=(net,)).start,
        x.share_memory_,
        net.share_memory,
    ]
    for send in refused:
        with pytest.raises(RuntimeError, match=REFUSAL):
            send()


@pytest.mark.row("torch.multiprocessing, managed CPU tensors")
@pytest.mark.row("torch.multiprocessing, a shared model that a child trains (Hogwild)")
def test_a_child_trains_a_shared_model(talk):
    plain = nn.Linear(3, 2)
    net = ManagedModule.from_module(copy.deepcopy(plain))
    net.share_memory()
    assert talk(net, 1) == [True]
    train(plain)
    for p, q in zip(plain.parameters(), net.parameters(), strict=True):
        assert isinstance(q, ManagedTensor)
        assert torch.equal(p, q)


@pytest.mark.row("ProcessPoolExecutor, managed CPU tensors")
@pytest.mark.row("ProcessPoolExecutor, tensors on simulated devices", "refused: RuntimeError")
def test_process_pool():
    context = mp.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        found = pool.submit(doubled, ROWS.as_subclass(ManagedTensor)).result(LIMIT)
        assert torch.equal(found, ROWS * 2)
        with pytest.raises(RuntimeError, match=REFUSAL):
            pool.submit(doubled, managed_on(ROWS, D1)).result(LIMIT)
        assert torch.equal(pool.submit(doubled, ROWS).result(LIMIT), ROWS * 2)
