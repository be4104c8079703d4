"""Where the repository and its tests lie."""

from pathlib import Path

__all__ = ["PROGRAMS", "ROOT", "TESTS"]

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
PROGRAMS = TESTS / "programs"  # that tests run in interpreters of their own
