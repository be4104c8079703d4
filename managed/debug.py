"""For tests of programs that spill: memory pressure without waiting for it, and failures."""

from __future__ import annotations

import atexit
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from managed._backend import C

__all__ = ["Torture", "torture", "torture_from_environment"]

_FORM = re.compile(r"(?P<leaving>all|random(:(?P<seed>\d+))?)?(?P<hammer>(?(leaving),)hammer)?")


class Torture:
    """What a block under torture is given; `failures` is filled when the block ends."""

    failures = 0  #: allocations and copies that failed because the block asked for it


class Hammer:
    """A thread that makes everything leave that is not in use, all the time, until stop().

    It ends with the process, too. A child of fork() has no such thread.
    """

    def __init__(self) -> None:
        self._goes_on = True
        self._thread = threading.Thread(target=self._work, name="managed hammer", daemon=True)
        self._thread.start()
        atexit.register(self.stop)  # otherwise the interpreter would end under the thread's feet

    def _work(self) -> None:
        while self._goes_on:
            C.spill_all()

    def stop(self) -> None:
        self._goes_on = False
        self._thread.join()
        atexit.unregister(self.stop)


@contextmanager
def torture(
    odds: int | None = 1,
    seed: int = 0,
    at_least: int = 1,
    *,
    hammer: bool = False,
    fail_allocation: int | range | None = None,
    fail_copy: int | range | None = None,
) -> Iterator[Torture]:
    """For tests: before each operator, spill every storage of an accelerator that is not in use.

    Results must not change by a bit. On simulated devices freed bytes are overwritten, so that
    code that still reads them computes nonsense. It affects all threads; what was asked for before
    comes back when the block ends. The variable `MANAGED_TORTURE` does it for a whole program:
    `all` or `random:SEED` (a chance of one in three), `hammer`, or `all,hammer`.

    Args:
        odds: each storage goes with a chance of one in so many; `None`: operators spill nothing.
        seed: repeats the choices of `odds`, in a program of one thread.
        at_least: storages that are made inside take part from so many bytes on.
        hammer: a thread spills all the time, also while operators run.
        fail_allocation: the n-th allocation on simulated devices fails; a range stands for several
            in a row. They count from 1, all threads and devices together.
        fail_copy: the same of copies to, from or between simulated devices.

    Yields:
        What has `failures` when the block has ended: how many happened, 0 when it made fewer. Some
        go unnoticed, because there is another way; others raise `torch.OutOfMemoryError`
        (allocations) or `RuntimeError` (copies). Nothing is lost then; what a failed operator was
        writing may be written in part.

    Raises:
        ValueError: for numbers that make no sense.
        TypeError: for what is neither an int nor a range.
        RuntimeError: for failures without simulated devices.
    """
    if odds is not None and odds < 1:
        raise ValueError(f"managed: odds are 1 (everything leaves) or more, not {odds}")
    asked = [("fail_allocation", fail_allocation), ("fail_copy", fail_copy)]
    faults = {kind: _consecutive(name, n) for kind, (name, n) in enumerate(asked) if n is not None}
    given = Torture()
    with ExitStack() as ends:
        ends.callback(C.torture, *C.torture(odds or 0, seed, at_least, True))
        for kind, numbers in faults.items():
            ends.enter_context(_failing(kind, numbers, given))
        if hammer:
            ends.callback(Hammer().stop)
        yield given


def _consecutive(name: str, numbers: int | range) -> range:
    """The numbers that fail; refused unless they are 1 or more and follow each other."""
    if isinstance(numbers, bool) or not isinstance(numbers, int | range):
        raise TypeError(f"managed: {name} is an int or a range, not {numbers!r}")
    found = numbers if isinstance(numbers, range) else range(numbers, numbers + 1)
    if found.step != 1 or not 1 <= found.start < found.stop < 2**63:
        raise ValueError(
            f"managed: {name} counts from 1 and takes one number, or a range of some that follow "
            f"each other, not {numbers!r}"
        )
    return found


@contextmanager
def _failing(kind: int, numbers: range, given: Torture) -> Iterator[None]:
    from managed import _sim

    if not _sim.device_count():
        raise RuntimeError(
            "managed: only simulated devices fail when they are asked to: call managed.simulate()"
        )
    before = _sim.exchange_faults(kind, numbers.start, numbers.stop - 1, 0)
    try:
        yield
    finally:
        _, _, seen = _sim.exchange_faults(kind, *before)
        given.failures += len(range(numbers.start, min(seen + 1, numbers.stop)))


def torture_from_environment(value: str) -> None:
    """Does for the whole program what MANAGED_TORTURE says; ValueError for anything else."""
    form = _FORM.fullmatch(value)
    if not form:
        raise ValueError('it is "all" or "random:SEED", "hammer", or both: "all,hammer"')
    odds = {"all": 1, None: 0}.get(form["leaving"], 3)
    C.torture(odds, int(form["seed"] or 0), 1, True)
    if form["hammer"]:
        Hammer()
