"""Room that cannot be made: what the error is and says, and that all is whole after it."""

import copy
import io
import pickle
import re
import textwrap

import pytest
import torch
from accelerate.utils.memory import find_executable_batch_size, should_reduce_batch_size
from support.devices import D0, ON_CUDA, device_module, device_name
from support.pressed import BEGIN
from support.pressure import MiB, counted, moved, no_guests, nothing_left, on, sized, spill  # noqa: F401
from torch import nn

import managed
from managed import _C, ManagedTensor, errors


@pytest.fixture
def room():
    """What sim:0 holds already, and 50 MiB more."""
    with managed.budget(D0, counted() + 50 * MiB):
        yield


def failure(call):
    """The error without what it refers to, so that nothing is kept alive."""
    with pytest.raises(managed.OutOfMemoryError) as caught:
        call()
    return caught.value.with_traceback(None)


def tried(mib):
    """How the allocator's own words on the first device begin."""
    if ON_CUDA:
        return f"CUDA out of memory. Tried to allocate {mib}.00 MiB. GPU 0 "
    return f"{D0} out of memory. Tried to allocate {mib}.0 MiB"


# ---- the exception


def test_what_it_is(room):
    error = failure(lambda: sized(20).repeat(3))
    kinds = managed.OutOfMemoryError, errors.ManagedError, torch.OutOfMemoryError, RuntimeError
    assert type(error) is managed.OutOfMemoryError
    assert all(isinstance(error, kind) for kind in kinds)
    assert len(error.args) == 1
    assert " out of memory." in error.args[0]
    assert should_reduce_batch_size(error)


def test_programs_that_look_for_a_batch_size_find_it(room):
    tried = []

    @find_executable_batch_size(starting_batch_size=64)
    def work(batch_size):
        tried.append(batch_size)
        return sized(batch_size).sum().item()

    assert work() == 45 * MiB / 4
    assert tried == [64, 57, 51, 45]


def is_cuda_out_of_memory(exception):
    """As lightning/pytorch/utilities/memory.py of Lightning 2.6.6 has it, by which BatchSizeFinder
    and `Tuner.scale_batch_size` know that a batch is too large: there `is_oom_error` is this or a
    text of cuDNN's or of the CPU's allocator."""
    return (
        isinstance(exception, RuntimeError)
        and len(exception.args) == 1
        and "CUDA" in exception.args[0]
        and "out of memory" in exception.args[0]
    )


def is_out_of_cpu_memory(exception):
    """As above, of the CPU's allocator."""
    return (
        isinstance(exception, RuntimeError)
        and len(exception.args) == 1
        and "DefaultCPUAllocator: can't allocate memory" in exception.args[0]
    )


def load_what_does_not_fit():
    file = io.BytesIO()
    torch.save(torch.zeros(60 * MiB, dtype=torch.uint8), file)
    file.seek(0)
    torch.load(file, map_location=D0)


FAILURES = {
    "a result": lambda: sized(20).repeat(3),
    "operands": lambda: torch.addcmul(*(sized(20) for _ in range(3))),
    "a batch": lambda: torch.zeros(60 * MiB, dtype=torch.uint8).to(D0),
    "a move": lambda: sized(60, device="cpu").cuda(0),
    "a send": lambda: managed.DeviceManager(retry_limit=0).send(sized(60, device="cpu"), D0),
    "a load": load_what_does_not_fit,
}


@pytest.mark.parametrize("call", FAILURES.values(), ids=FAILURES)
def test_every_text_has_the_words_that_others_look_for(room, call):
    with pytest.raises(torch.OutOfMemoryError) as caught:
        call()
    error = caught.value.with_traceback(None)
    assert is_cuda_out_of_memory(error)
    assert should_reduce_batch_size(error)
    assert error.args[0].count("CUDA out of memory.") == 1
    for same in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert (type(same), same.args) == (type(error), error.args)


@pytest.mark.only_simulated("only a simulated device can be told to fail")
def test_a_failure_that_was_asked_for_has_them_too():
    x = sized(1)
    with managed.debug.torture(fail_allocation=1), pytest.raises(torch.OutOfMemoryError) as caught:
        x * 2
    assert "asked for this to fail" in str(caught.value)
    assert is_cuda_out_of_memory(caught.value)
    caught.value.with_traceback(None)


def test_an_error_that_a_program_raises_says_what_it_is_given():
    assert managed.OutOfMemoryError().args == ()
    assert managed.OutOfMemoryError("a", "b").args == ("a", "b")
    said = "CUDA out of memory. Tried to allocate 2.00 MiB."
    assert managed.OutOfMemoryError(said).args == (said,)
    (text,) = managed.OutOfMemoryError("sim:0 out of memory.").args
    assert text == 'sim:0 out of memory. CUDA\'s allocator would say "CUDA out of memory."'


def test_it_says_what_was_asked_who_holds_what_and_what_to_do(room):
    kept, pinned = sized(20), sized(20)
    pinned.pin()
    text = str(failure(lambda: kept.repeat(2)))
    first, *table, advice = text.splitlines()
    assert tried(40) in first
    assert ("allowed" if ON_CUDA else "budget") in first
    assert "aten::repeat" in first
    rows = {row.split(":")[0].strip() + ":" + row.split(":")[1] for row in table[:-1]}
    assert rows == {device_name(i) for i in range(4)}
    assert "20 MiB pinned" in table[0]
    assert table[-1].startswith("  host: ")
    for step in ("smaller batch", "checkpoint", "disperse=True", "unpin()", "managed.budget()"):
        assert step in advice


def test_operands_that_do_not_fit_together(room):
    a, b, c = (sized(20) for _ in range(3))
    text = str(failure(lambda: torch.addcmul(a, b, c)))
    assert "aten::addcmul needs 3 storages together, 60 MiB of them there." in text
    assert " out of memory." in text


def test_operands_are_counted_once(room):
    a, b, c = (sized(20) for _ in range(3))
    text = str(failure(lambda: torch.addcmul(a, b, c, out=a)))
    assert "aten::addcmul.out needs 3 storages together, 60 MiB of them there." in text


def test_its_own_operands_are_in_use(room):
    a, b = sized(20), sized(20)
    text = str(failure(lambda: a + b))
    assert "40 MiB in use by operators" in text


COMES_HOME = "needs 1 storages together, 20 MiB of them there."
OUTSIDE_KERNELS = {
    "operands that come home": (lambda a, away, here: away.sum(), COMES_HOME),
    "a copy of an operand": (lambda a, away, here: here + a[:1].expand(here.shape), tried(20)),
    "a storage": (lambda a, away, here: away.untyped_storage(), COMES_HOME),
    "a pointer": (lambda a, away, here: away.data_ptr(), COMES_HOME),
    "a pin": (lambda a, away, here: away.pin(), COMES_HOME),
    "a move": (lambda a, away, here: here.cuda(0), tried(20)),
}


@pytest.mark.parametrize(("call", "words"), OUTSIDE_KERNELS.values(), ids=OUTSIDE_KERNELS)
def test_what_fails_outside_a_kernel_says_as_much(room, call, words):
    a, away, here = sized(40), sized(20), sized(20, device="cpu")
    held = a.untyped_storage()
    first, table, *_ = str(failure(lambda: call(a, away, here))).splitlines()
    assert words in first
    assert "40 MiB whose storages the program holds" in table
    # CUDA's allocator may have a part of the 10 MiB between its blocks.
    assert ON_CUDA or f"{D0}: 10 MiB free, 40 MiB" in table
    del held
    assert away.sum().item() == away.numel()


def test_storages_that_the_program_holds_are_named(room):
    """Serialisers hold all until they are done; what they hold may leave."""
    weights = [sized(20) for _ in range(3)]
    for call in (
        lambda: [[w.untyped_storage() for w in weights[:2]], weights[2] + 1],
        lambda: [[w.untyped_storage() for w in weights[:2]], sized(20)],
    ):
        text = str(failure(call))
        assert "40 MiB whose storages the program holds" in text
        assert "let go of untyped_storage()" in text
    torch.save(weights, io.BytesIO())
    pickle.dumps(weights)


GARBAGE = """
class Keeps:
    def __init__(self, *what):
        self.self, self.what = self, what

x = on(torch.ones(2 * MiB))  # 8 MiB each
gc.collect()
gc.disable()  # nobody but the error path collects
with managed.budget("sim:0", "20MiB"):
    Keeps(torch.zeros(10 * MiB, dtype=torch.uint8, device="sim:0"))  # plain: it cannot leave
    {make}
print("found")
"""


@pytest.mark.parametrize(
    "make",
    [
        "assert (x + 1).sum().item() == 2 * x.numel()",
        f"assert torch.zeros(16 * MiB, dtype=torch.uint8, device='{D0}').sum().item() == 0",
        "_C.spill_all(); assert torch.dot(x, x * 1).item() == x.numel()",
    ],
    ids=["result", "plain", "operands"],
)
def test_garbage_is_collected_before_it_is_an_error(run_python, make):
    """What only a cycle of Python objects holds makes nobody fail."""
    assert run_python(BEGIN + GARBAGE.replace("{make}", make)) == "found\n"


def test_garbage_is_no_reason_to_wait(run_python):
    script = GARBAGE.replace("10 * MiB", "18 * MiB").replace(
        "{make}", f"managed.DeviceManager(reserved=0.0, retry_limit=1).send(x * 1, device='{D0}')"
    )
    assert run_python(BEGIN + script) == "found\n"


def test_garbage_is_not_collected_at_every_error(run_python):
    """Who looks for a size that fits fails often: most of the time is not the collector's."""
    script = """
        import gc
        junk = [[i] for i in range(10**6)]  # makes each collection slow
        rounds = []
        gc.callbacks.append(lambda phase, info: rounds.append(info) if phase == "stop" else None)
        gc.disable()
        plain = torch.zeros(50 * MiB, dtype=torch.uint8, device="sim:0")
        errors = 0
        for _ in range(50):
            try:
                on(torch.ones(4 * MiB))
            except torch.OutOfMemoryError:
                errors += 1
        assert errors == 50
        assert 1 <= len(rounds) <= 25, rounds
        print("found")
        """
    assert run_python(BEGIN + textwrap.dedent(script)) == "found\n"


def test_garbage_is_not_waited_for_with_the_interpreter_held(run_python):
    """A thread that never lets go of the interpreter makes the error late, and nothing else."""
    script = """
        import ctypes
        plain = torch.zeros(50 * MiB, dtype=torch.uint8, device="sim:0")
        sleep = ctypes.PyDLL(None).sleep  # keeps the GIL
        def work():
            try:
                on(torch.ones(4 * MiB))
            except torch.OutOfMemoryError:
                failed.append(time.monotonic())
        failed = []
        began = time.monotonic()
        thread = threading.Thread(target=work)
        thread.start()
        sleep(3)
        thread.join()
        assert failed and failed[0] - began < 10
        print("found")
        """
    assert run_python(BEGIN + textwrap.dedent(script)) == "found\n"


def test_plain_tensors_get_torchs_own_error(room):
    with pytest.raises(torch.OutOfMemoryError, match=r" out of memory\.") as caught:
        torch.empty(60 * MiB, dtype=torch.uint8, device=D0)
    assert type(caught.value) is torch.OutOfMemoryError


def test_a_plain_tensor_makes_managed_ones_leave(room):
    x = sized(30, 3.0)
    plain = torch.zeros(30 * MiB, dtype=torch.uint8, device=D0)
    assert _C.is_spilled(x)
    with pytest.raises(torch.OutOfMemoryError):
        x.sum()  # a plain tensor has no handle and cannot leave
    del plain
    assert x.sum().item() == 3 * x.numel()


# ---- what is there afterwards


@pytest.mark.not_under_torture("it counts what leaves and comes back")
def test_what_can_never_fit_moves_nothing(room):
    kept = [sized(10) for _ in range(4)]
    with moved() as m:
        failure(lambda: kept[0].repeat(100))
    assert (m["spill"], m["drop"]) == (0, 0)
    assert not any(map(_C.is_spilled, kept))


@pytest.mark.not_under_torture("what fills the device leaves it")
def test_the_next_smaller_request_works(room):
    a, b, c = sized(20, 1.0), sized(20, 2.0), sized(20, 3.0)
    for _ in range(3):
        for call in (
            lambda: torch.addcmul(a, b, c),
            lambda: torch.cat([a, b]),
            lambda: a.repeat(3),
            lambda: a.to(torch.float64),
        ):
            failure(call)
            half = a.numel() // 4
            assert torch.equal(a[:half] + 1, torch.full_like(a[:half], 2.0))
    assert [t[7].item() for t in (a, b, c)] == [1.0, 2.0, 3.0]


def test_what_is_written_stays_as_it_was(room):
    a, b, c = sized(20, 1.0), sized(20, 2.0), sized(20, 3.0)
    versions = [t._version for t in (a, b, c)]
    failure(lambda: a.addcmul_(b, c))
    failure(lambda: torch.cat([a, b], out=c))
    assert [t[7].item() for t in (a, b, c)] == [1.0, 2.0, 3.0]
    assert a._version == versions[0]
    a.add_(b)
    assert a[7].item() == 3.0


def test_pins_are_the_users(room):
    a, b, c = sized(20), sized(20), sized(20, 5.0)
    a.pin()
    b.pin()
    text = str(failure(lambda: c.sum()))
    assert "40 MiB pinned" in text
    b.unpin()
    assert c.sum().item() == 5.0 * c.numel()
    assert _C.is_spilled(b)
    assert not _C.is_spilled(a)


def test_no_room_anywhere():
    """Devices are full and the host may keep nothing: an error, and everything is still there."""
    # In MiB. CUDA's allocator puts several smaller ones into a segment.
    piece = 10 if ON_CUDA else 1
    total = 4 * piece * MiB
    names = [device_name(i) for i in range(4)]
    budgets = [managed.budget(name, counted(name) + total) for name in names]
    with managed.budget("cpu", _C.host_memory()["used"]):
        kept = [sized(piece, float(i)) for i in range(15)]
        failure(lambda: [sized(piece) for _ in range(2)])
        assert [t[3].item() for t in kept] == [float(i) for i in range(15)]
    for budget in budgets:
        budget.__exit__()


@pytest.fixture
def full_host():
    """Devices with room for four pieces and none for guests, a host with room for one."""
    piece = 10 if ON_CUDA else 1
    host = managed.budget("cpu", _C.host_memory()["used"] + piece * MiB)
    with no_guests(), host, managed.budget(D0, counted() + 4 * piece * MiB):
        yield piece


@pytest.mark.not_under_torture("what fills the host is what leaves for want of room")
def test_a_full_host_is_what_the_error_is_about(full_host):
    """What was asked, what the host holds, in what memory and of which device, and what to do."""
    piece, kept = full_host, []

    error = failure(lambda: kept.extend(sized(piece, float(i)) for i in range(9)))
    text = str(error)
    first, *table, advice = text.splitlines()
    assert first.startswith("managed: the host is out of memory. Tried to allocate ")
    assert f" on {D0}" in first
    assert f"0 bytes of at most {piece} MiB are free." in first
    kind = "pinned" if ON_CUDA else "pageable"
    assert table[-1].startswith(f"  host: {piece} MiB of tensors that left their device (limit ")
    assert f", {piece} MiB in {kind} memory" in table[-1]
    assert table[-1].endswith(f"; {piece} MiB of {D0}")
    assert 'managed.budget("cpu")' in advice
    assert "CUDA out of memory" not in text
    assert should_reduce_batch_size(error)
    assert is_out_of_cpu_memory(error)
    assert "CUDA out of memory" not in str(pickle.loads(pickle.dumps(error)))
    away = next(t for t in kept if _C.is_spilled(t))
    assert str(failure(lambda: away + 1)).startswith("managed: the host is out of memory. ")
    managed.budget("cpu", "1GiB")
    assert [t[3].item() for t in kept] == [float(i) for i in range(len(kept))]


@pytest.mark.not_under_torture("what fills the host is what leaves for want of room")
def test_a_later_error_is_about_the_device_again(full_host):
    kept = [sized(full_host) for _ in range(5)]
    failure(lambda: kept.append(sized(full_host)))
    here = next(t for t in kept if not _C.is_spilled(t))
    text = str(failure(lambda: here.repeat(1000)))
    assert "the host is out of memory" not in text
    assert text.count("CUDA out of memory.") == 1


def test_list_operators(room):
    rows = [sized(10, float(i)) for i in range(6)]
    others = [sized(10, 1.0) for _ in range(6)]
    torch._foreach_add_(rows, others)  # 120 MiB pass through, one row at a time
    assert [t[0].item() for t in rows] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    large = [sized(40, 1.0), sized(40, 2.0)]
    failure(lambda: torch._foreach_add_(large, large[::-1]))
    assert [t[0].item() for t in large] == [1.0, 2.0]
    mixed = [*rows[:3], large[0]]
    failure(lambda: torch._foreach_add_(mixed, [*others[:3], large[1]]))
    assert [t[0].item() for t in mixed] == [1.0, 2.0, 3.0, 1.0]  # none was written
    assert [t[0].item() for t in torch._foreach_mul(rows, 2.0)] == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]


def test_blocks_that_wait_for_a_second_stream_are_room(room):
    """Every block that is freed after a second stream was used waits for that one, too."""
    side = device_module.Stream(0)
    with device_module.stream(side):
        sized(1) * 2.0
    w = sized(6, 2.0).requires_grad_()
    for _ in range(3):
        w.grad = None
        work(w).backward()  # takes 56 MiB in all
        assert torch.equal(w.grad, torch.full_like(w, 12.0))


# ---- in a backward pass


def work(w):
    y = w.repeat(3).view(3, -1)
    return (y * y).sum()


@pytest.mark.not_under_torture("what fills the device leaves it")
def test_a_backward_pass_that_fails(room):
    w = sized(6, 2.0).requires_grad_()
    loss = work(w)
    with managed.budget(D0, device_module.memory_allocated(0) + 1 * MiB):
        text = str(failure(loss.backward))
    assert "aten::" in text
    assert w.grad is None
    del loss
    work(w).backward()
    assert torch.equal(w.grad, torch.full_like(w, 12.0))


def test_gradients_of_a_failed_pass():
    """After zero_grad a smaller batch gives what it always gives."""
    here = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    there = managed.ManagedModule.from_module(
        nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    )
    there.load_state_dict(here.state_dict())
    there.to(D0)
    batch = torch.randn(16384, 256)
    with managed.budget(D0, counted() + 24 * MiB):
        failure(lambda: there(on(batch)).square().mean().backward())
        there.zero_grad()
        for net, x in ((here, batch[:512]), (there, on(batch[:512]))):
            net(x).square().mean().backward()
    for p, q in zip(here.parameters(), there.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad.cpu())


def test_an_error_in_a_hook_lets_go(room):
    w = sized(10).requires_grad_()

    def refuse(g):
        raise KeyError("no")

    handle = w.register_hook(refuse)
    with pytest.raises(KeyError, match="no"):
        (w * w).sum().backward()
    handle.remove()
    spill(w)
    (w * w).sum().backward()
    assert w.grad[0].item() == 2.0


def test_an_error_in_an_operator_lets_go(room):
    x = sized(10)
    for call in (
        lambda: x.view(3, -1),
        lambda: x + torch.ones(3),
        lambda: torch.linalg.cholesky(-x[:9].view(3, 3)),
        lambda: x[x.numel()],
    ):
        with pytest.raises((RuntimeError, IndexError)):
            call()
        assert _C.residency(D0)["in_use"] == 0
        spill(x)


@pytest.mark.parametrize("kind", [managed.OutOfMemoryError, torch.OutOfMemoryError])
def test_it_can_be_caught_and_retried(room, kind):
    x, size = sized(1), 100
    while True:
        try:
            y = x.repeat(size)
            break
        except kind:
            size //= 2
    assert size == 25
    assert isinstance(y, ManagedTensor)


# ---- what managed does not know


@pytest.mark.parametrize("kind", ["plain", "small"])
def test_it_says_how_much_cannot_leave(room, kind):
    """Plain tensors, and storages that have no handle."""
    if kind == "plain":
        held = [torch.empty(30 * MiB, dtype=torch.uint8, device=D0)]
    else:
        held = [on(torch.empty(15 * 2**10, dtype=torch.uint8)) for _ in range(2048)]
    kept, row = sized(1), f"  {D0}: "
    text = next(r for r in str(failure(lambda: sized(25))).splitlines() if r.startswith(row))
    said = re.search(r"([\d.]+) MiB in plain or small tensors, which never leave", text)
    assert said, text
    assert 30 <= float(said[1]) < 40
    del held
    if not ON_CUDA:
        text = next(r for r in str(failure(lambda: kept.repeat(60))).splitlines() if row in r)
        assert not re.search(r"[KM]iB in plain", text), "what is managed is counted once"
