"""The examples do what their first lines promise, each in a fresh interpreter.

They run on simulated devices even where there is a GPU, so that every figure can be exact.
"""

import difflib
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from support import interpreters
from support.paths import PROGRAMS, ROOT

EXAMPLES = ROOT / "examples"
DEVICES = ("sim:0", "sim:1", "sim:2", "sim:3")
SCRIPTS = sorted(
    p.name for p in EXAMPLES.glob("*.py") if p.name not in ("fault.py", "fault_report.py")
)

# What the fault example must hold at its full size; prints one JSON object.
MEASURE = PROGRAMS / "fault_measured.py"


def run(*arguments: str) -> str:
    """Output of `python -W error ...`, run where neither a GPU nor a display is to be seen."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MANAGED_")}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    # In that folder no source tree stands in front of an installed package.
    done = interpreters.run(arguments, cwd=EXAMPLES, env=environment, timeout=300)
    assert done.returncode == 0, f"{arguments[-1][-200:]}\n{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    return done.stdout


def example(name: str, *arguments: str) -> str:
    return run(str(EXAMPLES / name), *arguments)


def panels(path: Path) -> list[np.ndarray]:
    """The four quarters of the picture, as (rows, columns, 3) values from 0 to 1."""
    image = pytest.importorskip("matplotlib.image").imread(path)[..., :3]
    rows, columns = image.shape[0] // 2, image.shape[1] // 2
    return [image[r : r + rows, c : c + columns] for r in (0, rows) for c in (0, columns)]


def test_fault_elements_are_those_of_the_surface(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forms, written in map coordinates, give the matrices of the triangles in space.

    Linear elements on triangles in space: mass area / 12 (1 + delta_ij), stiffness by the
    cotangents of the angles (Pinkall and Polthier 1993).
    """
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import fault
    import skfem

    height = np.random.default_rng(0).normal(size=(5, 6))
    mesh = fault.tessellate(height, (3.0, 2.0))
    basis = skfem.Basis(mesh, skfem.ElementTriP1())
    field = basis.interpolate(height.ravel())
    mass, stiffness = np.zeros((2, 30, 30))
    points = np.vstack([mesh.p, height.ravel()]).T
    for triangle in mesh.t.T:
        corners = points[triangle]
        area = np.linalg.norm(np.cross(corners[1] - corners[0], corners[2] - corners[0])) / 2
        mass[np.ix_(triangle, triangle)] += area / 12 * (1 + np.eye(3))
        edges = corners[[2, 0, 1]] - corners[[1, 2, 0]]  # opposite to each corner
        stiffness[np.ix_(triangle, triangle)] += edges @ edges.T / (4 * area)
    for form, expected in ((fault.mass, mass), (fault.stiffness, stiffness)):
        np.testing.assert_allclose(
            form.assemble(basis, height=field).toarray(), expected, atol=1e-12
        )


@pytest.mark.slow
def test_fault_at_full_size(subtests: pytest.Subtests) -> None:
    """What is measured in one process: one test, so that it is run once however many workers."""
    measured = json.loads(run(str(MEASURE), str(EXAMPLES)))
    placements, held = measured["placements"], measured["held"]

    with subtests.test("there is something to solve, and every node of the surface is kept once"):
        assert len(measured["unknowns"]) == 128
        assert sum(measured["unknowns"]) >= 100_000
        assert measured["kept"] == 344 * 403
        assert max(measured["unknowns"]) > 3 * min(measured["unknowns"])
        assert any(measured["dense"])
        assert not all(measured["dense"])

    with subtests.test("every patch agrees with scipy"):
        assert len(measured["errors"]) == 128
        assert max(measured["errors"]) <= 1e-9

    with subtests.test("the heaviest device has at most a tenth more than the mean"):
        by_device = dict.fromkeys(DEVICES, 0)
        for name, size in zip(placements[0], measured["bytes"], strict=True):
            by_device[name] += size
        assert max(by_device.values()) <= 1.10 * sum(by_device.values()) / 4
        assert held[0] == list(by_device.values())  # torch counts what we count, to the byte
        assert max(held[0]) <= 1.10 * sum(held[0]) / 4

    with subtests.test("20 runs in a row, and the solving ones, have the same placement"):
        assert len(placements) == 22
        assert all(placement == placements[0] for placement in placements)
        assert all(bytes_ == held[0] for bytes_ in held)
        assert measured["left"] == [0, 0, 0, 0]

    with subtests.test("4 and 16 threads give the same numbers"):
        assert measured["same"] == [True] * 128


@pytest.mark.slow
def test_fault_prints_a_table_and_draws_four_panels(tmp_path: Path) -> None:
    text = example("pde_fault.py", "--devices", "4", "--out", str(tmp_path))
    rows = re.findall(r"^ +(sim:\d) +(\d+) +(\d+) +([\d,]+) +([\d,]+) +[\d.]+%$", text, re.M)
    assert tuple(row[0] for row in rows) == DEVICES
    patches, dense, unknowns, size = (
        [int(row[i].replace(",", "")) for row in rows] for i in (1, 2, 3, 4)
    )
    assert sum(patches) == 128
    assert 0 < sum(dense) < 128
    assert max(size) <= 1.10 * sum(size) / 4
    assert f"{sum(unknowns):,} unknowns in 128 systems" in text
    error = re.search(r"relative error of a patch against scipy: (\S+)$", text, re.M)
    assert error is not None
    assert float(error[1]) <= 1e-9
    apart = re.search(r"distance to one system for the whole surface: (\S+) m$", text, re.M)
    assert apart is not None
    assert float(apart[1]) <= 0.1

    for panel in panels(tmp_path / "pde_fault.png"):
        assert panel.min() < 0.3
        assert panel.max() > 0.9
        assert panel.var() > 0.01


@pytest.mark.slow
def test_fault_runs_at_another_size(tmp_path: Path) -> None:
    """One patch on a device that is too small for it goes to the host, and is solved there."""
    text = example("pde_fault.py", "--patches", "1", "--memory", "1MiB", "--out", str(tmp_path))
    assert re.search(r"^ +cpu +1 +0 +138,632 ", text, re.M)
    assert (tmp_path / "pde_fault.png").stat().st_size > 10_000


@pytest.mark.slow
def test_fault_single_is_the_same_for_one_device(tmp_path: Path) -> None:
    text = example("pde_fault_single.py", "--patches", "80", "--out", str(tmp_path))
    assert re.search(r"^ +cpu +80 ", text, re.M)
    assert (tmp_path / "pde_fault.png").stat().st_size > 10_000


def test_fault_single_differs_by_a_few_lines() -> None:
    """Comments, blank lines and the first docstring aside, it is the diff of the quickstart."""

    def code(name: str) -> list[str]:
        text = (EXAMPLES / name).read_text().split('"""', 2)[2]
        return [line for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]

    single, everywhere = code("pde_fault_single.py"), code("pde_fault.py")
    diff = list(difflib.ndiff(single, everywhere))
    assert [line[2:].strip() for line in diff if line[0] == "-"] == [
        'device = "cuda" if torch.cuda.is_available() else "cpu"',
        "return [fault.as_tensor(p).to(device) for p in patches]",
        "args = fault.arguments(__doc__)",
    ]
    managed = "as_subclass(ManagedTensor).cuda(disperse=True)"
    assert [line[2:].strip() for line in diff if line[0] == "+"] == [
        "import managed",
        "from managed import ManagedTensor",
        f"return [fault.as_tensor(p).{managed} for p in patches]",
        "args = fault.arguments(__doc__, simulated=True)",
        "if not torch.cuda.is_available():",
        "managed.simulate(devices=args.devices, memory=args.memory)",
    ]


@pytest.mark.slow
def test_many_models(subtests: pytest.Subtests) -> None:
    text = example("many_models.py", "--steps", "40", "--threads", "8")
    rows = [line.split() for line in text.split("\n\n")[0].splitlines()[1:]]
    _, data, _, _, devices, steps, losses, sizes = zip(*rows, strict=True)

    with subtests.test("a hundred models, shared out"):
        assert len(rows) == 100
        held = dict.fromkeys(DEVICES, 0)
        for device, size in zip(devices, sizes, strict=True):
            held[device] += int(size.replace(",", ""))
        assert max(held.values()) <= 1.10 * sum(held.values()) / 4
        summary = re.findall(r"^ +(sim:\d) +\d+ +[\d,]+ +([\d,]+)$", text, re.M)
        assert {name: int(size.replace(",", "")) for name, size in summary} == held

    with subtests.test("they learn, at different speeds"):
        assert {int(n) for n in steps} == {20, 30, 40}
        best = {
            name: min(float(x) for x, d in zip(losses, data, strict=True) if d == name)
            for name in data
        }
        assert best["digits"] < 0.2 < np.log(10)  # the loss of a guess
        assert best["diabetes"] < 0.7 < 1  # the variance of what is predicted

    with subtests.test("the number of threads changes nothing"):
        assert example("many_models.py", "--steps", "40", "--threads", "2") == text


def test_mixed_devices() -> None:
    text = example("mixed_devices.py", "--steps", "60")
    assert "is on sim:0: the fewest bytes had to travel" in text
    assert "largest difference to the same on the host: 0.0e+00" in text
    assert "leaves small on sim:2: what is written stays" in text
    losses = [float(loss) for loss in re.findall(r"loss (\S+) on sim:2", text)]
    assert len(losses) == 2
    assert losses[1] < losses[0] / 5
    for layer, device in (("0.weight", "sim:0"), ("2.bias", "sim:1"), ("4.weight", "sim:2")):
        assert f" {layer} and its gradient on {device}" in text
    assert "with last pinned it is on sim:2" in text
    assert re.search(r"with both pinned: .*sim:0.*sim:2", text)
    assert re.search(r"move cpu -> sim:\d 1024 bytes.*: it has the least in use", text)
    assert re.search(r"copy sim:\d -> sim:2 1024 bytes aten::add", text)
    assert re.search(r"pin sim:\d 1024 bytes", text)


@pytest.mark.slow
def test_pipeline(tmp_path: Path, subtests: pytest.Subtests) -> None:
    pytest.importorskip("transformers")
    text = example("pipeline.py", "--steps", "3", "--out", str(tmp_path))
    # GPT-2's head is tied to its embedding, whose gradient is summed in another order.
    for program, tolerance in (("resnet", 0), ("gpt2", 1e-9)):
        said = text.split(f"# {program}\n")[1].split("\n# ")[0]
        with subtests.test("the losses are those of the host", program=program):
            found, wanted = zip(
                *re.findall(r"^step \d: loss (\S+), on the host (\S+)$", said, re.M), strict=True
            )
            assert len(found) == 3
            assert found == wanted
            assert float(found[2]) < float(found[0])
            apart = re.search(r"^largest difference: (\S+)$", said, re.M)
            assert apart is not None
            assert float(apart[1]) <= tolerance

        with subtests.test("it prints a plan of four stages", program=program):
            assert tuple(re.findall(r"^(sim:\d)  \S", said, re.M)) == DEVICES
            assert "\n1f1b, 8 parts: a step takes " in said

        with subtests.test("devices work at once", program=program):
            faster = re.search(r"^the pipeline is (\S+) times as fast$", said, re.M)
            assert faster is not None
            assert float(faster[1]) > 2
            for step in ("in_turns", "pipeline"):
                assert (tmp_path / f"{program}_{step}.png").stat().st_size > 10_000


@pytest.mark.slow
def test_data_parallel(tmp_path: Path, subtests: pytest.Subtests) -> None:
    pytest.importorskip("transformers")
    text = example("data_parallel.py", "--steps", "3", "--out", str(tmp_path))
    number = r"^ +(\d) +([\d.]+) +([\d.]+) ms +([\d,]+) +([\d.]+) MiB$"
    for program in ("cnn", "gpt2"):
        said = text.split(f"# {program}\n")[1].split("\n# ")[0]
        rows = re.findall(number, said, re.M)
        assert [row[0] for row in rows] == ["1", "2", "4"]
        _, losses, times, sent, peaks = (
            [float(cell.replace(",", "")) for cell in column] for column in zip(*rows, strict=True)
        )
        with subtests.test("the losses are those of the host", program=program):
            assert len(set(losses)) == 1
            apart = re.search(r"^largest difference to the losses on the host: (\S+)$", said, re.M)
            assert apart is not None
            assert float(apart[1]) <= 1e-9

        with subtests.test("devices work at once, on a part of the batch each", program=program):
            assert times[0] > 1.5 * times[1]
            assert times[0] > 2 * times[2]
            assert peaks[0] > 1.3 * peaks[1]
            assert peaks[1] > 1.3 * peaks[2]
            assert sent[0] == 0
            assert 0 < sent[1] < sent[2]

    with subtests.test("it draws a step"):
        assert (tmp_path / "data_parallel.png").stat().st_size > 10_000

    with subtests.test("it prints where the parameters are"):
        assert tuple(re.findall(r"^(sim:\d) +\d+ ", text, re.M)) == DEVICES
        balance = re.search(r"^the fullest device has (\S+) times an equal share;", text, re.M)
        assert balance is not None
        assert float(balance[1]) < 1.1


@pytest.mark.slow
def test_two_allocators(tmp_path: Path, subtests: pytest.Subtests) -> None:
    pytest.importorskip("matplotlib")
    text = example("two_allocators.py", "--out", str(tmp_path))
    block = 16 << 20
    number = r" +([\d,]+) +([\d,]+) +([\d,]+)$"
    rows = {
        name.strip(): (result, *(int(n.replace(",", "")) for n in numbers))
        for name, result, *numbers in re.findall(r"^(\S.*?)  +(\w+)" + number, text, re.M)
    }
    part, missing = 24 * block, (24 + 24 - 40) * block
    with subtests.test("either the program fails, or a tensor leaves, or the pool gives"):
        assert rows == {
            "plain torch": ("OutOfMemoryError", 0, part, part),
            "managed": ("fits", missing, part, part),
            "managed, a holder": ("fits", 0, part, part - missing),
            "give_back()": ("fits", missing, 0, 0),
        }

    with subtests.test("the table of holders has the same sizes"):
        tables = {
            run: re.findall(r"^(\w+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$", said, re.M)
            for run, said in re.findall(r"^# (.+)\n((?:.+\n)+)", text, re.M)
        }
        unasked = [("torch", "256.0", *["0.0"] * 3), ("others", "384.0", *["0.0"] * 3)]
        assert tables == {
            "plain torch": unasked,
            "managed": unasked,
            "managed, a holder": [
                ("torch", "384.0", *["0.0"] * 3),
                ("frames", "0.0", "256.0", "128.0", "128.0"),
                ("others", *["0.0"] * 4),
            ],
            "give_back()": unasked,
        }

    with subtests.test("what the library got comes back"):
        moved = f"{missing:,} bytes given, and {missing:,} came back later; same bits: True"
        assert f"\n{moved}\n" in text

    with subtests.test("it draws the runs"):
        assert (tmp_path / "two_allocators.png").stat().st_size > 10_000


def test_every_script_is_tested() -> None:
    assert SCRIPTS == [
        "data_parallel.py",
        "many_models.py",
        "mixed_devices.py",
        "pde_fault.py",
        "pde_fault_single.py",
        "pipeline.py",
        "two_allocators.py",
    ]
