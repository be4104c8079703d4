"""The tiled Cholesky and GEMM of task runtimes on four devices, beside StarPU's figures.

    python benchmarks/runtimes.py [--quick] [--check] [--memory 12,1,0.6,0.4] [--json FILE]

The machine is StarPU's "sirocco", four K40m whose copies share 10.5 GB/s, without values, with so
much memory a card. Tiles of 960 x 960 float32 are in the host's memory at first. The programs are
lists of tiles and plain loops, and one thread issues them; a kernel takes what StarPU's own models
of the machine say (KERNELS). The time is virtual, from the first tile that is put on a device to
the end of all.

cholesky  order 38,400. "left": a column of tiles after the other; "right": each column, when it is
          done, is taken off all that are right of it, the order in which StarPU's example submits
          tasks; "ahead": the same, but a tile on the diagonal is factored as soon as it can be
gemm      38,400 x 3,840 times 3,840 x 38,400 in rows and columns, of which the columns are put on
          devices and the rows stay on the host
managed   tiles are put where managed says (`cuda(disperse=True)`), when they are needed first.
          "cyclic": tile (i, j) is put on device 2 (i mod 2) + j mod 2

The Cholesky is left out where the devices together have no room for its tiles: what finds none
stays on the host, whose kernels take no time here.

`most` is what nothing is faster than: the sum of the kernels over four devices, their longest
chain, or the least bytes over the shared bus. StarPU's columns are its simulated mode on the same
models (eager, dm, dmda, dmdar, dmdas and lws are its schedulers; "window": dmda with 80 tasks in
flight; "heft": modular-heft-prio); its machine moves GiB that are printed as GB.

--check: the exit status is 1 where Cholesky reaches less than 95 % of StarPU's best column, or GEMM
less than 9.6 TFlop/s.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from report import Report, print_table, verdicts, write
from virtual import apart, options, percent

import managed
from managed import ManagedTensor, _sim
from managed._simulated.presets import PRESETS

PRESET, DEVICES = "sirocco", 4
TILE, TILES, DEPTH = 960, 40, 3840  # DEPTH: the inner dimension of the GEMM
#: us of a kernel on such tiles, the mean over the four cards of StarPU's models chol_model_* and
#: starpu_sgemm_gemm for "sirocco" (tools/perfmodels/sampling/codelets/45). PyTorch has no syrk: the
#: tile on the diagonal is updated by the operator of the others, in the time of StarPU's syrk.
KERNELS = {"potrf": 8251.0, "trsm": 2020.1, "syrk": 374.7, "update": 747.8, "product": 2744.3}
#: TFlop/s and GiB moved of StarPU 3f3cc82a6, by GB a card.
STARPU: dict[str, dict[float, dict[str, tuple[float, float]]]] = {
    "cholesky": {
        12: {"eager": (3.88, 42.7), "dm": (3.92, 41.1), "dmda": (6.27, 19.1),
             "dmdar": (6.80, 19.3), "dmdas": (7.17, 15.3), "lws": (6.82, 17.0)},
        1: {"eager": (3.69, 44.7), "dm": (3.92, 41.2), "dmda": (6.33, 18.5),
            "dmdar": (6.88, 19.2), "dmdas": (6.80, 20.9), "lws": (6.07, 25.4)},
    },
    "gemm": {
        12: {"eager": (8.12, 9.9), "lws": (9.37, 8.4), "dmda": (9.61, 8.5), "dmdar": (9.61, 8.5),
             "window": (9.80, 8.3), "heft": (9.60, 8.8)},
        1: {"eager": (7.92, 11.3), "lws": (9.39, 8.4), "dmda": (3.54, 31.2), "dmdar": (3.75, 29.1),
            "window": (9.80, 8.3)},
        0.6: {"eager": (6.37, 16.3), "lws": (9.38, 8.4), "dmda": (3.25, 34.1),
              "dmdar": (3.60, 30.2), "window": (9.80, 8.3), "heft": (9.82, 8.3)},
        0.4: {"eager": (4.87, 21.9), "lws": (9.38, 8.4), "dmda": (3.19, 34.7),
              "dmdar": (3.42, 32.3), "window": (9.80, 8.3), "heft": (9.82, 8.3)},
    },
}  # fmt: skip
FLOPS = {"cholesky": (TILE * TILES) ** 3 / 3, "gemm": 2.0 * (TILE * TILES) ** 2 * DEPTH}
WAYS = {
    "cholesky": tuple(
        f"{o}, {p}" for o in ("left", "right", "ahead") for p in ("managed", "cyclic")
    ),
    "gemm": ("managed", "cyclic"),
}
QUICK = {"cholesky": (1.0,), "gemm": (0.4,)}
QUICK_WAYS = {"cholesky": "ahead, managed", "gemm": "managed"}
MOVED = ("move", "copy", "write_back", "spill", "spare", "restore")
TARGET = 9.6  # TFlop/s of the GEMM
MATRIX = TILES * (TILES + 1) // 2 * TILE * TILE * 4  # bytes of the tiles of the Cholesky
Put = Callable[[torch.Tensor, int, int], torch.Tensor]
Column = dict[int, torch.Tensor]  # tiles by their row


# ---- the programs


@contextmanager
def taking(kernel: str) -> Iterator[None]:
    before = _sim.exchange_duration(int(KERNELS[kernel] * 1e3))
    try:
        yield
    finally:
        _sim.exchange_duration(before)


def factor(column: Column, j: int) -> None:
    with taking("potrf"):
        column[j] = torch.linalg.cholesky_ex(column[j])[0]


def solve(column: Column, j: int) -> None:
    """What is below the diagonal."""
    upper = column[j].mT
    with taking("trsm"):
        for i in range(j + 1, TILES):
            torch.linalg.solve_triangular(upper, column[i], upper=True, left=False, out=column[i])


def take_off(column: Column, j: int, done: Column, ahead: bool = False) -> None:
    """A column that is done off column j; `ahead`: the tile on the diagonal is factored first."""
    right = done[j].mT
    with taking("syrk"):
        column[j].addmm_(done[j], right, alpha=-1)
    if ahead:
        factor(column, j)
    with taking("update"):
        for i in range(j + 1, TILES):
            column[i].addmm_(done[i], right, alpha=-1)


def cholesky(put: Put, order: str) -> list[Column]:
    @cache
    def column(j: int) -> Column:
        """Is put on devices when it is asked for first."""
        return {i: put(torch.empty(TILE, TILE), i, j) for i in range(j, TILES)}

    ahead = order == "ahead"
    for j in range(TILES):
        if order == "left":
            for k in range(j):
                take_off(column(j), j, column(k))
        if not ahead or j == 0:
            factor(column(j), j)
        solve(column(j), j)
        if order != "left":
            for k in range(j + 1, TILES):
                take_off(column(k), k, column(j), ahead and k == j + 1)
    return [column(j) for j in range(TILES)]


def gemm(put: Put, _order: str) -> list[Column]:
    rows = [torch.empty(TILE, DEPTH).as_subclass(ManagedTensor) for _ in range(TILES)]

    @cache
    def column(j: int) -> torch.Tensor:
        """Is put on a device when it is asked for first."""
        return put(torch.empty(DEPTH, TILE), j // 2, j)

    with taking("product"):
        return [{j: row @ column(j) for j in range(TILES)} for row in rows]


# ---- one of them


def disperse(tile: torch.Tensor, _i: int, _j: int) -> torch.Tensor:
    return tile.as_subclass(ManagedTensor).cuda(disperse=True, non_blocking=True)


def cyclic(tile: torch.Tensor, i: int, j: int) -> torch.Tensor:
    place = f"sim:{2 * (i % 2) + j % 2}"
    return tile.as_subclass(ManagedTensor).to(place, non_blocking=True)


def group(program: str, memory: float, way: str) -> Report:
    """In this process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    managed.simulate(DEVICES, int(memory * 1e9), preset=PRESET, values=False)
    run = {"cholesky": cholesky, "gemm": gemm}[program]
    result = run(cyclic if way.endswith("cyclic") else disperse, way.split(",")[0])
    took, busy, stats = torch.sim.elapsed(), torch.sim.busy(), managed.stats()
    del result
    moved = {kind: stats[f"{kind}_bytes"] for kind in MOVED}
    return {
        "seconds": took,
        "tflops": FLOPS[program] / took / 1e12,
        "moved": moved,
        "gib": sum(moved.values()) / 2**30,
        "host_s": torch.sim.virtual_time("cpu"),
        "idle": [1 - busy[f"sim:{i}"] / took for i in range(DEVICES)],
        "bus": sum(moved.values()) / (PRESETS[PRESET].all_bytes_per_ns * 1e9) / took,
    }


# ---- all of them


def bounds(program: str) -> dict[str, float]:
    """Seconds: no schedule is faster than any."""
    n, us = TILES, KERNELS
    if program == "cholesky":
        pairs = n * (n - 1) // 2
        work = n * us["potrf"] + pairs * (us["trsm"] + us["syrk"])
        work += pairs * (n - 2) / 3 * us["update"]
        chain = n * us["potrf"] + (n - 1) * (us["trsm"] + us["syrk"])
        least = (pairs + n) * TILE * TILE * 4
    else:
        work, chain = n * n * us["product"], us["product"]
        least = 2 * n * TILE * DEPTH * 4
    bus = PRESETS[PRESET].all_bytes_per_ns * 1e9
    return {"work": work / DEVICES * 1e-6, "chain": chain * 1e-6, "bus": least / bus}


def rows(program: str, cells: dict[float, dict[str, Report]]) -> list[list[str]]:
    table = []
    for memory, found in cells.items():
        for way, cell in found.items():
            shown = [f"{cell['tflops']:.2f}", f"{cell['gib']:.1f}", percent(cell["bus"])]
            shown.append("/".join(percent(max(0.0, part)) for part in cell["idle"]))
            table.append([f"{memory:g} GB, {way}", *shown])
        for name, (tflops, gib) in STARPU[program].get(memory, {}).items():
            table.append([f"{memory:g} GB, StarPU {name}", f"{tflops:.2f}", f"{gib:.1f}", "", ""])
    return table


def targets(results: dict[str, dict[float, dict[str, Report]]]) -> list[tuple[str, float, float]]:
    """Of managed's own placement, in the best order."""
    found = []
    for program, cells in results.items():
        for memory, ways in cells.items():
            best = max(cell["tflops"] for way, cell in ways.items() if way.endswith("managed"))
            if program == "gemm":
                found.append((f"gemm, {memory:g} GB: {TARGET} TFlop/s over it", TARGET / best, 1.0))
            elif memory in STARPU[program]:
                other = max(tflops for tflops, _ in STARPU[program][memory].values())
                name = f"cholesky, {memory:g} GB: StarPU's best over it"
                found.append((name, other / best, 1 / 0.95))
    return found


def main() -> int:
    parser = options(__file__, __doc__, "one memory and way a program")
    parser.add_argument("--memory", help="GB a card, with commas; what StarPU's figures are for")
    asked = parser.parse_args()
    if asked.group:
        print(json.dumps(group(*json.loads(asked.group))))
        return 0
    results: dict[str, dict[float, dict[str, Report]]] = {}
    for program, published in STARPU.items():
        told = [float(m) for m in asked.memory.split(",")] if asked.memory else None
        memories = told or (QUICK[program] if asked.quick else tuple(published))
        memories = [m for m in memories if program == "gemm" or m * 1e9 * DEVICES >= MATRIX]
        ways = [QUICK_WAYS[program]] if asked.quick else WAYS[program]
        results[program] = {
            m: {w: apart(__file__, [program, m, w]) for w in ways} for m in memories
        }
        least = bounds(program)
        most = FLOPS[program] / max(least.values()) / 1e12
        parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in least.items())
        title = f"{program}: at most {most:.2f} TFlop/s ({parts})"
        columns = ["TFlop/s", "GiB", "bus %", "idle %"]
        print_table(title, columns, rows(program, results[program]))
        sys.stdout.flush()
    missed = [t for t in verdicts(targets(results)) if not t["pass"]]
    bound = {program: bounds(program) for program in results}
    write({"programs": results, "bounds": bound, "missed": missed}, asked.out)
    return int(asked.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
