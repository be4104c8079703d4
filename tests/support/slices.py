"""What `make test` takes of a sweep: a few of its cases; `make check` runs them all."""

import pytest

__all__ = ["slice_of"]


def slice_of(cases, keep=1):
    """The cases for `parametrize`, of which all but the first `keep` are marked `sweep`."""
    return [case if i < keep else _left_to_check(case) for i, case in enumerate(cases)]


def _left_to_check(case):
    if hasattr(case, "marks"):  # a pytest.param
        return pytest.param(*case.values, marks=[*case.marks, pytest.mark.sweep], id=case.id)
    return pytest.param(*case if isinstance(case, tuple) else [case], marks=pytest.mark.sweep)
