"""What the documentation shows, works: its Python blocks are run, a page a process, in order.

A fence marked `python` is run; text, console, diff and the like are not. Warnings are errors, as
everywhere. Links between pages and to files of the repository must lead somewhere.
"""

import ast
import inspect
import re

import pytest
import torch
from support.fences import FENCE, blocks
from support.paths import ROOT
from torch.torch_version import TorchVersion

import managed

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
APART = [ROOT / "docs/recipes.md"]  # each of its blocks is a program: test_recipes.py
COMPARISON = ROOT / "docs/comparison.md"
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


def name(page):
    return str(page.relative_to(ROOT))


def test_there_are_pages_that_show_code():
    assert sum(1 for page in PAGES for _ in blocks(page, "python")) > 0


RUNNER = """
    import json, sys
    page, blocks = json.loads(sys.stdin.read())
    space = {"__name__": "__main__"}
    for line, body in blocks:
        exec(compile("\\n" * line + body, page, "exec"), space)
"""


RUN = [p for p in PAGES if p not in APART and any(blocks(p, "python"))]
LONG = ("docs/memory.md", "docs/environment.md")


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=pytest.mark.slow if name(p) in LONG else ()) for p in RUN],
    ids=map(name, RUN),
)
def test_code_of_the_page_runs(page, run_python):
    if name(page) == "docs/pipelines.md" and TorchVersion(torch.__version__) < "2.12":
        pytest.skip("it has no values, and torch has no meta kernel for layers of encoders")
    run_python(RUNNER, input=[name(page), list(blocks(page, "python"))])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    text = FENCE.sub("", page.read_text())
    broken = [
        target
        for target in LINK.findall(text)
        if not re.match(r"[a-z]+:", target) and not (page.parent / target).exists()
    ]
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_make_targets_that_are_named_exist(page):
    rules = re.findall(r"^([a-z][\w -]*):(?!=)", (ROOT / "Makefile").read_text(), re.M)
    targets = {target for rule in rules for target in rule.split()}
    told = set(re.findall(r"`make ([a-z-]+)`", page.read_text()))
    assert told <= targets | {"compat-"}, told - targets


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_tests_that_are_named_exist(page):
    """As `tests/test_x.py::test_y`, and `::test_z` for one more of the same file."""
    file = None
    for path, test in re.findall(r"`([\w/]*\.py)?::(test_\w+)", page.read_text()):
        file = path or file
        assert f"\ndef {test}(" in (ROOT / file).read_text(), f"{file}::{test}"


def test_make_docs_is_strict():
    """Warnings that --quiet does not show are not counted by --strict either."""
    (command,) = re.findall(r"mkdocs build .*", (ROOT / "Makefile").read_text())
    assert {"--strict"} == set(command.split()) & {"--strict", "--quiet", "-q"}


def test_measured_rows_of_the_comparison_are_those_of_the_page_that_a_script_writes():
    rows = re.findall(r"^\| .*(?:training|inference): .*\|$", COMPARISON.read_text(), re.M)
    assert len(rows) >= 10
    assert not set(rows) - set((ROOT / "docs/memory.md").read_text().splitlines())


# ---- the reference, which is made of docstrings

REFERENCE = (ROOT / "docs/reference.md").read_text()


def test_the_reference_has_every_public_name():
    shown = set(re.findall(r"^::: ([\w.]+)$", REFERENCE, re.M))
    shown |= set(re.findall(r"^      heading: ([\w.]+)$", REFERENCE, re.M))
    within = {
        "managed.debug": "managed.debug.torture",
        "managed.OutOfMemoryError": "managed.errors",
    }
    wanted = {f"managed.{n}" for n in managed.__all__} | {"managed.sim", "managed.integrations"}
    assert not {within.get(name, name) for name in wanted} - shown


def sources():
    """What the reference renders: functions and classes with their docstrings, by file."""
    for file in [*sorted((ROOT / "managed").glob("[a-z_]*.py")), ROOT / "managed/_C.pyi"]:
        yield file.name, ast.parse(file.read_text())


def arguments(function):
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return [a.arg for a in every if a.arg not in ("self", "cls")]


def test_docstrings_name_the_arguments_that_there_are():
    """A section of arguments has all of them, in order, and no others."""
    checked = 0
    for file, tree in sources():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef):
                continue
            listed = re.search(r"\nArgs:\n(.*?)(\n\S|\Z)", ast.get_docstring(node) or "", re.S)
            if not listed:
                continue
            made = next(
                n
                for n in ([node] if isinstance(node, ast.FunctionDef) else node.body)
                if isinstance(n, ast.FunctionDef) and n.name in (node.name, "__init__", "__new__")
            )
            named = re.findall(r"^    (\w+): ", listed[1], re.M)
            assert named == arguments(made), f"{file}: {node.name}"
            checked += 1
    assert checked >= 15


def test_functions_of_the_reference_tell_their_arguments():
    """Whoever is callable and public tells what its arguments are."""
    for name in managed.__all__:
        found = getattr(managed, name)
        if inspect.isfunction(found) and inspect.signature(found).parameters:
            assert "Args:\n" in (found.__doc__ or ""), name


def test_the_stub_of_the_manager_is_the_compiled_one():
    """The reference renders the stub, whose arguments and members are those that are compiled."""
    tree = next(tree for file, tree in sources() if file == "_C.pyi")
    stub = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "DeviceManager")
    functions = [n for n in stub.body if isinstance(n, ast.FunctionDef)]
    attributes = {n.target.id for n in stub.body if isinstance(n, ast.AnnAssign)}
    public = {n for n in vars(managed.DeviceManager) if not n.startswith("_")}
    assert {n.name for n in functions if n.name != "__new__"} | attributes == public
    for function in functions:
        compiled = getattr(managed.DeviceManager, function.name)
        if callable(compiled) and function.name != "__new__":
            expected = [n for n in inspect.signature(compiled).parameters if n != "self"]
            assert arguments(function) == expected, function.name
            assert ast.get_docstring(function), function.name


def test_the_pictures_are_what_their_script_draws(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    from pictures import pictures

    drawn = dict(pictures())
    assert len(drawn) == 10  # five, for light and for dark pages
    for name, text in drawn.items():
        assert (ROOT / "docs/img" / name).read_text() == text, "python tools/pictures.py"
