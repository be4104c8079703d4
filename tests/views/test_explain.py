"""What `explain` tells: the line, the reason and the bytes; and that it agrees with `stats`."""

import copy
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support.apart import rand
from support.devices import D0, D1, D2, D3
from support.paths import ROOT
from support.seed import SEED
from torch import nn
from torch.utils.checkpoint import checkpoint

import managed
from managed import _C, ManagedModule, ManagedTensor

KINDS = [
    "move", "copy", "write_back", "place", "pin", "unpin", "waited", "reserve", "release",
]  # fmt: skip


def line_of(function, text):
    """ "test_explain.py:12 in f" for the line of `function` that holds `text`."""
    code = function.__code__
    with open(code.co_filename) as file:
        lines = file.read().splitlines()
    number = next(i for i in range(code.co_firstlineno, len(lines)) if text in lines[i]) + 1
    name = getattr(code, "co_qualname", code.co_name)
    return f"test_explain.py:{number} in {name}"


# ---- call sites


def add(a, b):
    return a + b  # the line of add


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        return self.inner(x)  # the line of forward


@pytest.mark.not_under_torture("its history tells of what leaves and comes back, too")
def test_a_copy_names_the_line_that_computes():
    a, b = rand(D0, 100), rand(D1, 100)
    add(a, b)
    event = managed.explain(b)[-1]
    assert (event.kind, event.site) == ("copy", line_of(add, "the line of add"))


@pytest.mark.not_under_torture("its history tells of what leaves and comes back, too")
def test_torchs_own_files_are_passed_over():
    net = ManagedModule.from_module(Net()).cuda(1)
    net(rand(D2, 2, 4))
    event = managed.explain()[-1]
    assert (event.kind, event.operator) == ("copy", "aten::linear")
    assert event.site == line_of(Net.forward, "the line of forward")
    assert f" {event.operator} at {event.site}, " in str(event)


def test_moves_and_pins_name_their_line():
    net = ManagedModule.from_module(nn.Linear(3, 3))
    here = test_moves_and_pins_name_their_line
    net.cuda(2)  # the module moves
    net.pin()  # the module is pinned
    events = [e for e in managed.explain(net) if e.tensor == "weight"]
    assert [(e.kind, e.site) for e in events] == [
        ("move", line_of(here, "net.cuda(2)")),
        ("pin", line_of(here, "net.pin()")),
    ]


def test_names_that_are_not_ascii():
    space = {}
    code = "def größe(a, b):\n    return a + b\n"
    exec(compile(code, "/x/数据𝕏.py", "exec"), space)
    space["größe"](rand(D0, 4), rand(D1, 4))
    assert managed.explain()[-1].site == "数据𝕏.py:2 in größe"


def test_every_thread_has_its_own_line():
    start = threading.Barrier(2)
    tensors = [(rand(D0, 64), rand(D1, 64)) for _ in range(2)]

    def one(a, b):
        return a + b  # one's line

    def other(a, b):
        return a * b  # the other's line

    def work(function, operands):
        start.wait()
        for _ in range(10):
            operands[1].zero_()
            function(*operands)

    before = managed.stats()["events"]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (one, other), tensors))
    found = {(e.operator, e.site) for e in managed.explain().since(before) if e.kind == "copy"}
    assert found == {
        ("aten::add.Tensor", line_of(one, "one's line")),
        ("aten::mul.Tensor", line_of(other, "the other's line")),
    }


@pytest.mark.not_under_torture("its history tells of what leaves and comes back, too")
@pytest.mark.parametrize("pooled", [False, True])
def test_a_thread_that_runs_a_library_alone_has_no_line(pooled):
    """The standard library's code that begins a thread is not the program's."""
    x, y = rand(D0, 64), rand(D1, 64)
    before = managed.stats()["events"]
    if pooled:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(torch.add, x, y).result()
    else:
        thread = threading.Thread(target=torch.add, args=(x, y))
        thread.start()
        thread.join()
    (event,) = (e for e in managed.explain().since(before) if e.kind == "copy")
    assert not event.site


def test_a_gradient_belongs_to_its_tensor_and_to_the_line_of_its_copy():
    a = rand(D0, 100)
    w = rand(D1, 100).requires_grad_()
    _C.mark(w)
    before = managed.stats()["events"]
    add(a, w).sum().backward()
    out, home = managed.explain(w).since(before)
    assert (out.kind, out.source, out.target, out.bytes) == ("copy", D1, D0, 400)
    assert (home.kind, home.source, home.target, home.bytes) == ("copy", D0, D1, 400)
    assert home.operator == "gradient"
    assert home.reason == "a gradient goes to where its tensor lives"
    assert out.site == home.site == line_of(add, "the line of add")


def test_python_that_the_engine_runs_has_its_own_line():
    """Checkpoint computes again in a device thread of the engine, where frames are Python's."""
    a, w = rand(D0, 100), rand(D1, 100).requires_grad_()
    out = checkpoint(add, a, w, use_reentrant=False)
    before = managed.stats()["events"]
    out.sum().backward()
    again = [e for e in managed.explain().since(before) if e.operator == "aten::add.Tensor"]
    assert {e.site for e in again} <= {line_of(add, "the line of add")}


def test_a_copy_inside_the_engine_names_the_backward():
    w = rand(D0, 100).requires_grad_()
    (w * 2).sum().backward()
    w.data = w.data.to(D1)  # leaves the gradient behind
    before = managed.stats()["events"]
    (w * 2).sum().backward()
    sites = [e.site for e in managed.explain().since(before) if e.kind == "copy"]
    assert sites == ["backward of torch::autograd::AccumulateGrad"]


# ---- histories


@pytest.mark.not_under_torture("its history tells of what leaves and comes back, too")
def test_a_history_goes_on_under_new_contents():
    net = ManagedModule.from_module(nn.Linear(4, 4)).cuda(1)
    number, events = _C.object_id(net.weight), len(managed.explain(net.weight))
    assert min(number, events) > 0
    net.weight.data = net.weight.data.double()
    _C.resume(net.weight, number)
    assert _C.object_id(net.weight) == number
    net.cuda(2)
    assert len(managed.explain(net.weight)) == events + 1
    _C.resume(net.weight, 0)
    assert _C.object_id(net.weight) == number


def test_resume_keeps_the_pin_and_other_tensors():
    x = rand(D1, 4)
    x.pin()
    alias, number = x.detach(), _C.object_id(x)
    _C.resume(x, _C.object_id(rand(D1, 4)))
    assert x.pinned
    assert _C.object_id(alias) == number != _C.object_id(x)


@pytest.mark.not_under_torture("its history tells of what leaves and comes back, too")
def test_a_copy_of_a_module_has_its_own_history():
    net = ManagedModule.from_module(nn.Linear(4, 4)).cuda(1)
    twin = copy.deepcopy(net)
    before = len(managed.explain(net))
    twin.cuda(3)
    assert len(managed.explain(net)) == before
    assert [e.kind for e in managed.explain(twin)] == ["move", "move"]


def test_tensors_that_share_bytes_are_counted_once_in_a_module():
    net = ManagedModule.from_module(nn.BatchNorm1d(4))
    net.register_buffer("alias", net.running_mean)
    net.running_mean.pin()
    assert [e.kind for e in managed.explain(net)] == ["pin"]


# ---- to the byte


def random_program(rng, steps):
    """Sums, writes, moves, pins and backward passes of tensors that are anywhere."""
    devices = ["cpu", D0, D1, D2, D3]
    shapes = [(8, 8), (8,), (1, 8), (8, 1), ()]
    tensors = [rand(rng.choice(devices), *rng.choice(shapes)) for _ in range(6)]
    for _ in range(steps):
        i, j = rng.sample(range(6), 2)
        a, b = tensors[i], tensors[j]
        what = rng.randrange(7)
        if what == 0:
            tensors[i] = a.detach().to(rng.choice(devices))
        elif what == 1:
            a.pin()
            a.unpin()
        elif what == 2:
            torch.add(
                a, b, out=torch.empty(0, device=rng.choice(devices)).as_subclass(ManagedTensor)
            )
        elif what == 3:
            x, y = (t.detach().requires_grad_() for t in (a, b))
            (x * y + x).sum().backward()
        elif what == 4:
            torch._foreach_add_([t.clone() for t in tensors[:3]], [t.sum() for t in tensors[3:]])
        elif what == 5:
            torch.where(a > b, a, b)
        else:
            a + b


def agrees(history, stats):
    told = history.totals()
    for kind in KINDS:
        for name in (kind, f"{kind}_bytes", f"{kind}_ns"):
            assert told.get(name, 0) == stats[name], name
    assert told["links"] == {k: v for k, v in stats["links"].items() if v or k in told["links"]}
    assert history.copies == stats["copy"]
    assert history.bytes == sum(stats[f"{k}_bytes"] for k in ("move", "copy", "write_back"))


@pytest.mark.not_under_torture("the history forgets what it counts")
@pytest.mark.parametrize("seed", range(8))
def test_explain_and_stats_agree_to_the_byte(seed):
    print(f"seed {SEED + seed}")
    rng = random.Random(SEED + seed)
    start = managed.stats(reset=True)["events"]
    for _ in range(3):  # each reset is a new beginning
        random_program(rng, 60)
        counted = managed.stats(reset=True)
        agrees(managed.explain().since(start), counted)
        assert min(counted["copy"], counted["move"]) > 0
        start = counted["events"]


def test_threads_lose_nothing_over_a_reset():
    start = managed.stats(reset=True)["events"]
    running = threading.Event()
    parts = []

    def count():
        while not running.is_set():
            parts.append(managed.stats(reset=True))

    def work(seed):
        random_program(random.Random(seed), 60)

    counter = threading.Thread(target=count)
    counter.start()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    running.set()
    counter.join()
    parts.append(managed.stats())
    told = managed.explain().since(start).totals()
    for kind in KINDS:
        for name in (kind, f"{kind}_bytes", f"{kind}_ns"):
            assert told.get(name, 0) == sum(p[name] for p in parts), name


def test_a_full_ring_says_how_much_it_has_forgotten(run_python):
    program = """
        import torch
        import managed
        x = torch.rand(4).as_subclass(managed.ManagedTensor)
        for _ in range(2100):
            x.pin()
            x.unpin()
        counted, history = managed.stats(), managed.explain()
        assert counted["pin"] == counted["unpin"] == 2100
        assert counted["events"] == len(history) + history.dropped == 4200
        assert len(history) == 4096
        assert (history[0].sequence, history[-1].sequence) == (history.dropped + 1, 4200)
        assert str(history).startswith("(104 older events are no longer held)")
    """
    run_python(program)


def test_totals_of_nothing():
    history = managed.explain(torch.ones(1))
    assert history.totals() == {"links": {}}
    assert history.copies == history.bytes == history.dropped == 0


def test_the_page_lists_every_reason():
    page = (ROOT / "docs/why_did_this_move.md").read_text()
    table = page[page.index("## Reasons") : page.index("The list is the core's own")]
    listed = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")]
    assert listed[1:] == _C.reasons()


def test_reasons_are_the_cores():
    assert {e.reason for e in managed.explain()} <= {"", *_C.reasons()}
    assert len(set(_C.reasons())) == len(_C.reasons()) > 10


@pytest.mark.not_under_torture("its history tells of what leaves and comes back, too")
@pytest.mark.parametrize("convert", [nn.Module.double, nn.Module.half, nn.Module.bfloat16])
def test_a_modules_history_goes_on_when_it_is_converted(convert):
    net = ManagedModule.from_module(nn.Linear(3, 3)).cuda(1)
    before = [(e.kind, e.tensor) for e in managed.explain(net)]
    assert ("move", "weight") in before
    convert(net)
    assert [(e.kind, e.tensor) for e in managed.explain(net)] == before
    net.cuda(2)
    assert [e.target for e in managed.explain(net) if e.tensor == "weight"] == [D1, D2]


@pytest.mark.not_under_torture("its history tells of what leaves and comes back, too")
@pytest.mark.filterwarnings("ignore::managed.errors.CopyWarning")
def test_what_has_been_forgotten_since_then():
    """Events of before that the ring has lost are nothing to who asks for later ones."""
    a, b = rand(D0, 4), rand(D1, 4)
    for _ in range(4100):
        b.add_(0)
        a + b
    begin = managed.stats()["events"]
    b.add_(0)
    a + b
    assert managed.explain().dropped >= 4
    assert managed.explain().since(begin).dropped == 0
    assert len(managed.explain().since(begin)) == 1
    assert managed.explain().since(begin - 4100).dropped == 5
