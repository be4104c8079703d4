"""The examples do what their first lines promise, each in a fresh interpreter.

They run on simulated devices even where there is a GPU, so that every figure can be exact.
"""

import difflib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(
    p.name for p in EXAMPLES.glob("*.py") if p.name not in ("fault.py", "fault_report.py")
)

# What the fault example must hold at its full size; prints one JSON object.
MEASURE = """
import gc, json, torch
import fault, pde_fault
import managed

torch.set_num_threads(1)
managed.simulate(devices=4, memory="512MiB")
patches = fault.cut(fault.load(), 128)

placements, held = [], []
for _ in range(20):
    matrices = pde_fault.place(patches)
    placements.append([str(m.device) for m in matrices])
    held.append([torch.sim.memory_allocated(i) for i in range(4)])
    del matrices
    gc.collect()
left = [torch.sim.memory_allocated(i) for i in range(4)]

devices, four = pde_fault.solve(patches, threads=4)
again, sixteen = pde_fault.solve(patches, threads=16)
print(json.dumps({
    "unknowns": [p.rhs.size for p in patches],
    "kept": sum(p.rows.stop * p.columns.stop - p.rows.start * p.columns.stop
                - p.rows.stop * p.columns.start + p.rows.start * p.columns.start for p in patches),
    "dense": [p.dense for p in patches],
    "bytes": [p.nbytes for p in patches],
    "placements": placements + [devices, again],
    "held": held,
    "left": left,
    "errors": fault.errors(patches, four),
    "same": [a.tobytes() == b.tobytes() for a, b in zip(four, sixteen, strict=True)],
}))
"""


def run(*arguments: str) -> str:
    """Output of `python -W error ...`, run where neither a GPU nor a display is to be seen."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MANAGED_")}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
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


@pytest.fixture(scope="module")
def measured() -> dict:
    return json.loads(run("-c", f"import sys; sys.path.insert(0, {str(EXAMPLES)!r})\n{MEASURE}"))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    out = tmp_path_factory.mktemp("demo")
    return example("pde_fault.py", "--devices", "4", "--out", str(out)), out / "pde_fault.png"


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
def test_fault_solves_every_patch(measured: dict) -> None:
    assert len(measured["unknowns"]) == 128
    assert sum(measured["unknowns"]) >= 100_000
    assert measured["kept"] == 344 * 403  # every node of the surface once
    assert len(measured["errors"]) == 128
    assert max(measured["errors"]) <= 1e-9


@pytest.mark.slow
def test_fault_patches_are_small_and_large(measured: dict) -> None:
    assert any(measured["dense"])
    assert not all(measured["dense"])
    assert max(measured["unknowns"]) > 3 * min(measured["unknowns"])


@pytest.mark.slow
def test_fault_is_balanced(measured: dict) -> None:
    """The heaviest device holds at most a tenth more than the mean, by our count and torch's."""
    by_device: dict[str, int] = {}
    for name, size in zip(measured["placements"][0], measured["bytes"], strict=True):
        by_device[name] = by_device.get(name, 0) + size
    assert sorted(by_device) == ["sim:0", "sim:1", "sim:2", "sim:3"]
    assert max(by_device.values()) <= 1.10 * sum(by_device.values()) / 4
    for held in measured["held"]:
        assert max(held) <= 1.10 * sum(held) / 4
        assert sum(held) >= sum(measured["bytes"])


@pytest.mark.slow
def test_fault_is_placed_the_same_every_time(measured: dict) -> None:
    assert len(measured["placements"]) == 22
    assert all(placement == measured["placements"][0] for placement in measured["placements"])
    assert all(held == measured["held"][0] for held in measured["held"])
    assert measured["left"] == [0, 0, 0, 0]


@pytest.mark.slow
def test_fault_has_the_same_numbers_from_4_and_16_threads(measured: dict) -> None:
    assert measured["same"] == [True] * 128


@pytest.mark.slow
def test_fault_prints_a_table(demo: tuple[str, Path], measured: dict) -> None:
    text, _ = demo
    rows = re.findall(r"^ +(sim:\d) +(\d+) +(\d+) +([\d,]+) +([\d,]+) +[\d.]+%$", text, re.M)
    assert [row[0] for row in rows] == ["sim:0", "sim:1", "sim:2", "sim:3"]
    for name, patches, _, _, size in rows:
        mine = [
            b
            for b, d in zip(measured["bytes"], measured["placements"][0], strict=True)
            if d == name
        ]
        assert (int(patches), int(size.replace(",", ""))) == (len(mine), sum(mine))
    error = re.search(r"relative error of a patch against scipy: (\S+)$", text, re.M)
    assert error is not None
    assert float(error[1]) <= 1e-9
    apart = re.search(r"distance to one system for the whole surface: (\S+) m$", text, re.M)
    assert apart is not None
    assert float(apart[1]) <= 0.1


@pytest.mark.slow
def test_fault_draws_four_panels(demo: tuple[str, Path]) -> None:
    _, path = demo
    for panel in panels(path):
        assert panel.min() < 0.3
        assert panel.max() > 0.9
        assert panel.var() > 0.01


def test_fault_runs_at_another_size(tmp_path: Path) -> None:
    """One patch on a device that is too small for it goes to the host, and is solved there."""
    text = example("pde_fault.py", "--patches", "1", "--memory", "1MiB", "--out", str(tmp_path))
    assert re.search(r"^ +cpu +1 +0 +138,632 ", text, re.M)
    assert (tmp_path / "pde_fault.png").stat().st_size > 10_000


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


@pytest.fixture(scope="module")
def models() -> str:
    return example("many_models.py", "--steps", "40", "--threads", "8")


def model_rows(text: str) -> list[list[str]]:
    """The columns of the first table: model, data, width, rate, device, steps, loss, bytes."""
    return [line.split() for line in text.split("\n\n")[0].splitlines()[1:]]


def test_many_models_do_not_depend_on_the_number_of_threads(models: str) -> None:
    assert models == example("many_models.py", "--steps", "40", "--threads", "2")


def test_many_models_are_shared_out(models: str) -> None:
    rows = model_rows(models)
    assert [int(row[0]) for row in rows] == list(range(100))
    held = dict.fromkeys(("sim:0", "sim:1", "sim:2", "sim:3"), 0)
    for row in rows:
        held[row[4]] += int(row[7].replace(",", ""))
    assert max(held.values()) <= 1.10 * sum(held.values()) / 4
    summary = re.findall(r"^ +(sim:\d) +\d+ +[\d,]+ +([\d,]+)$", models, re.M)
    assert {name: int(size.replace(",", "")) for name, size in summary} == held


def test_many_models_learn_at_different_speeds(models: str) -> None:
    steps = [int(row[5]) for row in model_rows(models)]
    assert min(steps) == 20
    assert max(steps) == 40
    digits = [float(row[6]) for row in model_rows(models) if row[1] == "digits"]
    diabetes = [float(row[6]) for row in model_rows(models) if row[1] == "diabetes"]
    assert min(digits) < 0.2 < np.log(10)  # the loss of a guess
    assert min(diabetes) < 0.7 < 1  # the variance of what is predicted


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
    assert re.search(r"move cpu -> sim:\d 1024 bytes.*: it has the most free memory", text)
    assert re.search(r"copy sim:\d -> sim:2 1024 bytes aten::add", text)
    assert re.search(r"pin sim:\d 1024 bytes", text)


def test_every_script_is_tested() -> None:
    assert SCRIPTS == ["many_models.py", "mixed_devices.py", "pde_fault.py", "pde_fault_single.py"]
