"""Writes docs/compatibility.md from the marks of tests/matrix; a test checks that they agree.

`@pytest.mark.row(feature, state="works", note="")` on a test makes a row. The marks are read, not
collected: their arguments are literals, so the page never depends on which tests were chosen.
"""

import ast
import inspect
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
HEAD = """\
# Compatibility

This page lists what works together with managed tensors and modules. `tools/compatibility.py`
writes it from the tests in `tests/matrix`: each row is proven by tests that compare with plain
PyTorch on the CPU, bit by bit unless the note says otherwise, on one simulated device and, if that
makes sense, over several. No row has run on CUDA devices, real or virtual. *Refused* means that the
operation raises that error and gives no wrong number. [Limitations](limitations.md) explains the
refusals.
"""


def row(name: str, state: str = "works", note: str = "") -> tuple[str, str, str]:
    """What a mark says; its arguments are the mark's."""
    if state != "works" and not re.fullmatch(r"refused: \S.*", state):
        raise SystemExit(f"{name}: a state is 'works' or 'refused: ERROR', not {state!r}")
    return name, re.sub(r"(?<=refused: )(\w+)", r"`\1`", state), note


def marks(test: ast.FunctionDef) -> tuple[list[ast.Call], bool]:
    """The row marks on a test, and whether it carries one that keeps it from running."""
    calls = [d for d in test.decorator_list if isinstance(d, ast.Call)]
    named = [ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in test.decorator_list]
    idle = {f"pytest.mark.{m}" for m in ("skip", "skipif", "xfail")} & set(named)
    return [c for c in calls if ast.unparse(c.func) == "pytest.mark.row"], bool(idle)


def rows(source: ast.Module) -> dict[str, tuple[str, list[str]]]:
    """State and notes of each row of a file, in the order of its tests."""
    found: dict[str, tuple[str, list[str]]] = {}
    for test in source.body:
        if not isinstance(test, ast.FunctionDef):
            continue
        calls, idle = marks(test)
        for call in calls:
            if idle:
                raise SystemExit(f"{test.name}: a row cannot skip or xfail")
            words = [ast.literal_eval(a) for a in call.args]
            named = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
            name, state, note = row(*words, **named)
            notes = found.setdefault(name, (state, []))[1]
            if found[name][0] != state:
                raise SystemExit(f"{name!r} works and is refused")
            if note and note not in notes:
                notes.append(note)
    return found


def page(folder: Path = ROOT / "tests" / "matrix") -> str:
    """The whole page; SystemExit for marks that contradict themselves."""
    parts = [HEAD]
    for path in sorted(folder.glob("test_*.py")):
        source = ast.parse(path.read_text())
        table = rows(source)
        if not table:
            continue
        title = inspect.cleandoc(ast.get_docstring(source) or path.stem).splitlines()[0]
        parts.append(f"## {title.rstrip('.')}\n\n| feature | state | note |\n|---|---|---|")
        for name, (state, notes) in table.items():
            parts[-1] += f"\n| {name} | {state} | {'; '.join(notes)} |"
        parts[-1] += "\n"
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
