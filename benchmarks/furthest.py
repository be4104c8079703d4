"""What has to be copied to run a known program in a given room, by who is used furthest ahead.

A trace of `_C.begin_uses` is a list of (storage, bytes, tick, kind, ns), where ns may be missing.
It becomes moments: one for each operator, with what has to be on the device together then, which
is its operands and what it makes. Storages are whole: they are there or not. One that was written
since it was last copied out costs its bytes when it leaves, one that was not costs nothing, and
each return costs its bytes. A storage that no operator uses again, and that the program has not
dropped yet, leaves for nothing where the schedule may know that (`oracle`). Otherwise its bytes
have to be kept like any others, as by a manager, who cannot know it. The trace is taken to repeat,
one step after another, so what is alive at both ends has its next use in the next step and is as
dirty there as it was left.

`furthest` evicts what is used furthest in the future (Belady 1966, MIN). That is the optimum for
equal sizes and no cost of writing back; with sizes the problem is NP-hard (Chrobak, Woeginger,
Makino, Xu 2012), so here it is a heuristic: what it copies is enough, perhaps not the least. At
equal distance, and only then, it prefers clean storages and then large ones. What no schedule can
be below is in least.py.

What the trace does not hold is the caller's to subtract from the room. The trace cannot tell an
operator that overwrites all of a storage from one that reads it first: both need the old bytes
here, as they do for the manager.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Copied", "Infeasible", "Program", "end_of", "furthest", "parse"]

MADE, READ, WRITTEN, DROPPED = range(4)
Event = tuple[int, int, int, int] | tuple[int, int, int, int, float]


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
    before it. The others live until the moment in `ends`, before which the program drops them, or
    until the end of the step. `begins` has the ns at which the device came to each moment.
    """

    moments: list[dict[int, bool]] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    lasting: set[int] = field(default_factory=set)
    ends: dict[int, int] = field(default_factory=dict)
    begins: list[float] = field(default_factory=list)

    def begin(self, ns: float) -> None:
        self.moments.append({})
        self.begins.append(ns)

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
    before = 0.0  # ns, when the device came to the event before
    for storage, size, tick, kind, *when in events:
        ns = when[0] if when else before
        program.sizes[storage] = max(size, program.sizes.get(storage, 0))
        if kind == DROPPED:
            dropped.add(storage)
            program.ends[storage] = len(program.moments)
            operator = None
        elif kind == MADE:
            made.add(storage)
            if operator is None:
                program.begin(before)  # what is made from nothing has run when it is noted
            program.moments[-1][storage] = True
        else:
            if operator != tick:
                operator = tick
                program.begin(ns)
            moment = program.moments[-1]
            moment[storage] = moment.get(storage, False) or kind == WRITTEN
        before = ns
    program.lasting = {s for s in program.sizes if s not in made and s not in dropped}
    return program


class _Cache:
    """What `furthest` has on the device, and which of it differs from its copy on the host."""

    def __init__(self, program: Program, room: int, oracle: bool) -> None:
        self.program, self.room = program, room
        self.touches = program.touches()
        self.leaving = _leaving(program, self.touches, oracle)
        self.there: set[int] = set()
        self.used = 0
        self.known = set(program.lasting)  # has bytes, here or on the host
        self.dirty: set[int] = set()

    def next_use(self, storage: int, now: int) -> int:
        """Moments until it is used again; or dropped, which gives its room for nothing."""
        uses = self.touches[storage]
        later = bisect_right(uses, now)
        if later < len(uses):
            return uses[later] - now
        if storage in self.program.lasting:
            return uses[0] + len(self.program.moments) - now
        return end_of(self.program, storage, uses) - now

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
        for s in self.leaving[now]:
            if s in self.there:
                self.leave(s)
            self.known.discard(s)
            self.dirty.discard(s)
        return Copied(out, back)


def _leaving(program: Program, touches: dict[int, list[int]], oracle: bool) -> list[list[int]]:
    """Of each moment, what need not be kept after it."""
    found: list[list[int]] = [[] for _ in program.moments]
    for s, uses in touches.items():
        if s not in program.lasting:
            found[uses[-1] if oracle else end_of(program, s, uses) - 1].append(s)
    return found


def end_of(program: Program, storage: int, uses: Sequence[int]) -> int:
    """The moment before which it is dropped."""
    return max(uses[-1] + 1, program.ends.get(storage, len(program.moments)))


def furthest(program: Program, room: int, steps: int = 4, *, oracle: bool = True) -> Copied:
    """What the last of some steps copies when the victim is whoever is used last."""
    cache, copied = _Cache(program, room, oracle), Copied(0, 0)
    for _ in range(steps):
        all_ = [cache.run(t) for t in range(len(program.moments))]
        copied = Copied(sum(c.out for c in all_), sum(c.back for c in all_))
    return copied
