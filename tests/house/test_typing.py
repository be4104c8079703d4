"""The types: stubs match the compiled module, and checkers see a user's program as we mean it."""

import ast
import inspect
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from support.paths import ROOT, TESTS

import managed
from managed import _C

PACKAGE = Path(managed.__file__).parent
EXAMPLE = TESTS / "typing" / "example.py"
MODULE_FURNITURE = {"__doc__", "__file__", "__loader__", "__name__", "__package__", "__spec__"}
TREE = ast.parse((PACKAGE / "_C.pyi").read_text())


def expected():
    """(line, type) of each reveal_type, from the comment beside it."""
    found = re.compile(r"reveal_type\(.*\)  # (.+)$")
    lines = enumerate(EXAMPLE.read_text().splitlines(), start=1)
    return [(n, m[1]) for n, line in lines if (m := found.search(line))]


def bare(shown):
    """A revealed type without module names, in today's spelling."""
    shown = re.sub(r"\b(?:[A-Za-z_]\w*\.)+", "", shown)
    return re.sub(r"\bdef \(.*", "", shown).strip()


# ---- the stub


def stub_names(body):
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign):
            yield node.target.id


def public(names):
    return {n for n in names if not n.startswith("_")}


def test_the_stub_has_every_name_of_the_module():
    assert public(stub_names(TREE.body)) == public(set(vars(_C)) - MODULE_FURNITURE)


@pytest.mark.parametrize("name", ["DeviceManager", "Reservation", "Engine"])
def test_the_stub_has_every_member_of_the_class(name):
    node = next(n for n in TREE.body if isinstance(n, ast.ClassDef) and n.name == name)
    assert public(stub_names(node.body)) == public(vars(getattr(_C, name)))


def parameters(node):
    spec = node.args
    names = [a.arg for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]
    return names, len(spec.posonlyargs), len(spec.defaults)


def shape(function):
    found = inspect.signature(function).parameters.values()
    positional = sum(p.kind is p.POSITIONAL_ONLY for p in found)
    optional = sum(p.default is not p.empty for p in found)
    return [p.name for p in found], positional, optional


FUNCTIONS = [n for n in TREE.body if isinstance(n, ast.FunctionDef)]


@pytest.mark.parametrize("node", FUNCTIONS, ids=[n.name for n in FUNCTIONS])
def test_signatures_and_docstrings(node):
    function = getattr(_C, node.name)
    assert shape(function) == parameters(node)
    assert function.__doc__


def test_methods_of_device_manager():
    node = next(n for n in TREE.body if isinstance(n, ast.ClassDef) and n.name == "DeviceManager")
    for method in ("log", "send", "find_device", "cuda"):
        stub = next(n for n in node.body if getattr(n, "name", "") == method)
        real = inspect.signature(getattr(_C.DeviceManager, method))
        assert list(real.parameters) == [a.arg for a in stub.args.args]


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.slow
def test_stubtest_finds_no_difference(tmp_path):
    """Every stub against the module that was built: names, kinds of parameters, defaults."""
    pytest.importorskip("mypy")
    stubs = [p.stem for p in sorted(PACKAGE.glob("*.pyi"))]
    modules = [f"managed.{name}" for name in stubs if find_spec(f"managed.{name}")]
    assert {"managed._C", "managed._sim"} <= {*modules}
    for name in ("managed._cuda", "managed._virtual_gpu"):
        assert (name in modules) == (torch.version.cuda is not None)
    settings = tmp_path / "mypy.ini"
    settings.write_text(f"[mypy]\ncache_dir = {tmp_path}\n")
    command = [sys.executable, "-m", "mypy.stubtest", "--mypy-config-file", str(settings)]
    # Mypy refuses to run where its own modules lie, beside a package that is installed.
    folder = ROOT if PACKAGE.parent == ROOT else tmp_path
    done = subprocess.run(
        [*command, *modules], cwd=folder, capture_output=True, text=True, check=False
    )
    told = f"Success: no issues found in {len(modules)} modules\n"
    assert (done.stdout, done.returncode) == (told, 0), done.stdout + done.stderr


# ---- checkers


@pytest.mark.slow
def test_mypy_is_clean_and_reveals_what_we_mean(tmp_path):
    pytest.importorskip("mypy")
    root = PACKAGE.parent
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary"]
    command += ["--cache-dir", str(tmp_path), "--python-version", "3.10"]
    files = [str(EXAMPLE), *sorted(str(p) for p in PACKAGE.glob("*.py"))]
    if root.name == "site-packages":  # an installed package is checked as its users see it
        root, files = tmp_path, files[:1]
    done = subprocess.run([*command, *files], cwd=root, capture_output=True, text=True, check=False)
    assert "error:" not in done.stdout, done.stdout
    shown = re.findall(r'example\.py:(\d+): note: Revealed type is "(.*)"', done.stdout)
    assert [(int(n), bare(t)) for n, t in shown] == expected()


@pytest.mark.slow
def test_pyright_is_clean_and_reveals_what_we_mean():
    pytest.importorskip("basedpyright")
    command = [sys.executable, "-m", "basedpyright", "--outputjson"]
    command += ["--pythonpath", sys.executable, str(EXAMPLE)]
    done = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert [d["message"] for d in found if d["severity"] == "error"] == []
    pattern = re.compile(r'Type of ".*" is "(.*)"', re.DOTALL)
    shown = [(d["range"]["start"]["line"] + 1, pattern.fullmatch(d["message"])) for d in found]
    assert [(n, bare(m[1])) for n, m in shown if m] == expected()
