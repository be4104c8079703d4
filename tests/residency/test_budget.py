"""Budgets: what they accept, that they are kept to the byte, and that results stay the same."""

import contextlib
import copy

import pytest
import torch
from support.devices import D0, D1, ON_CUDA, TOTAL, device_module, device_name
from support.pressure import (
    MiB,
    assert_equal,
    counted,
    leaves_nothing,
    mlp,
    module_on,
    moved,
    on,
    sized,
    spill,
    train,
)
from torch import nn

import managed
from managed import _C, DeviceManager

# Of smaller pieces CUDA's allocator puts several into a segment.
PIECE = 10 * MiB if ON_CUDA else MiB
LARGE = 10 if ON_CUDA else 4  # MiB: leaves alone, and not with small ones
FRACTIONS = (0.8, 0.6, 0.5, 0.4)


@pytest.fixture(autouse=True)
def nothing_left():
    with leaves_nothing():
        yield
    for i in range(4):
        assert _C.capacity(i) == TOTAL


def used(device=0):
    return device_module.memory_allocated(device)


# ---- what can be said


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("80%", int(0.8 * TOTAL)), (" 12.5% ", TOTAL // 8), ("100%", TOTAL),
        ("64MiB", 64 * MiB), ("1MB", 10**6), (12345678, 12345678), (None, TOTAL),
    ],
)  # fmt: skip
@pytest.mark.parametrize("device", [D1, 1, "cuda:1"])
def test_forms(device, size, expected):
    with managed.budget(device, size) as budget:
        assert (budget.device, budget.bytes, budget.old) == (D1, expected, TOTAL)
        assert _C.capacity(D1) == managed.stats()["devices"][D1]["capacity"] == expected
    assert _C.capacity(D1) == TOTAL


def test_the_hosts():
    limit = _C.host_memory()["limit"]
    with managed.budget("cpu", "1GiB") as budget:
        assert (budget.device, budget.bytes) == ("cpu", 1024 * MiB)
        assert _C.host_memory()["limit"] == 1024 * MiB
        with managed.budget("cpu", "50%") as half:
            assert half.old == 1024 * MiB
            assert half.bytes > 1024 * MiB
        assert _C.host_memory()["limit"] == 1024 * MiB
    assert _C.host_memory()["limit"] == limit


def test_blocks_nest_and_survive_exceptions():
    def fail():
        with managed.budget(D0, "50MiB"):
            assert _C.capacity(0) == 50 * MiB
        assert _C.capacity(0) == 100 * MiB
        raise KeyError

    with pytest.raises(KeyError), managed.budget(D0, "100MiB"):
        fail()
    assert _C.capacity(0) == TOTAL


def test_without_a_block_it_stands_until_it_is_lifted():
    managed.budget(D0, "100MiB")
    assert _C.capacity(0) == 100 * MiB
    managed.budget(D0, None)
    assert _C.capacity(0) == TOTAL


@pytest.mark.parametrize(
    ("device", "size", "error", "says"),
    [
        (D0, "101%", ValueError, f"no part of {D0}"),
        (D0, "-3%", ValueError, f"no part of {D0}"),
        (D0, "much%", ValueError, f"no part of {D0}"),
        (D0, "1 parsec", ValueError, "is no size"),
        (D0, -1, ValueError, "is no size"),
        (D0, 1.5, TypeError, "a size is an int or a string"),
        (D0, TOTAL + 1, ValueError, f"has {TOTAL} bytes"),
        (device_name(9), 1, ValueError, device_name(9)),
        ("meta", 1, ValueError, "meta"),
        ("cpu", "101%", ValueError, "no part of cpu"),
        ("cpu", "1000TiB", ValueError, "cpu has"),
        ("cpu:0", "9" * 400 + ".5", ValueError, "cpu has"),
    ],
)
def test_what_cannot_be_meant_changes_nothing(device, size, error, says):
    before = _C.capacity(0), _C.host_memory()["limit"]
    with pytest.raises(error, match=says):
        managed.budget(device, size)
    assert (_C.capacity(0), _C.host_memory()["limit"]) == before


# ---- what it does


@pytest.mark.not_under_torture("it counts what leaves and comes back")
def test_what_is_there_beyond_it_leaves_at_once():
    """The half that was used longest ago."""
    kept = [sized(LARGE, float(i)) for i in range(10)]
    for t in kept:
        t.sum()
    with moved() as m, managed.budget(D0, counted() - (5 * LARGE - 2) * MiB):
        left = [_C.is_spilled(t) for t in kept]
        assert used() <= _C.capacity(0)
    assert left == [True] * 5 + [False] * 5
    assert m.bytes("spill") == 5 * LARGE * MiB
    assert sum(map(_C.is_spilled, kept)) == 5  # more room alone brings nothing home
    assert [t[0].item() for t in kept] == [float(i) for i in range(10)]


def used_with_two_streams(n, has_copy):
    """Large tensors; the first was used longest ago.

    A block that is freed from now on waits for two streams. With a copy on the host the
    bytes leave without being copied.
    """
    with device_module.stream(device_module.Stream(0)):
        sized(1) * 2.0
    kept = [sized(LARGE, float(i)) for i in range(n)]
    if has_copy:
        spill(*kept)
    for t in kept:
        t.sum()
    return kept


@pytest.mark.not_under_torture("who leaves first is not chosen by use")
@pytest.mark.parametrize("has_copy", [False, True])
def test_no_more_leaves_where_two_streams_were_used(has_copy):
    """A block that waits for a stream counts as soon as the bytes have left, copied or not."""
    kept = used_with_two_streams(10, has_copy)
    with moved() as m, managed.budget(D0, counted() - (5 * LARGE - 2) * MiB):
        left = [_C.is_spilled(t) for t in kept]
    assert left == [True] * 5 + [False] * 5
    assert (m["spill"], m["drop"]) == ((0, 5) if has_copy else (5, 0))
    assert [t[0].item() for t in kept] == [float(i) for i in range(10)]


@pytest.mark.not_under_torture("who leaves first is not chosen by use")
@pytest.mark.parametrize("has_copy", [False, True])
def test_a_request_makes_no_more_leave_where_two_streams_were_used(has_copy):
    kept = used_with_two_streams(5, has_copy)
    with moved() as m, managed.budget(D0, counted() + MiB):
        made = sized(3 * LARGE, 7.0)
    assert [_C.is_spilled(t) for t in kept] == [True] * 3 + [False] * 2
    assert (m["spill"], m["drop"]) == ((0, 3) if has_copy else (3, 0))
    assert made.sum().item() == 7.0 * made.numel()
    assert [t[0].item() for t in kept] == [float(i) for i in range(5)]


@pytest.mark.not_under_torture("who leaves first is not chosen by use")
def test_what_was_just_made_does_not_leave_first():
    kept = [sized(LARGE, float(i)) for i in range(10)]
    with managed.budget(D0, counted() - (5 * LARGE - 2) * MiB):
        left = [_C.is_spilled(t) for t in kept]
    del kept
    assert left == [True] * 5 + [False] * 5


def test_what_is_pinned_or_exposed_stays_beyond_it():
    kept = [sized(4) for _ in range(3)]
    kept[0].pin()
    kept[1].data_ptr()
    with managed.budget(D0, 0):
        assert [_C.is_spilled(t) for t in kept] == [False, False, True]
        with pytest.raises(managed.OutOfMemoryError):
            kept[2].sum()
    assert kept[2].sum().item() == kept[2].numel()
    kept[0].unpin()


def test_a_budget_of_nothing():
    x = sized(4)
    with managed.budget(D0, 0):
        assert _C.is_spilled(x)
        with pytest.raises(managed.OutOfMemoryError, match=rf"{D0} out of memory\."):
            x + 1
    assert (x + 1)[0].item() == 2.0


def test_shrinking_and_growing_while_a_program_runs():
    x, total = sized(1, 0.0), used()
    kept = []
    for k, room in enumerate((20, 8, 4, 16, 3, 30)):
        with managed.budget(D0, total + room * MiB):
            device_module.reset_peak_memory_stats(0)
            kept += [x + float(k) for _ in range(6)]
            assert sum(t[0].item() for t in kept) == 6 * sum(range(k + 1))
            assert device_module.max_memory_allocated(0) <= total + room * MiB


@pytest.mark.only_simulated("CUDA's allocator keeps to a segment")
def test_the_allocator_keeps_to_the_byte():
    x = sized(1)
    with managed.budget(D0, used() + 2 * MiB):
        device_module.reset_peak_memory_stats(0)
        y = x.repeat(2)
        assert device_module.max_memory_allocated(0) == used() == _C.capacity(0)
        assert not _C.is_spilled(x)
        z = on(torch.zeros(5, dtype=torch.uint8))
        assert _C.is_spilled(x) or _C.is_spilled(y)
        assert device_module.max_memory_allocated(0) == _C.capacity(0)
        assert (x.sum() + y.sum() + z.sum()).item() == 3 * x.numel()
        assert device_module.max_memory_allocated(0) == _C.capacity(0)


def test_placement_keeps_to_it_too():
    with managed.budget(D0, used(0) + 2 * MiB), managed.budget(D1, used(1) + 2 * MiB):
        x = managed.device_manager.send(torch.zeros(MiB).as_subclass(managed.ManagedTensor), None)
        assert x.device not in (torch.device(D0), torch.device(D1))


def test_reserved_room_is_left_free():
    manager = managed.DeviceManager(reserved=0.5)
    with managed.budget(D0, "40MiB"):
        assert dict(_C.rooms(manager))[torch.device(D0)][0] <= 20 * MiB


# ---- training


def wide():
    """Layers of more than a piece."""
    return mlp(1792, 4), [(torch.randn(16, 1792),) for _ in range(2)]


def perceptron():
    return mlp(128, 4), [(torch.randn(64, 128),) for _ in range(2)]


def convolutions():
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    return net, [(torch.randn(8, 3, 24, 24),) for _ in range(2)]


def encoder():
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 3), [(torch.randn(8, 32, 64),) for _ in range(2)]


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(64, 64, 3, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


def recurrent():
    return Recurrent(), [(torch.randn(16, 16, 64),) for _ in range(2)]


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        quiet = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0)
        shape = {"vocab_size": 256, "n_positions": 32, "n_embd": 64, "n_layer": 3, "n_head": 4}
        self.model = GPT2LMHeadModel(GPT2Config(**shape, **quiet))

    def forward(self, words):
        return self.model(words).logits


def gpt2():
    return Words(), [(torch.randint(0, 256, (8, 32)),) for _ in range(2)]


PROGRAMS = [wide] if ON_CUDA else [perceptron, convolutions, encoder, recurrent, gpt2]
FORMS = {"foreach": {"foreach": True}, "fused": {"fused": True}, "single": {"foreach": False}}
KINDS = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW]


@pytest.fixture(scope="module")
def references():
    """Of each program: what plain training on the CPU gives, and the peak without a budget."""
    known = {}

    def of(make, optimizer):
        key = make.__name__, optimizer
        if key not in known:
            here, batches = build(make)
            there = copy.deepcopy(here)
            expected = train(here, batches, make_optimizer(here, optimizer))
            known[key] = expected, under(there, batches, optimizer, None)[1]
        return known[key]

    return of


def build(make):
    torch.manual_seed(3)
    return make()


def make_optimizer(model, optimizer):
    kind, form = optimizer
    extra = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    return kind(model.parameters(), lr=1e-3, **FORMS[form], **extra)


def under(model, batches, optimizer, room):
    """What training on the first device gives, and the most that it held there."""
    before = used()
    with managed.budget(D0, None if room is None else before + room):
        device_module.reset_peak_memory_stats(0)
        model = module_on(model)
        placed = [tuple(map(on, batch)) for batch in batches]
        results = train(model, placed, make_optimizer(model, optimizer))
        return results, device_module.max_memory_allocated(0) - before


@pytest.mark.not_under_torture("the peak that its budgets are parts of is the least there can be")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("make", PROGRAMS)
def test_training_is_the_same_in_less_room(make, kind, form, references):
    expected, peak = references(make, (kind, form))
    for fraction in FRACTIONS:
        room = int(peak * fraction)
        with moved() as m:
            results, most = under(*build(make), (kind, form), room)
        assert_equal(expected, results)
        assert most <= room, fraction
        assert m["restore"] > 0, fraction


@pytest.mark.parametrize("policy", ["lru", "clean_first", "greedy_dual"])
def test_every_policy_gives_the_same(policy, references):
    optimizer = torch.optim.AdamW, "foreach"
    expected, peak = references(PROGRAMS[0], optimizer)
    _C.set_victims(policy)
    try:
        model, batches = build(PROGRAMS[0])
        assert_equal(expected, under(model, batches, optimizer, peak // 2)[0])
    finally:
        _C.set_victims("greedy_dual")


def test_a_policy_that_does_not_exist():
    with pytest.raises(ValueError, match="there is no policy 'best'"):
        _C.set_victims("best")


# ---- several devices


@contextlib.contextmanager
def three_devices_of(size):
    """So many bytes more on three devices, and none on the fourth."""
    with contextlib.ExitStack() as ends:
        for i in range(4):
            room = size if i < 3 else 0
            ends.enter_context(managed.budget(device_name(i), used(i) + room))
        yield


def test_peers_come_before_the_host(run_python):
    """A world 2.5 times a device, on devices whose links to each other are faster."""
    out = run_python(
        """
        import torch, managed
        managed.simulate(devices=3, memory="4MiB", preset="a100-40g")
        make = lambda i: torch.full((2**17,), float(i)).as_subclass(managed.ManagedTensor)
        world = [make(i).to("sim:0") for i in range(20)]
        for _ in range(3):
            assert [t[0].item() for t in world] == [float(i) for i in range(20)]
        guests = [managed._C.residency(i)["guests"] for i in range(3)]
        spilled = lambda items: managed.stats()["links"].get("sim:0->cpu", 0) - 4 * items
        print(sum(guests) >= 6 * 2**20, guests[0], spilled(60))
        world += [make(i).to("sim:0") for i in range(20, 40)]
        assert [t[0].item() for t in world] == [float(i) for i in range(40)]
        print(spilled(100) > 0)
        """
    )
    assert out == "True 0 0\nTrue\n"


def test_a_budget_is_nobody_elses_memory():
    with managed.budget(D1, "100MiB"):
        [(_, (room, load, speed))] = _C.rooms(DeviceManager(cuda_devices=[1], reserved=0.0))
        figures = managed.stats()["devices"][D1]
    assert (room + load, figures["foreign"]) == (100 * MiB, 0)
    assert ON_CUDA or speed == 1.0  # a card says its own
    assert figures["capacity"] == figures["free"] + figures["used"] == 100 * MiB


def test_idle_peers_take_what_leaves_over_links_that_are_a_little_slower(run_python):
    """28 MiB on a device of 8 beside three idle ones, as they are by default."""
    out = run_python(
        """
        import torch, managed
        managed.simulate(devices=4, memory="256MiB")
        managed.budget("sim:0", "8MiB")
        make = lambda i: torch.full((2**17,), float(i)).as_subclass(managed.ManagedTensor)
        world = [make(i).to("sim:0") for i in range(56)]
        guests = sum(managed._C.residency(i)["guests"] for i in range(1, 4))
        print(guests >= 20 * 2**20, managed.stats()["links"].get("sim:0->cpu", 0))

        # What is written each time goes there each time, what is only read is soon on the host.
        for _ in range(3):
            for t in world: t.add_(1)
        print(managed.stats()["links"].get("sim:0->cpu", 0))
        for _ in range(3):
            assert [t[0].item() for t in world] == [float(i + 3) for i in range(56)]
        managed.stats(reset=True)
        assert [t[0].item() for t in world] == [float(i + 3) for i in range(56)]
        figures = managed.stats()
        print(figures["spill_bytes"], figures["drop_bytes"] >= 20 * 2**20)
        """
    )
    assert out == "True 0\n0\n0 True\n"


def test_everything_is_nearly_full():
    """Devices and the host hold 95 % of what they may, and results are right."""
    host = managed.budget("cpu", _C.host_memory()["used"] + 4 * PIECE)
    with three_devices_of(4 * PIECE), host:
        block = PIECE if ON_CUDA else PIECE // 16
        blocks = int(0.95 * 16 * (PIECE // block))
        world = [on(torch.full((block // 4,), float(i)), device_name(i % 3)) for i in range(blocks)]
        for _ in range(3):
            for i, t in enumerate(world):
                t.add_(1)
                assert used(i % 3) <= _C.capacity(i % 3)
        assert [t[5].item() for t in world] == [float(i + 3) for i in range(blocks)]
        assert _C.host_memory()["used"] <= _C.host_memory()["limit"]


@pytest.fixture
def small():
    with three_devices_of(4 * MiB):
        yield


def test_conjugate_gradients_on_a_system_larger_than_any_device(small):
    """A banded system in blocks of rows over three devices and the host: 19 MiB on 12."""
    blocks, rows, steps = 38, 128, 12
    torch.manual_seed(0)
    n = blocks * rows
    parts = [torch.randn(rows, 1024) / 64 for _ in range(blocks)]

    def solve(parts, b):
        where = [torch.arange(k * rows, k * rows + 1024) % n for k in range(blocks)]

        def times(x):  # A = M'M + 1 for the banded M
            out = x.clone()
            for part, i in zip(parts, where, strict=True):
                i = i.to(x.device)
                out.index_add_(0, i, part.t() @ (part @ x[i]))
            return out

        x, r = torch.zeros_like(b), b.clone()
        p, rr = r.clone(), r @ r
        for _ in range(steps):
            ap = times(p)
            alpha = rr / (p @ ap)
            x, r = x + alpha * p, r - alpha * ap
            old, rr = rr, r @ r
            p = r + rr / old * p
        return x, rr

    b = torch.randn(n)
    expected = solve(parts, b)
    there = [on(part, device_name(k % 3)) for k, part in enumerate(parts)]
    assert sum(part.nbytes for part in there) > 12 * MiB
    with moved() as m:
        x, rr = solve(there, on(b))
    assert torch.equal(x.cpu(), expected[0])
    assert torch.equal(rr.cpu(), expected[1])
    assert rr < 1e-4 * (b @ b)
    assert m["restore"] > 0
    spill(*there)
