"""`managed plan`: it tells what a run counts, stops after its steps, and nothing is written."""

import json
import math
import os
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import interpreters
from support.html_pages import read
from support.paths import PROGRAMS, package_folder

from managed._simulated.presets import PRESETS
from managed.cli import main
from managed.cli.plan import Plan, budget_bytes, read_machine
from managed.cli.plan.html import document
from managed.cli.plan.process import Machine, configured
from managed.cli.plan.report import duration, size, spilled, table, text
from managed.cli.plan.steps import _thinned

pytestmark = [
    pytest.mark.only_simulated("it plans on simulated devices"),
    pytest.mark.not_under_torture("it compares what moves"),
    pytest.mark.not_sanitized("address space of terabytes"),
]

MIB = 2**20

# Trains. With a line of a plan it runs with values, and prints what its step took.
TRAINING = PROGRAMS / "planned_training.py"


def start(*command, cwd):
    path = os.pathsep.join([str(package_folder()), os.environ.get("PYTHONPATH", "")])
    env = interpreters.environment(PYTHONPATH=path, COLUMNS=100)
    return interpreters.run(command, env=env, cwd=cwd, timeout=300)


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """The plan of TRAINING on two devices: what it printed, and its JSON."""
    folder = tmp_path_factory.mktemp("planned")
    (folder / "train.py").write_text(TRAINING.read_text())
    options = "--devices 2x64MiB --preset t4 --budgets 60% --json plan.json"
    options += " --picture p.png --html p.html"
    done = start("-m", "managed", "plan", "train.py", *options.split(), "--", "0.001", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder, done.stdout, json.loads((folder / "plan.json").read_text())


@pytest.mark.slow
def test_every_line_is_what_a_run_with_values_counts(planned, tmp_path):
    folder, _, found = planned
    room, *lines = found["configurations"]
    whole, pressed = lines
    assert (room["devices"], room["count"], whole["devices"]) == ("room for all", 1, "2x64MiB")
    assert (whole["steps"], pressed["steps"]) == (3, 8)
    assert pressed["budget_bytes"] == int(0.6 * max(whole["peak_bytes"]))
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(start, folder / "train.py", "0.001", json.dumps(c), cwd=tmp_path)
            for c in lines
        ]
    for line, run in zip(lines, runs, strict=True):
        assert run.result().returncode == 0, run.result().stderr
        ran = json.loads(run.result().stdout.splitlines()[-1])
        assert line["peak_bytes"] == ran["peak"]
        assert {k: line["step"][k] for k in ran["left"]} == ran["left"]
        assert math.isclose(line["step"]["elapsed_s"], ran["step"], rel_tol=0.01)
    assert spilled(pressed) > 0


def test_the_plan_says_what_it_found(planned):
    folder, printed, found = planned
    assert sorted(p.name for p in folder.iterdir()) == ["p.html", "p.png", "plan.json", "train.py"]
    assert (folder / "p.html").read_text(encoding="utf-8") == document(found)
    assert (folder / "p.png").read_bytes()[1:4] == b"PNG"
    room, whole, pressed = found["configurations"]
    assert found["version"] == 1
    assert found["arguments"] == ["0.001"]
    assert all(c["ended"] and c["speed"] == PRESETS["t4"].name for c in found["configurations"])
    assert whole["memory_bytes"] == 64 * MIB
    # What is spread over two devices is there together, but for what stands on both for a while.
    assert max(whole["peak_bytes"]) < room["peak_bytes"][0] <= sum(whole["peak_bytes"])
    paths = [str(folder / "out" / f"{i}.pt") for i in range(2)]  # the third step was the last
    assert [file["path"] for file in whole["discarded"]] == paths
    assert all(file["bytes"] > 0 for file in whole["discarded"])
    # What a step copies: the batch, activations and their gradients, and what a budget sends away.
    activations = 256 * 512 * 4
    assert whole["copied"] == {
        "cpu->sim:0": activations, "sim:0->sim:1": activations, "sim:1->sim:0": activations
    }  # fmt: skip
    left = pressed["step"]["spill"] + pressed["step"]["spare"]
    assert sum(n for link, n in pressed["copied"].items() if "->cpu" in link) == left
    for i, peak in enumerate(whole["peak_bytes"]):
        assert max(held for _, held in whole["memory"][f"sim:{i}"]) == peak
    assert "train.py on devices without values" in printed
    assert f"60% of the peak  {size(spilled(pressed)):>16}" in printed
    assert "Figures are of step 3, and of step 8 where bytes leave." in printed
    assert f"Not written: {folder}/out/0.pt" in printed


# ---- scripts of other kinds, each on one device


def configure(folder, script, steps=3, settled=3, memory=64 * MIB, timeout=120, arguments=()):
    path = folder / "script.py"
    path.write_text(script)
    job = {"script": str(path), "arguments": [*arguments], "steps": steps, "settled": settled}
    return configured(job, Machine("a device", 1, None, memory), timeout, None)


def test_calls_of_the_outermost_module_are_steps_without_an_optimizer(tmp_path):
    found = configure(
        tmp_path,
        """
import torch, managed
from torch import nn
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
model = managed.ManagedModule.from_module(model).cuda()
loader = torch.utils.data.DataLoader(torch.randn(64, 256), batch_size=8, num_workers=1)
criterion = nn.MSELoss()  # has no parameters: no step
with torch.no_grad():
    for n, batch in enumerate(loader):
        y = model(batch.as_subclass(managed.ManagedTensor))
        criterion(y, y)
        torch.save(model.state_dict(), "model.pt")  # has no values
        if criterion(y, y).item() > 0:
            raise AssertionError("unknown numbers are 0")
        assert n < 3
""",
    )
    assert (found["steps"], found["ended"], found.get("error")) == (3, True, None)
    assert found["step"]["spill"] == 0
    assert found["unknown"] == ["script.py:13"]
    assert found["step"]["elapsed_s"] > 0
    assert found["discarded"] == [{"path": f"{os.getcwd()}/model.pt", "bytes": 0}]


def test_what_does_not_fit_says_so(tmp_path):
    found = configure(
        tmp_path,
        """
import torch, managed
managed.ManagedModule.from_module(torch.nn.Linear(4096, 8192)).cuda()
""",
    )
    assert found["steps"] == 0
    assert "134217728" in found["does_not_fit"] or "128" in found["does_not_fit"]
    assert "error" not in found


def test_a_script_that_fails_names_its_line_and_what_it_said(tmp_path):
    found = configure(
        tmp_path,
        """
import torch, managed
print("about to fail")
x = torch.randn(1000, device="sim:0")
x[x > 0]
""",
    )
    assert found["error"].startswith("script.py:5: NotImplementedError: the shape of what")
    assert found["output"].startswith("about to fail\nTraceback")


def test_a_script_may_end_before_its_steps_and_reset_counters(tmp_path):
    found = configure(
        tmp_path,
        """
import torch, managed, sys
managed.simulate(4, "1GiB", values=True)  # the plan has other devices
large = torch.nn.Linear(1024, 1024)  # takes no memory of the host
assert large.weight.is_meta and not large.bias.is_meta
weight = large.weight
large.to("cpu").to(torch.float64).to("sim:0")
assert large.weight is weight and weight.device.type == "sim" and weight.nbytes == 8 << 20
managed.budget(0, "48MiB")
called = torch.nn.Sequential(torch.nn.Linear(1024, 1024))
called(torch.ones(1, 1024, device="sim:0"))
assert called[0].weight.device.type == "sim"
del large, called, weight
assert torch.sim.device_count() == 1
x = torch.ones(300).as_subclass(managed.ManagedTensor).to("sim:0")
managed.stats(reset=True)
w = torch.nn.Parameter(torch.randn(300, device="sim:0"))
optimizer = torch.optim.SGD([w])
(w * x).sum().backward()
optimizer.step()
sys.exit(0)
""",
    )
    assert (found["steps"], found["ended"]) == (1, False)
    assert "error" not in found
    biases = 1024 * 8 + 1024 * 4  # of double and of single precision
    assert found["all"]["links"] == {"cpu->sim:0": 1200 + biases}


def test_a_script_that_takes_too_long_is_ended(tmp_path):
    found = configure(tmp_path, "import time; time.sleep(600)", timeout=0.5)
    assert found["steps"] == 0
    assert found["error"] == "it was ended after 0.5 s; --timeout gives it more"


# ---- what is written


WRITING = PROGRAMS / "discarded_writes.py"


def test_what_is_written_goes_elsewhere_and_is_read_back(tmp_path, run_python):
    here, away = tmp_path / "here", tmp_path / "away"
    (here / "kept").mkdir(parents=True)
    away.mkdir()
    files = {"there.txt": "old", "gone.txt": "", "moved.txt": "moved"}
    files |= {"kept/a.txt": "a", "kept/b.txt": "b"}
    for name, content in files.items():
        (here / name).write_text(content)
    mode = (here / "there.txt").stat().st_mode
    printed = run_python(WRITING, here, away)
    left = {str(p.relative_to(here)): p.read_text() for p in here.rglob("*") if p.is_file()}
    assert left == files
    assert (here / "there.txt").stat().st_mode == mode
    assert printed.split() == [
        "again/back.txt", "again/deep/x.json", "link.txt", "made/deep/x.json", "made/moved.txt",
        "raw.bin", "there.txt",
    ]  # fmt: skip


# ---- what is asked


def test_devices_are_sizes_or_presets():
    assert read_machine("2x24GiB") == Machine("2x24GiB", 2, None, 24 * 2**30)
    assert read_machine("24GiB", "t4") == Machine("1x24GiB", 1, "t4", 24 * 2**30)
    memory = PRESETS["h100-sxm"].memory
    assert read_machine(" 4 X h100-sxm", "t4") == Machine("4xh100-sxm", 4, "h100-sxm", memory)
    for wrong, why in (
        ("", "is not like"),
        ("h200", "there is no preset 'h200'"),
        ("17x1GiB", "1 to 16 devices"),
        ("2x", "'2x' is no size"),
        ("1x0GiB", "cannot have 0 bytes"),
    ):
        with pytest.raises(ValueError, match=why):
            read_machine(wrong)


def test_budgets_are_parts_of_the_peak_or_bytes():
    assert budget_bytes("60%", 1000) == 600
    assert budget_bytes("8GiB", 1000) == 8 * 2**30
    for wrong in ("0%", "101%", "x%", "much"):
        with pytest.raises(ValueError, match=r"is no (part|size)"):
            budget_bytes(wrong, 1000)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["none.py"], "there is no script none.py"),
        ([__file__, "--devices", "h200"], "there is no preset 'h200'"),
        ([__file__, "--budgets", "200%"], "'200%' is no part of the peak"),
        ([__file__, "--steps", "0"], "0 steps are none"),
        ([__file__, "--json", "no/such/folder/x.json"], "there is no folder"),
        ([__file__, "--picture", "x.jpx"], "ends in no format of a picture"),
    ],
)
def test_what_makes_no_sense_is_said_at_once(arguments, why, capsys):
    assert main(["plan", *arguments]) == 2
    assert why in capsys.readouterr().err


def test_a_plan_that_cannot_be_made_has_status_1_and_leaves_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    script = tmp_path / "wrong.py"
    script.write_text("import subprocess\nsubprocess.Popen(['sleep', '600'])\nopen('none')\n")
    assert main(["plan", str(script), "--devices", "1x1GiB,t4"]) == 1
    captured = capsys.readouterr()
    assert "cannot be planned: wrong.py:3: FileNotFoundError" in captured.out
    assert "Traceback" in captured.err
    assert "1x1GiB" not in captured.out  # nothing else was tried
    assert [p.name for p in tmp_path.iterdir()] == ["wrong.py"]


# ---- what is told


def test_sizes_and_times_are_readable():
    told = [size(n) for n in (0, 3, 1024, 5 * MIB, 24 * 2**30, 3 * 2**40)]
    assert told == ["0", "3 B", "1.0 KiB", "5.0 MiB", "24.0 GiB", "3.0 TiB"]
    told = [duration(s) for s in (0, 5e-9, 7.67e-5, 0.212, 1.5, 2437.4)]
    assert told == ["0 ns", "5 ns", "76.7 us", "212 ms", "1.5 s", "2437 s"]
    assert table(["a", "b"], [["x", "10"], ["yy", "9"]]) == "a    b\nx   10\nyy   9"


def test_a_long_step_is_thinned_to_its_highest_points():
    steps = [(1000 + i, {"managed": i % 100, "other": 1}) for i in range(10_000)]
    points = _thinned(steps, 1000)
    assert len(points) == 400
    assert points[0] == [0, 25]
    assert max(held for _, held in points) == 100


def line(devices, **more):
    zero = dict.fromkeys(("spill", "spare", "drop", "restore", "copy"), 0)
    step = zero | {"elapsed_s": 0.1, "links": {}}
    return {
        "devices": devices, "count": 1, "speed": "T4", "memory_bytes": 16 * 2**30, "steps": 3,
        "budget_bytes": None, "peak_bytes": [10 * 2**30], "step": step, "all": step, "ended": True,
        "refused": True, "discarded": [], "unknown": [],
    } | more  # fmt: skip


def test_the_tables():
    spills = dict.fromkeys(("spill", "spare", "drop", "restore", "copy"), 2**30)
    spills |= {"elapsed_s": 0.25, "links": {"cpu->sim:0": 2**30}}
    found = [
        line("room for all", refused=False, unknown=["a.py:3"]),
        line("1xt4", discarded=[{"path": f"/{i}.pt", "bytes": 0} for i in range(7)]),
        line("1xt4", budget_bytes=6 * 2**30, step=spills, all=spills, steps=8),
        line("1xt4", budget_bytes=4 * 2**30, steps=0, ended=False, does_not_fit="no room"),
        line("1x1GiB", steps=1, ended=False, step=spills, all=spills),
        line("1x2GiB", steps=0, ended=False),
        line("1x4GiB", steps=0, ended=False, error="a.py:1: KeyError: 3"),
        line("1x8GiB", all=spills),
    ]
    expected = """
a.py on devices without values

devices             peak of the fullest  leaves in a step    step
room for all (T4)              10.0 GiB                 0  100 ms  fits
1xt4 (T4)          10.0 GiB of 16.0 GiB                 0  100 ms  fits
1x1GiB (T4)        10.0 GiB of 16.0 GiB           3.0 GiB  250 ms  spills; the script ended after 1 step
1x2GiB (T4)                                                        made no step: no optimizer and no module was called
1x4GiB (T4)                                                        cannot be planned: a.py:1: KeyError: 3
1x8GiB (T4)        10.0 GiB of 16.0 GiB                 0  100 ms  spills, though not in this step

devices        link  bytes in a step
1x1GiB   cpu->sim:0          1.0 GiB

devices  budget of each                   leaves in a step    step   price
1xt4            6.0 GiB  60% of the peak           3.0 GiB  250 ms  2.50 x  spills
1xt4            4.0 GiB  40% of the peak                                    does not fit: no room

Figures are of step 3, and of step 8 where bytes leave. Time is virtual.

Not written: /0.pt, /1.pt, /2.pt, /3.pt, /4.pt and 2 more.

This kernel cannot refuse writes (it has no Landlock): what other programs or libraries in C wrote, if the script uses any, was written.

Asked for numbers that nobody knows, and got 0: a.py:3.
"""  # noqa: E501
    plan = Plan(script="/x/<a>.py", configurations=found)
    assert repr(plan) == text(plan) == expected.strip().replace("a.py on", "<a>.py on")
    page = read(plan)  # each cell stands there, too, and nothing is run
    for words in re.split(r"\s{2,}|\n", repr(plan)):
        assert " ".join(words.split()) in page
    assert plan._repr_html_().count('managed-bar"') == 5
    assert plan._repr_html_() in document(plan)
    assert "color-scheme" in document(plan)
