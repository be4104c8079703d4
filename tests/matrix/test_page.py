"""docs/compatibility.md is what tools/compatibility.py makes of the tests' marks."""

import runpy

import pytest
from support.paths import ROOT

TOOL = runpy.run_path(str(ROOT / "tools" / "compatibility.py"))


def test_the_page_is_up_to_date():
    page = (ROOT / "docs" / "compatibility.md").read_text()
    assert page == TOOL["page"](), "run python tools/compatibility.py"


def read(tmp_path, *functions):
    source = ['"""Things"""', "import pytest", *functions]
    (tmp_path / "test_things.py").write_text("\n".join(source))
    return TOOL["page"](tmp_path)


def test_rows_become_a_table(tmp_path):
    page = read(
        tmp_path,
        '@pytest.mark.row("b", note="one")\ndef test_b(): ...',
        '@pytest.mark.row("a", "refused: KeyError")\ndef test_a(): ...',
        '@pytest.mark.row("b", note="two")\ndef test_b_again(): ...',
        "def test_no_row(): ...",
    )
    assert "## Things" in page
    assert "| b | works | one; two |\n| a | refused: `KeyError` |  |" in page
    assert "no_row" not in page


@pytest.mark.parametrize("mark", ["skip", "skipif(True)", "xfail(reason='')"])
def test_what_does_not_run_is_no_row(tmp_path, mark):
    with pytest.raises(SystemExit, match=r"test_b.*skip or xfail"):
        read(tmp_path, f'@pytest.mark.row("b")\n@pytest.mark.{mark}\ndef test_b(): ...')


def test_a_row_has_one_state(tmp_path):
    with pytest.raises(SystemExit, match="'b' works and is refused"):
        read(
            tmp_path,
            '@pytest.mark.row("b")\ndef test_b(): ...',
            '@pytest.mark.row("b", "refused: E")\ndef test_b_again(): ...',
        )


def test_a_state_is_one_of_two(tmp_path):
    with pytest.raises(SystemExit, match="'works' or 'refused: ERROR'"):
        read(tmp_path, '@pytest.mark.row("b", "maybe")\ndef test_b(): ...')
