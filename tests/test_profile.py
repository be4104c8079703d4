"""managed.profile(): what it tells is what happened, and its file is one that Perfetto reads."""

import json

import pytest
import torch
from devices import D0, D1, ON_CUDA

import managed
from managed import ManagedModule, ManagedTensor
from managed._backend import C
from managed._spans import held
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
    tracks, named = {}, set()
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
            assert 0 <= e["args"]["bytes"] <= torch.sim.mem_get_info(0)[1]
    for spans in tracks.values():
        spans.sort()
        ends = [end for _, end in spans]
        assert all(a <= b[0] + 1e-3 for a, b in zip(ends, spans[1:], strict=False))
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
    steps = [total for _, total in held(p.spans, D1, p.elapsed)]
    assert steps[0] >= before
    assert max(steps) == before + 20000
    assert steps[-1] == before + 400 == torch.sim.memory_allocated(device)
    assert x.numel() + z.numel() == 1100


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
        assert {"sim:0 stream 0", "sim:0 -> cpu", "cpu -> sim:0", "thread 0"} <= set(rows)
        assert figure.axes[1].get_ylabel() == "MiB in use"
    with managed.profile() as empty:
        pass
    managed.plot_timeline(empty)
