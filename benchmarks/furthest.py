"""The least that has to be copied to run a known program in a given room.

A trace of `_C.begin_uses` is a list of (storage, bytes, tick, kind). It becomes moments: one for
each operator, with what has to be on the device together then, which is its operands and what it
makes. Storages are whole: they are there or not. One that was written since it was last copied
out costs its bytes when it leaves, one that was not costs nothing, and each return costs its
bytes. A storage that no operator uses again leaves for nothing, whether the program has dropped
it yet or not. The trace is taken to repeat, one step after another, so what is alive at both ends
has its next use in the next step and is as dirty there as it was left.

Two answers:

`furthest` evicts what is used furthest in the future (Belady 1966, MIN). That is the optimum for
equal sizes and no cost of writing back; with sizes the problem is NP-hard (Chrobak, Woeginger,
Makino, Xu 2012), so here it is a heuristic: what it copies is enough, perhaps not the least. At
equal distance, and only then, it prefers clean storages and then large ones.

`least` is a lower bound: the optimum of the linear relaxation in which any part of a storage may
be away between two uses (as Albers, Arora and Khanna 1999 for caches without write-back). Every
schedule is a solution of it, and the mean over many steps of a schedule that differs from step to
step is one too, so no policy copies less per step. It may be below what is possible with whole
storages.

What the trace does not hold is the caller's to subtract from the room. For `least` to stay a bound
that is only what is there all the time; temporary results inside operators are left out. The trace
cannot tell an operator that overwrites all of a storage from one that reads it first: both need
the old bytes here, as they do for the manager.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Copied", "Infeasible", "Program", "furthest", "least", "parse"]

MADE, READ, WRITTEN, DROPPED = range(4)
Event = tuple[int, int, int, int]


class Infeasible(Exception):
    """What one operator needs is more than the room."""


class Copied(NamedTuple):
    """Bytes of one step."""

    out: float
    back: float


@dataclass
class Program:
    """One step, which repeats.

    A moment says of each storage whether it is written; to be made is to be written. `lasting`
    are those alive at both ends: their first use in a step comes after their last in the one
    before it.
    """

    moments: list[dict[int, bool]] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    lasting: set[int] = field(default_factory=set)

    def needs(self, moment: int) -> int:
        return sum(self.sizes[s] for s in self.moments[moment])

    def largest(self) -> int:
        """The most that has to be there together."""
        return max((self.needs(t) for t in range(len(self.moments))), default=0)

    def touches(self) -> dict[int, list[int]]:
        """Of each storage, the moments of its uses."""
        found: dict[int, list[int]] = defaultdict(list)
        for t, moment in enumerate(self.moments):
            for s in moment:
                found[s].append(t)
        return found


def parse(events: Iterable[Event]) -> Program:
    """What is made after an operator, before anything else happens, is its result.

    So is, wrongly, what is made from nothing just then.
    """
    program, made, dropped = Program(), set[int](), set[int]()
    operator: int | None = None  # with operands, whose results may follow
    for storage, size, tick, kind in events:
        program.sizes[storage] = max(size, program.sizes.get(storage, 0))
        if kind == DROPPED:
            dropped.add(storage)
            operator = None
        elif kind == MADE:
            made.add(storage)
            if operator is None:
                program.moments.append({})
            program.moments[-1][storage] = True
        else:
            if operator != tick:
                operator = tick
                program.moments.append({})
            moment = program.moments[-1]
            moment[storage] = moment.get(storage, False) or kind == WRITTEN
    program.lasting = {s for s in program.sizes if s not in made and s not in dropped}
    return program


class _Cache:
    """What `furthest` has on the device, and which of it differs from its copy on the host."""

    def __init__(self, program: Program, room: int) -> None:
        self.program, self.room = program, room
        self.touches = program.touches()
        self.there: set[int] = set()
        self.used = 0
        self.known = set(program.lasting)  # has bytes, here or on the host
        self.dirty: set[int] = set()

    def next_use(self, storage: int, now: int) -> float:
        """Moments until it is used again."""
        uses = self.touches[storage]
        later = bisect_right(uses, now)
        if later < len(uses):
            return uses[later] - now
        again = uses[0] + len(self.program.moments) - now
        return again if storage in self.program.lasting else math.inf

    def leave(self, storage: int) -> None:
        self.there.remove(storage)
        self.used -= self.program.sizes[storage]

    def make_room(self, bytes_: int, now: int) -> int:
        """Bytes that are copied out for it."""
        out = 0
        held = self.there - self.program.moments[now].keys()
        sizes = self.program.sizes
        order = sorted(
            held, key=lambda s: (self.next_use(s, now), s not in self.dirty, sizes[s], s)
        )
        while self.used + bytes_ > self.room:
            if not order:
                raise Infeasible(f"operator {now} of the trace needs {self.program.needs(now)}")
            victim = order.pop()
            self.leave(victim)
            if victim in self.dirty:
                self.dirty.remove(victim)
                out += sizes[victim]
        return out

    def run(self, now: int) -> Copied:
        moment = self.program.moments[now]
        missing = [s for s in moment if s not in self.there]
        bytes_ = sum(self.program.sizes[s] for s in missing)
        out = self.make_room(bytes_, now) if self.used + bytes_ > self.room else 0
        back = sum(self.program.sizes[s] for s in missing if s in self.known)
        self.there.update(missing)
        self.used += bytes_
        self.known.update(missing)
        self.dirty.update(s for s, written in moment.items() if written)
        for s in moment:
            if math.isinf(self.next_use(s, now)):
                self.leave(s)
                self.known.discard(s)
                self.dirty.discard(s)
        return Copied(out, back)


def furthest(program: Program, room: int, steps: int = 4) -> Copied:
    """What the last of some steps copies when the victim is whoever is used last."""
    cache, copied = _Cache(program, room), Copied(0, 0)
    for _ in range(steps):
        all_ = [cache.run(t) for t in range(len(program.moments))]
        copied = Copied(sum(c.out for c in all_), sum(c.back for c in all_))
    return copied


class _Gap(NamedTuple):
    """Between two uses: a storage may be away at these moments; `copy` is shared by gaps of one
    storage with no write between them, and None where the host has the bytes anyway."""

    size: int
    moments: Sequence[int]
    copy: int | None


def _gaps(program: Program) -> tuple[list[_Gap], list[int]]:
    """The gaps, and the size of each copy out."""
    gaps, copies, n = list[_Gap](), list[int](), len(program.moments)
    for s, uses in program.touches().items():
        lasts, size = s in program.lasting, program.sizes[s]
        writes = [t for t in uses if program.moments[t][s]]
        first = len(copies)
        copies += [size] * len(writes)
        count = 0  # of writes so far
        for t, following in zip(uses, [*uses[1:], uses[0] + n], strict=True):
            count += program.moments[t][s]
            away = [u % n for u in range(t + 1, following)]
            if following >= n and not lasts:
                continue
            # Before its first write of the step a storage is as the last one left it.
            copy = first + (count - 1) % len(writes) if writes and (count or lasts) else None
            if away:
                gaps.append(_Gap(size, away, copy))
    return gaps, copies


def least(program: Program, room: int, *, both_ways: bool = False) -> float:
    """No schedule copies fewer bytes out per step; or, both ways, fewer bytes out and back."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    gaps, copies = _gaps(program)
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
    costs = [gap.size / unit if both_ways else 0.0 for gap in gaps] + [c / unit for c in copies]
    if not costs:
        return 0.0
    matrix = coo_array((values, (rows, columns)), shape=(len(limits), len(costs))).tocsr()
    found = linprog(costs, A_ub=matrix, b_ub=limits, bounds=(0, 1), method="highs")
    if found.status != 0:
        raise RuntimeError(f"the bound was not found: {found.message}")
    return max(0.0, float(found.fun)) * unit
