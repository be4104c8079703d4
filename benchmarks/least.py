"""What no schedule of a known program in a given room can copy less than.

It is the optimum of a linear program: any part of a storage may be away between two uses, at each
moment the parts that are there fit, and what was away was copied out once since it was last
written (as Albers, Arora and Khanna 1999 for caches without write-back). Every schedule is a
solution of it, and so is the mean over many steps of one that differs from step to step. Hence no
policy copies less per step, however it chooses; with whole storages it may have to copy more.

Room that is taken by what the trace does not hold may be subtracted only where it is taken all the
time, or it is no bound any more: temporary results inside operators are left out. Programs are
those of furthest.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from furthest import Infeasible, Program, end_of

__all__ = ["least"]


class _Gap(NamedTuple):
    """A storage may be away at these moments. `copy` is shared by gaps with no write between them,
    and None where the host has the bytes anyway; `back` is what its return costs."""

    size: int
    moments: Sequence[int]
    copy: int | None
    back: int


def _gaps(program: Program, oracle: bool) -> tuple[list[_Gap], list[int]]:
    """The gaps, and the size of each copy out."""
    gaps, copies, n = list[_Gap](), list[int](), len(program.moments)
    for s, uses in program.touches().items():
        lasts, size = s in program.lasting, program.sizes[s]
        writes = [t for t in uses if program.moments[t][s]]
        first = len(copies)
        copies += [size] * len(writes)
        dropped = uses[-1] + 1 if oracle else end_of(program, s, uses)
        end = uses[0] + n if lasts else dropped
        count = 0  # of writes so far
        for t, following in zip(uses, [*uses[1:], end], strict=True):
            count += program.moments[t][s]
            # Before its first write of the step a storage is as the last one left it.
            copy = first + (count - 1) % len(writes) if writes and (count or lasts) else None
            if following > t + 1:
                away = [u % n for u in range(t + 1, following)]
                gaps.append(_Gap(size, away, copy, size if lasts or t < uses[-1] else 0))
    return gaps, copies


def least(program: Program, room: int, *, both_ways: bool = False, oracle: bool = True) -> float:
    """No schedule copies fewer bytes out per step; or, both ways, fewer bytes out and back."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    gaps, copies = _gaps(program, oracle)
    kept = [program.needs(t) for t in range(len(program.moments))]
    if max(kept, default=0) > room:
        raise Infeasible(f"an operator of the trace needs {max(kept)}")
    unit = float(max(program.sizes.values(), default=1))
    rows, columns, values = [], [], []
    for g, gap in enumerate(gaps):
        for t in gap.moments:
            kept[t] += gap.size
            rows.append(t)
            columns.append(g)
            values.append(-gap.size / unit)
    limits = [(room - bytes_) / unit for bytes_ in kept]
    for g, gap in enumerate(gaps):
        if gap.copy is not None:  # what is away has been copied
            rows += [len(limits)] * 2
            columns += [g, len(gaps) + gap.copy]
            values += [1.0, -1.0]
            limits.append(0.0)
    costs = [gap.back / unit if both_ways else 0.0 for gap in gaps] + [c / unit for c in copies]
    if not costs:
        return 0.0
    matrix = coo_array((values, (rows, columns)), shape=(len(limits), len(costs))).tocsr()
    found = linprog(costs, A_ub=matrix, b_ub=limits, bounds=(0, 1), method="highs")
    if found.status != 0:
        raise RuntimeError(f"the bound was not found: {found.message}")
    return max(0.0, float(found.fun)) * unit
