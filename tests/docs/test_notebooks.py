"""The notebooks of examples/ run as people run them: in a kernel of Jupyter, cell by cell.

What is stored beside their cells is what a run gives, without machine paths and small enough to be
looked at on a page: the test asks that, and that each cell runs. Numbers are the notebooks' own to
check: they have assertions.
"""

import base64
import os

import pytest
from support.paths import ROOT, package_folder

nbformat = pytest.importorskip("nbformat")
client = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
KINDS = {"text/plain", "text/html", "image/png"}


def name(path):
    return path.stem


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == [
        "a_model_that_does_not_fit",
        "four_devices_on_a_laptop",
        "worlds_on_a_torus",
    ]


def shown(cell):
    """Kinds of what a cell shows; a stream is text."""
    return [sorted(o.data) if "data" in o else [o.output_type] for o in cell.outputs]


@pytest.fixture
def kernel(monkeypatch):
    """Kernels see no GPU, no setting of this run, and the package, and have few threads."""
    for variable in [v for v in os.environ if v.startswith("MANAGED_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = os.pathsep.join([str(package_folder()), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_a_notebook_runs(path, kernel):
    stored, notebook = (nbformat.read(path, as_version=4) for _ in range(2))
    for cell in code(notebook):
        cell.outputs, cell.execution_count = [], None
    client.NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(EXAMPLES)}},
    ).execute()  # CellExecutionError for the first cell that fails
    for before, after in zip(code(stored), code(notebook), strict=True):
        assert shown(after) == shown(before), after.source
        errors = [o.text for o in after.outputs if o.get("name") == "stderr"]
        assert errors == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_what_is_stored_can_be_looked_at(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert all(cell.execution_count == i for i, cell in enumerate(code(notebook), start=1))
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {
        "execute_result",
        "display_data",
        "stream",
    }
    pictures = 0
    for output in outputs:
        data = output.get("data", {})
        assert set(data) <= KINDS
        assert "<script" not in data.get("text/html", "")
        assert "/tmp" not in output.get("text", "") + str(data.get("text/plain"))
        if "image/png" in data:
            picture = base64.b64decode(data["image/png"])
            assert picture[:4] == b"\x89PNG"
            assert len(picture) < 100_000
            pictures += 1
    assert pictures >= 1
    assert path.stat().st_size < 300_000
    text = path.read_text()
    assert "/home/" not in text
    assert str(EXAMPLES.parent) not in text
