"""For tests of programs that spill: memory pressure without waiting for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from managed._backend import C

__all__ = ["torture"]


@contextmanager
def torture(odds: int = 1, seed: int = 0, at_least: int = 1) -> Iterator[None]:
    """Before each operator, spill every storage of an accelerator that nobody uses.

    With `odds` of n each storage goes with a chance of one in n, repeatably by `seed` in a
    program of one thread. Storages that are made inside take part from `at_least` bytes on.
    On simulated devices freed bytes are overwritten, so that whoever still reads them computes
    nonsense. Results must not change by a bit. The environment variable MANAGED_TORTURE
    ("all", or "random:SEED" for a third) does the same for a whole program.

    Affects all threads. ValueError when `odds` is below 1.
    """
    if odds < 1:
        raise ValueError(f"managed: odds are 1 (everything leaves) or more, not {odds}")
    usual = C.torture(odds, seed, at_least, True)
    try:
        yield
    finally:
        C.torture(0, 0, usual, False)
