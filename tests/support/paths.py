"""Where the repository and its tests lie."""

from importlib.util import find_spec
from pathlib import Path

__all__ = ["PROGRAMS", "ROOT", "TESTS", "package_folder"]

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
PROGRAMS = TESTS / "programs"  # that tests run in interpreters of their own


def package_folder():
    """Where the package lies that is tested: this tree, or where it was installed."""
    return Path(find_spec("managed").origin).resolve().parents[1]
