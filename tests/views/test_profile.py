"""managed.profile(): what it tells is what happened, and its file is one that Perfetto reads."""

import json
import textwrap

import pytest
import torch
from support.devices import D0, D1, ON_CUDA

import managed
from managed import ManagedModule, ManagedTensor
from managed._backend import C
from managed._views.spans import held
from managed._views.words import OWNERS
from managed.explain import TRANSFERS

simulated = pytest.mark.skipif(ON_CUDA, reason="only simulated devices have a clock to look at")


def training(steps=2):
    """Steps of a model that does not fit into its budget."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 256) for _ in range(6)]
    model = ManagedModule.from_module(torch.nn.Sequential(*layers)).to(D0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(64, 256).as_subclass(ManagedTensor)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@pytest.fixture
def small_budget():
    managed.budget(D0, "1MiB" if not ON_CUDA else "40MiB")
    yield
    managed.budget(D0, None)


def slices(trace):
    return [e for e in trace["traceEvents"] if e["ph"] == "X"]


def test_what_moved_is_what_stats_count(small_budget, tmp_path):
    before = managed.stats()
    with managed.profile(tmp_path / "trace.json") as p:
        training()
    after = managed.stats()
    counted = {k: after[f"{k}_bytes"] - before[f"{k}_bytes"] for k in TRANSFERS}
    told = dict.fromkeys(TRANSFERS, 0)
    for s in p.spans:
        if s.event:
            told[s.event.kind] += s.bytes
    assert told == counted
    if not ON_CUDA:
        assert counted["spill"] > 0
        assert counted["restore"] > 0
    links = {k: n - before["links"].get(k, 0) for k, n in after["links"].items()}
    moved = dict.fromkeys(links, 0)
    for s in p.spans:
        if s.event:
            moved[f"{s.device}->{s.other}"] += s.bytes
    assert moved == links
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace["otherData"]["stats"] == p.stats
    assert sum(e["args"]["bytes"] for e in slices(trace) if "why" in e["args"]) == sum(
        told.values()
    )


@simulated
def test_the_file_is_one_that_perfetto_reads(small_budget, tmp_path):
    """The fields that the trace event format asks for; within a track nothing overlaps."""
    with managed.profile(tmp_path / "trace.json") as p:
        training()
    trace = json.loads((tmp_path / "trace.json").read_text())
    tracks, counters, named = {}, {}, set()
    for e in trace["traceEvents"]:
        assert isinstance(e["pid"], int)
        if e["ph"] == "M":
            assert e["name"] in ("process_name", "thread_name")
            named.add((e["pid"], e["tid"]) if e["name"] == "thread_name" else e["pid"])
            continue
        assert e["ts"] >= 0
        assert e["pid"] in named
        if e["ph"] == "X":
            assert e["dur"] >= 0
            assert (e["pid"], e["tid"]) in named
            tracks.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
        else:
            assert e["ph"] == "C"
            counters.setdefault((e["pid"], e["ts"]), []).append(e["args"])
    for spans in tracks.values():
        spans.sort()
        ends = [end for _, end in spans]
        assert all(a <= b[0] + 1e-3 for a, b in zip(ends, spans[1:], strict=False))
    assert counters
    for total, owners in counters.values():
        assert tuple(owners) == OWNERS
        assert all(nbytes >= 0 for nbytes in owners.values())
        assert sum(owners.values()) == total["bytes"] <= torch.sim.mem_get_info(0)[1]
    kinds = {e["cat"] for e in slices(trace)}
    assert {"run", "copy", "wait"} <= kinds
    assert any(e["name"] == "aten::addmm" for e in slices(trace))
    assert p.elapsed == max(s.end for s in p.spans)


@simulated
def test_every_copy_of_managed_says_why_and_where(small_budget):
    with managed.profile() as p:
        training(1)
    copies = [s for s in p.spans if s.kind == "copy"]
    told = [s for s in copies if s.event]
    assert {s.name for s in told} >= {"spill", "restore"}
    assert all(s.event.reason for s in told)
    assert all((s.event.source, s.event.target) == (s.device, s.other) for s in told)
    assert all(s.event.bytes == s.bytes for s in told)
    assert any("test_profile.py" in (s.event.site or "") for s in told)


@simulated
def test_bytes_in_use_are_those_of_the_device():
    device = torch.device(D1)
    torch.sim.synchronize(D1)
    x = torch.ones(1000, device=D1)
    before = torch.sim.memory_allocated(device)
    with managed.profile() as p:
        y = torch.ones(5000, device=D1)
        torch.sim.synchronize(D1)
        del y
        z = torch.ones(100, device=D1)
        torch.sim.synchronize(D1)
    steps = [sum(owners.values()) for _, owners in held(p.spans, D1, p.elapsed)]
    assert steps[0] >= before
    assert max(steps) == before + 20000
    assert steps[-1] == before + 400 == torch.sim.memory_allocated(device)
    assert x.numel() + z.numel() == 1100


OWNED = """
    import os, torch, managed
    from managed import ManagedTensor, _sim
    from managed._views.spans import held
    managed.simulate(2, "64MiB", preset="a100-40g", repeatable=True)
    managed.budget("sim:0", "8MiB")
    torch.set_num_threads(1)
    MIB = 2**20
    marks = {}

    def make(mib, device):
        return torch.ones(mib * MIB // 4).as_subclass(ManagedTensor).cuda(device)

    def mark(name):
        [torch.sim.synchronize(d) for d in (0, 1)]
        now = _sim.host_time() - p._begin
        for t in ticks:
            t.neg_()  # what is allocated from now on begins later
        marks[name] = now, [torch.sim.memory_allocated(d) for d in (0, 1)]

    def told():
        for name, (ns, used) in marks.items():
            for d in (0, 1):
                steps = [by for at, by in held(p.spans, f"sim:{d}", p.elapsed) if at <= ns]
                assert used[d] == sum(steps[-1].values()), (name, d, used, steps[-1])
                print(name, d, *(f"{o} {n / MIB:g}" for o, n in steps[-1].items() if n))

    ticks = [torch.ones(MIB // 4, device=f"sim:{d}") for d in (0, 1)]
    with managed.profile() as p:
"""


@simulated
def test_bytes_in_use_have_owners(run_python):
    """Under a budget, with a peer: all that is in use at each moment is somebody's."""
    program = """
        library = torch.library.Library("owners", "DEF")
        library.define("second(Tensor a, Tensor b) -> Tensor")
        library.impl("second", lambda a, b: b, "CompositeExplicitAutograd")
        plain = torch.ones(MIB // 4, device="sim:0")
        mark("plain")
        xs = [make(2, 0) for _ in range(3)]
        mark("managed")
        pinned = make(1, 1).pin()  # its storage is managed's all the same
        xs.append(make(2, 0))
        mark("guest")
        wide = make(1, 0)
        y = pinned + wide
        mark("kept")
        wide.add_(1)
        del y
        mark("stale")
        ours = torch.ops.owners.second(pinned, wide)  # a copy that the operator returns
        mark("program's")
        xs[0].add_(1)
        mark("home")
        del xs, ours, wide
        mark("gone")
    told()
    """
    expected = """        plain 0 other 2
        plain 1 other 1
        managed 0 managed 6 other 2
        managed 1 other 1
        guest 0 managed 6 other 2
        guest 1 managed 1 guest 2 other 1
        kept 0 managed 5 other 2
        kept 1 managed 2 replica 1 guest 4 other 1
        stale 0 managed 5 other 2
        stale 1 managed 1 guest 4 other 1
        program's 0 managed 5 other 2
        program's 1 managed 2 guest 4 other 1
        home 0 managed 5 other 2
        home 1 managed 2 guest 4 other 1
        gone 0 other 2
        gone 1 managed 1 other 1
    """
    assert run_python(OWNED + program) == textwrap.dedent(expected)


@simulated
def test_a_child_knows_whose_bytes_it_has_inherited(run_python):
    program = """
        xs = [make(2, 0) for _ in range(4)]
        pinned, wide = make(1, 1).pin(), make(1, 0)
        y = pinned + wide
        child = os.fork()
        if not child:  # the profile is the parent's
            _sim.start_log()
            mark("child")
            spans = _sim.stop_log()
            living = {}
            for kind, name, device, *_, end, nbytes, _ in spans:
                if kind == "hold":
                    assert end is None, end
                    living[device, name] = living.get((device, name), 0) + nbytes // MIB
            print(sorted(living.items()), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        mark("parent")
    told()
    """
    assert run_python(OWNED + program).splitlines() == [
        "[((0, 'managed'), 7), ((0, 'other'), 1), "
        "((1, 'guest'), 2), ((1, 'managed'), 2), ((1, 'other'), 1), ((1, 'replica'), 1)]",
        "parent 0 managed 7 other 1",
        "parent 1 managed 2 replica 1 guest 2 other 1",
    ]


@simulated
def test_who_waits_and_for_what():
    host = torch.ones(2**18).pin_memory()
    y = torch.empty(2**18, device=D1)
    side = torch.Stream(D1)
    torch.sim.synchronize(D1)
    with managed.profile() as p:
        with side:
            y.copy_(host, non_blocking=True)
        torch.sim.current_stream(D1).wait_stream(side)
        y + 1
        y.sum().item()
    (copy,) = (s for s in p.spans if s.kind == "copy" and s.device == "cpu")
    (stall,) = (s for s in p.spans if s.kind == "stall")
    assert (stall.name, stall.stream, stall.end) == ("event", 0, copy.end)
    adding = next(s for s in p.spans if s.name == "aten::add.Tensor")
    assert adding.begin == stall.end
    waits = [s for s in p.spans if s.kind == "wait"]
    assert waits[-1].name == "aten::_local_scalar_dense"
    assert p.elapsed == waits[-1].end


def test_a_program_that_fails_leaves_its_profile(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("old")
    p = managed.profile(path)

    def program():
        with p:
            torch.ones(3).as_subclass(ManagedTensor).to(D0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()
    assert len(slices(json.loads(path.read_text()))) >= 1
    assert p.stats["move"] == 1
    with managed.profile():
        pass


def test_profiles_do_not_nest(tmp_path):
    with managed.profile() as p:
        with pytest.raises(RuntimeError, match="a profile is running"), managed.profile():
            raise AssertionError
        torch.ones(3).as_subclass(ManagedTensor).to(D0)
    assert p.stats["move"] == 1
    with pytest.raises(FileNotFoundError, match="no folder"), managed.profile(tmp_path / "a" / "b"):
        raise AssertionError
    assert list(tmp_path.iterdir()) == []


def test_devices_may_be_simulated_while_a_profile_runs(run_python):
    program = """
        import torch, managed
        with managed.profile() as p:
            managed.simulate(2, "64MiB")
            torch.ones(4).as_subclass(managed.ManagedTensor).to("sim:1")
        print(p.stats["move_bytes"], [s.kind for s in p.spans])
        with managed.profile() as p:
            torch.ones(4, device="sim:0")
        print(sorted({s.kind for s in p.spans}))
    """
    expected = "16 ['copy']\n['hold', 'run']\n"
    assert run_python(program) == expected


def test_nothing_is_forgotten_while_a_profile_runs():
    with managed.profile() as p:
        x = torch.ones(3).as_subclass(ManagedTensor).to(D0)
        for _ in range(2500):
            x = x.to(D1).to(D0)
    assert p.stats["move"] == 5001
    assert len([s for s in p.spans if s.event]) == 5001
    assert len(C.history(None)[0]) == 4096  # and afterwards as before


def test_the_picture(small_budget, tmp_path):
    pytest.importorskip("matplotlib")
    with managed.profile() as p:
        training(1)
    figure = managed.plot_timeline(p, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes()[:4] == b"\x89PNG"
    rows = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(rows) == len(set(rows)) > 0
    if not ON_CUDA:
        devices = sorted({s.device for s in p.spans if s.kind == "hold"})
        assert {"sim:0 stream 0", "sim:0 -> cpu", "cpu -> sim:0", "thread 0"} <= set(rows)
        assert [a.get_ylabel() for a in figure.axes[1:]] == [f"MiB of {d}" for d in devices]
        owners = {name.get_text() for name in figure.axes[1].get_legend().get_texts()}
        assert "managed" in owners <= set(OWNERS)
    with managed.profile() as empty:
        pass
    managed.plot_timeline(empty)
