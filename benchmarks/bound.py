"""How long a step of a known program takes at least in a given room: bound.c, for traces.

`recorded` runs a step without a budget and notes what its operators use, make and drop, and what
each takes on the virtual clock. `least_time` is what no schedule of whole storages is below, in
that order of operators and without computing anything twice. Bytes that stand in no handle are the
caller's to subtract from the room, as for furthest.py.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import furthest
import torch

import managed
from managed import _C

__all__ = ["Link", "durations", "least_time", "recorded"]

#: Segments begin at so many operators; the time is quadratic in it. With fewer than there are, the
#: one with the largest peak may be none of them: then the bound is far below what is possible.
CUTS = 4096


class Link(NamedTuple):
    """Bytes/ns into the device and out of it, and ns of a copy beside its bytes."""

    bytes_in: float
    bytes_out: float
    latency: float


class _Rows(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("item", ctypes.c_void_p)]


class _Program(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("operators", "storages")),
        *((name, ctypes.c_void_p) for name in ("cost", "size", "lasting")),
        *((name, _Rows) for name in ("uses", "reads", "writes")),
    ]


class _Machine(ctypes.Structure):
    _fields_ = [(name, ctypes.c_double) for name in ("room", "in", "out", "latency")]


@cache
def _library() -> Any:
    source = Path(__file__).with_suffix(".c")
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "bound.so"
        subprocess.run(["cc", *flags, source, "-o", built], check=True)
        library = ctypes.CDLL(str(built))
    library.bound.restype = ctypes.c_double
    library.bound.argtypes = [ctypes.POINTER(_Program), ctypes.POINTER(_Machine), ctypes.c_int]
    return library


def recorded(step: Callable[[], None]) -> tuple[furthest.Program, list[int]]:
    """One step, and the ns that the operators of each of its moments took."""
    torch.sim.synchronize()
    with managed.profile() as profile:
        _C.begin_uses()
        try:
            step()
        finally:
            program = furthest.parse(_C.end_uses())
    ran = [(s.begin, s.end) for s in profile.spans if s.kind == "run"]
    return program, durations(program, ran)


def durations(program: furthest.Program, ran: Iterable[tuple[int, int]]) -> list[int]:
    """What ran from when to when, added up by the moment in which it began."""
    took = [0] * len(program.moments)
    spans, at = sorted(ran), 0
    for begin, end in spans:
        while at + 1 < len(took) and program.begins[at + 1] <= begin:
            at += 1
        took[at] += end - begin
    return took


def _rows(lists: Sequence[Sequence[int]], kept: list[Any]) -> _Rows:
    at = (ctypes.c_int * (len(lists) + 1))()
    for t, row in enumerate(lists):
        at[t + 1] = at[t] + len(row)
    item = (ctypes.c_int * (at[len(lists)] + 1))(*(s for row in lists for s in row))
    kept += [at, item]
    return _Rows(ctypes.addressof(at), ctypes.addressof(item))


def least_time(
    program: furthest.Program, took: Sequence[float], room: float, link: Link, cuts: int = CUTS
) -> float:
    """ns of a step, at least. Infeasible where an operator does not fit."""
    if program.largest() > room:
        raise furthest.Infeasible(f"an operator of the trace needs {program.largest()}")
    if not program.moments:
        return 0.0
    first = {s: uses[0] for s, uses in program.touches().items()}
    numbers = {s: i for i, s in enumerate(first)}
    made = [
        {s for s in moment if first[s] == t and s not in program.lasting}
        for t, moment in enumerate(program.moments)
    ]
    uses = [[numbers[s] for s in moment] for moment in program.moments]
    reads = [
        [numbers[s] for s in moment if s not in new]
        for moment, new in zip(program.moments, made, strict=True)
    ]
    writes = [[numbers[s] for s, is_written in m.items() if is_written] for m in program.moments]
    cost = (ctypes.c_double * len(took))(*took)
    size = (ctypes.c_double * len(numbers))(*(program.sizes[s] for s in numbers))
    lasting = (ctypes.c_ubyte * len(numbers))(*(s in program.lasting for s in numbers))
    kept: list[Any] = []
    one = _Program(
        len(uses), len(numbers), ctypes.addressof(cost), ctypes.addressof(size),
        ctypes.addressof(lasting), *(_rows(lists, kept) for lists in (uses, reads, writes)),
    )  # fmt: skip
    found: float = _library().bound(one, _Machine(room, *link), cuts)
    if found < 0:
        raise MemoryError("no memory for the bound")
    return found
