"""How programs under memory pressure begin that run in an interpreter of their own."""

from pathlib import Path
from textwrap import dedent

import pytest

from support.paths import PROGRAMS

__all__ = ["BEGIN", "runs_pressed"]

BEGIN = (PROGRAMS / "pressed" / "pressed.py").read_text()


@pytest.fixture(name="run")
def runs_pressed(run_python):
    """Runs a program: a text with BEGIN before it, or a file as it is."""

    def run(code, **how):
        return run_python(code if isinstance(code, Path) else BEGIN + dedent(code), **how)

    return run
