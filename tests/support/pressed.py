"""How programs under memory pressure begin that run in an interpreter of their own."""

from textwrap import dedent

import pytest

from support.paths import TESTS

__all__ = ["BEGIN", "runs_pressed"]

BEGIN = (TESTS / "programs" / "pressed.py").read_text()


@pytest.fixture(name="run")
def runs_pressed(run_python):
    """Runs a program that begins with BEGIN."""
    return lambda code, **how: run_python(BEGIN + dedent(code), **how)
