"""What the documentation shows, works: its Python blocks are run, a page a process, in order.

A fence marked `python` is run; text, console, diff and the like are not. Warnings are errors, as
everywhere. Links between pages and to files of the repository must lead somewhere.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^([ ]*)```(\w*)[^\n]*\n(.*?)^\1```[ ]*$", re.M | re.S)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


def blocks(page, language):
    """Each fenced block with the line where it stands, so that tracebacks name the page's line."""
    text = page.read_text()
    for indent, tongue, body in FENCE.findall(text):
        if tongue == language:
            line = text[: text.index(body)].count("\n")
            yield line, "".join(s.removeprefix(indent) for s in body.splitlines(keepends=True))


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


@pytest.mark.parametrize("page", [p for p in PAGES if any(blocks(p, "python"))], ids=name)
def test_code_of_the_page_runs(page, run_python):
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
