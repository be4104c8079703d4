"""Virtual time of copies, of bytes, and of runs that repeat; test_sim_device.py has operators."""

import json

import pytest
import torch
from support.paths import PROGRAMS, ROOT

from managed import _sim
from managed._simulated.presets import DEFAULT, PRESETS, read_preset

A = "sim:1"
LINK = DEFAULT.host_bytes_per_ns


def copying(nbytes):
    """Virtual seconds of a copy between the host and a device that has everything to itself."""
    return DEFAULT.host_latency_ns * 1e-9 + nbytes / LINK * 1e-9


def test_a_copy_that_is_ready_does_not_wait_for_one_that_is_not():
    x, small = torch.ones(1024, 1024, device=A), torch.ones(1024, 256, device=A)
    to = [torch.empty_like(t, device="cpu").pin_memory() for t in (x, small)]
    busy, free = torch.Stream(A), torch.Stream(A)
    torch.sim.synchronize(A)
    begin = torch.sim.virtual_time("cpu")
    with busy:
        for _ in range(50):
            x.sin_()
        to[0].copy_(x, non_blocking=True)
    with free:
        to[1].copy_(small, non_blocking=True)
    issued = torch.sim.virtual_time("cpu") - begin
    free.synchronize()
    took = torch.sim.virtual_time("cpu") - begin
    assert took == pytest.approx(issued + copying(small.nbytes), rel=1e-3)
    busy.synchronize()
    assert torch.sim.virtual_time("cpu") - begin > 2 * took


def test_two_cards_behind_one_switch_share_its_link(run_python):
    program = """
        import torch, managed
        managed.simulate(4, "64MiB", preset="a100-80g-sxm")
        x = torch.ones(4 * 2**20).pin_memory()
        targets = [torch.empty_like(x, device=f"sim:{i}") for i in range(4)]

        def copy(*devices):
            [torch.sim.synchronize(i) for i in range(4)]
            begin = torch.sim.virtual_time("cpu")
            for i in devices:
                targets[i].copy_(x, non_blocking=True)
            [torch.sim.synchronize(i) for i in devices]
            return torch.sim.virtual_time("cpu") - begin

        alone = copy(0)
        print(copy(0, 2) / alone, copy(0, 1) / alone, copy(0, 1, 2, 3) / alone)
        print(sorted(torch.sim.busy()))
    """
    ratios, names = run_python(program).splitlines()
    assert [float(r) for r in ratios.split()] == pytest.approx([1, 2, 2], rel=0.04)
    assert names == str([f"cpu->sim:{i}" for i in range(4)] + [f"sim:{i}" for i in range(4)])


def test_devices_without_links_of_their_own_use_those_to_the_host():
    """The target's lane carries the copy of the host and that of the other device."""
    host = torch.ones(1024, 1024).pin_memory()
    peer = torch.ones(1024, 1024, device="sim:2")
    a, b = (torch.empty_like(peer, device=A) for _ in range(2))
    first, second = torch.Stream(A), torch.Stream(A)
    assert DEFAULT.peers_over_host

    def copy(*copies):
        for i in (1, 2):
            torch.sim.synchronize(i)
        begin = torch.sim.virtual_time("cpu")
        for stream, target, source in copies:
            with stream:
                target.copy_(source, non_blocking=True)
        for stream, _, _ in copies:
            stream.synchronize()
        return torch.sim.virtual_time("cpu") - begin

    alone = copy((first, a, host))
    assert copy((first, a, host), (second, b, peer)) == pytest.approx(2 * alone, rel=0.1)


def test_what_stands_behind_a_copy_runs_when_it_has_arrived():
    x = torch.ones(1024, 1024).pin_memory()
    y = torch.empty_like(x, device=A)
    side = torch.Stream(A)
    copied, used = (torch.Event("sim", enable_timing=True) for _ in range(2))
    torch.sim.synchronize(A)
    begin = torch.sim.virtual_time("cpu")
    with side:
        y.copy_(x, non_blocking=True)
        copied.record()
    torch.sim.current_stream(A).wait_event(copied)
    with torch.sim.device(A):
        y + 1
        used.record(torch.sim.current_stream(A))
    assert torch.sim.virtual_time("cpu") - begin < copying(x.nbytes) / 2  # nobody has waited yet
    used.synchronize()
    rate = DEFAULT.bytes_per_ns * DEFAULT.efficiency.memory
    adding = DEFAULT.launch_ns * 1e-9 + 2 * y.nbytes / rate * 1e-9
    assert copied.elapsed_time(used) * 1e-3 == pytest.approx(adding, rel=1e-3)


# ---- bytes


def most_held(device):
    return _sim.check_audit(torch.device(device).index)


def test_another_stream_waits_for_bytes_that_are_still_used():
    """The program gives them up at once; the operator that uses them runs for long."""
    device = "sim:3"
    side = torch.Stream(device)
    torch.sim.synchronize(device)
    capacity = torch.sim.mem_get_info(device)[1]
    begin = torch.sim.virtual_time("cpu")
    x = torch.ones(capacity // 2 // 4, device=device)
    for _ in range(20):
        x.sin_()
    del x
    behind = torch.sim.virtual_time(device) - begin
    with side:
        y = torch.ones(capacity // 3 // 4, device=device)
    side.synchronize()
    first = torch.sim.virtual_time("cpu") - begin
    assert first < behind  # both fit
    del y
    x = torch.ones(capacity // 2 // 4, device=device)
    for _ in range(20):
        x.sin_()
    del x
    end = torch.sim.virtual_time(device)
    with side:
        torch.ones(capacity // 3 * 2 // 4, device=device)
    side.synchronize()
    assert torch.sim.virtual_time("cpu") > end
    assert most_held(device) <= capacity


@pytest.mark.parametrize("told", ["by the operator", "by record_stream"])
def test_bytes_are_used_on_every_stream_that_an_operator_ran_on(told):
    device = "sim:3"
    side, third = torch.Stream(device), torch.Stream(device)
    capacity = torch.sim.mem_get_info(device)[1]
    with torch.sim.device(device):
        x = torch.ones(capacity // 2 // 4, device=device)
        other = torch.ones(capacity // 8 // 4, device=device)
        torch.sim.synchronize(device)
        with side:
            for _ in range(20):
                (x if told == "by the operator" else other).sin_()
        x.record_stream(side)
        del x
        with third:
            y = torch.ones(capacity // 4 * 3 // 4, device=device)
        third.synchronize()
        now = torch.sim.virtual_time("cpu")
        side.synchronize()
        assert torch.sim.virtual_time("cpu") == now  # side had ended before
        assert y.sum() == y.numel()
    assert most_held(device) <= capacity


def test_a_child_begins_with_the_bytes_that_it_has_inherited(run_python):
    program = PROGRAMS / "inherited_bytes.py"
    assert run_python(program) == "0 True\n"


# ---- who was at work


def test_busy_adds_up_what_devices_and_links_did(run_python):
    program = """
        import torch, managed
        managed.simulate(2, "64MiB")
        x = torch.ones(2**20).to("sim:0")
        torch.sim.synchronize(0)
        before = torch.sim.busy()
        for _ in range(10):
            x.add_(1)
        y = x.to("sim:1")
        torch.sim.synchronize(1)
        busy = torch.sim.busy()
        print(*sorted(busy))
        print(busy["sim:0"] - before["sim:0"], busy["sim:0->sim:1"], busy["cpu->sim:0"])
        print(all(t <= torch.sim.elapsed() for t in busy.values()))
    """
    names, times, sane = run_python(program).splitlines()
    assert names == "cpu->sim:0 sim:0 sim:0->sim:1 sim:1"
    device, peer, host = map(float, times.split())
    adding = DEFAULT.launch_ns + 2 * 2**22 / (DEFAULT.bytes_per_ns * DEFAULT.efficiency.memory)
    assert device == pytest.approx(10 * adding * 1e-9, rel=1e-3)
    assert host == pytest.approx(copying(2**22), rel=1e-6)
    assert peer == pytest.approx(host + 10e-6, rel=1e-6)
    assert sane == "True"


# ---- runs that repeat

DISPERSED = PROGRAMS / "dispersed_training.py"


@pytest.mark.slow
def test_a_repeatable_run_repeats_to_the_nanosecond(run_python):
    runs = [run_python(DISPERSED, "repeatable") for _ in range(3)]
    assert runs[0] == runs[1] == runs[2]
    loss, placed, _ = runs[0].splitlines()
    assert placed.endswith("True"), "backward passes run in the thread that calls them"
    assert len(set(json.loads(placed.rsplit(" ", 1)[0]))) == 4
    assert run_python(DISPERSED, "free").splitlines()[0] == loss


def test_backward_passes_of_devices_are_issued_beside_each_other(run_python):
    """Each device keeps the time of the thread that the engine has for it."""
    program = """
        import torch, managed
        managed.simulate(2, "64MiB", repeatable=True)
        times = []
        for devices in ((0,), (0, 1)):
            roots = []
            for d in devices:
                y = x = torch.ones(4, device=f"sim:{d}", requires_grad=True)
                for _ in range(300):
                    y = y * 2.0
                roots.append(y)
            [torch.sim.synchronize(i) for i in range(2)]
            begin = torch.sim.virtual_time("cpu")
            torch.autograd.backward(roots, [torch.ones_like(y) for y in roots])
            [torch.sim.synchronize(i) for i in range(2)]
            times.append(torch.sim.virtual_time("cpu") - begin)
        print(times[1] / times[0])
    """
    assert float(run_python(program)) == pytest.approx(1, abs=0.05)


# ---- the interpreter's lock

THREADS = PROGRAMS / "interpreter_shared.py"
ALONE = 400 * 5000  # ns


@pytest.mark.parametrize("python", [0, 3000, 5000])
def test_one_thread_never_waits_for_the_interpreter(run_python, python):
    assert json.loads(run_python(THREADS, python, "free", 1)) == [ALONE]


def test_threads_share_the_interpreter(run_python):
    """How they take turns is the real machine's to say, for how long they have it is not."""
    for python, n in ((5000, 2), (5000, 4), (3000, 4)):
        took = json.loads(run_python(THREADS, python, "free", n))
        others = 400 * (5000 - python)  # what the last one does without the lock
        first = n * 5000  # each thread has issued one operator before, in some order
        assert 400 * n * python - first <= max(took) <= 400 * n * python + others + first
        assert min(took) >= ALONE


def test_threads_share_no_interpreter_where_runs_repeat(run_python):
    assert json.loads(run_python(THREADS, 5000, "repeatable", 4)) == 4 * [ALONE]
    assert json.loads(run_python(THREADS, 0, "free", 4)) == 4 * [ALONE]


def test_backward_passes_need_no_interpreter(run_python):
    """Two devices' threads of the engine, all of whose time would be Python's."""
    program = PROGRAMS / "backward_needs_no_interpreter.py"
    assert float(run_python(program)) == pytest.approx(1, abs=0.05)


# ---- costs from a file


def test_a_file_takes_the_place_of_a_preset(run_python, tmp_path):
    described = PRESETS["a100-80g-sxm"]._asdict() | {"name": "mine", "bytes_per_ns": 500.0}
    described["efficiency"] = described["efficiency"]._asdict() | {"memory": 1.0}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(described))
    program = """
        import sys, torch, managed
        managed.simulate(1, "64MiB", preset=sys.argv[1])
        managed.simulate(1, "64MiB", preset=sys.argv[1])
        properties = torch.sim.get_device_properties(0)
        print(properties.name, properties.bytes_per_second)
    """
    assert run_python(program, path) == "mine 0 500000000000.0\n"
    path.write_text(json.dumps({"name": "x", "memory": 1, "matrix": {}, "vector": {"float32": 1},
                                "bytes_per_ns": 1, "host_bytes_per_ns": 1,
                                "peer_bytes_per_ns": 1}))  # fmt: skip
    assert read_preset(str(path)).issue_ns == DEFAULT.issue_ns


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"bytes_per_ns": -1}, "bytes_per_ns"),
        ({"bytes_per_ns": True}, "bytes_per_ns"),
        ({"host_bytes_per_ns": float("inf")}, "host_bytes_per_ns"),
        ({"launch_ns": 1.5}, "launch_ns"),
        ({"devices_per_switch": 0}, "devices_per_switch"),
        ({"vector": {"float64": 1.0}}, "vector"),
        ({"matrix": 3}, "matrix"),
        ({"peers_over_host": 1}, "peers_over_host"),
        ({"all_bytes_per_ns": -1}, "all_bytes_per_ns"),
        ({"all_bytes_per_ns": False}, "all_bytes_per_ns"),
        ({"name": 5}, "name"),
        ({"efficiency": {"memory": 0}}, "efficiency.memory"),
        ({"efficiency": {"speed": 1}}, "speed"),
        ({"color": "red"}, "color"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path, change, named):
    path = tmp_path / "card.json"
    described = PRESETS["t4"]._asdict() | {"efficiency": {}} | change
    path.write_text(json.dumps(described))
    with pytest.raises(ValueError, match=named) as error:
        read_preset(str(path))
    assert str(path) in str(error.value)


def test_a_file_that_is_none_is_refused(tmp_path):
    path = tmp_path / "card.json"
    for text in ("[1, 2]", "{", "3", ""):
        path.write_text(text)
        with pytest.raises(ValueError, match="does not describe a device"):
            read_preset(str(path))
    with pytest.raises(FileNotFoundError):
        read_preset(str(tmp_path / "nowhere.json"))


@pytest.mark.slow
def test_a_simulated_device_that_is_measured_is_what_it_was_told_to_be(run_python, tmp_path):
    program = """
        import sys, torch, managed
        managed.simulate(2, "256MiB")
        torch.set_num_threads(1)
        sys.path.insert(0, sys.argv[1])
        import card
        del sys.argv[1]
        card.main()
    """
    path = tmp_path / "card.json"
    asked = ["--device", "sim:0", "--peer", "sim:1", "--size", "512", "--out"]
    told = run_python(program, ROOT / "benchmarks", *asked, path)
    found = read_preset(str(path))
    assert json.loads(told) == json.loads(path.read_text())
    for numbers in ("float64", "float32", "float16"):
        rate = found.rate("matrix", numbers)
        assert rate == pytest.approx(DEFAULT.rate("matrix", numbers), rel=0.02)
    rate = found.rate("convolution", "float16")
    assert rate == pytest.approx(DEFAULT.rate("convolution", "float16"), rel=0.1)
    reached = DEFAULT.bytes_per_ns * DEFAULT.efficiency.memory
    assert found.bytes_per_ns == pytest.approx(reached, rel=0.01)
    for field in ("launch_ns", "issue_ns", "host_latency_ns", "peer_latency_ns"):
        assert getattr(found, field) == pytest.approx(getattr(DEFAULT, field), rel=0.02, abs=5)
    assert found.host_bytes_per_ns == pytest.approx(DEFAULT.host_bytes_per_ns, rel=0.01)
    assert found.memory == 256 * 2**20
