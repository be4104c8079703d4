"""Independent work of uneven size on 1, 2, 4 and 8 simulated devices, a thread for each.

    python benchmarks/parallel.py [--quick] [--check] [--cases worlds,models] [--json FILE]

worlds   transformers of very different widths in training, without values
models   the hundred models of examples/many_models.py, in training, without values
patches  the linear systems of examples/pde_fault.py of which the matrices are dense, with values

Each is put, largest first, where the manager says when it is to spread things, and a thread for
each device goes through what is there. The time is virtual, from the first placement to the end of
all. What a device did meanwhile is said in per cent of it, as the mean over devices:
busy     its operators ran
copies   its link to the host was taken, before its last operator ended
host     the rest until then: nobody had issued anything
early    it was done, and others were not
The devices are those of a server with eight A100 80 GB, of which two share a switch to the host.
--check: the exit status is 1 where 4 devices are less than 3.6 times as fast as one or 8 less than
7 times (worlds), or 8 less than 5 times (models). patches has no target: one thread places all
matrices and waits for each copy, which is most of their time.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from cases import Transformer
from report import Report, print_table, verdicts, write
from tree import ROOT
from virtual import apart, options, percent

import managed
from managed import ManagedModule, ManagedTensor, device_manager

sys.path.append(str(ROOT / "examples"))
PRESET = "a100-80g-sxm"
DEVICES = (1, 2, 4, 8)
STEPS = 10
TARGETS = {"worlds": {4: 3.6, 8: 7.0}, "models": {8: 5.0}}  # speed-up by devices
Task = tuple[torch.device, Callable[[], object]]  # where it is, and the rest of it


def _spread(model: torch.nn.Module) -> torch.device:
    size = sum(p.nbytes for p in model.parameters())
    device = device_manager.find_device(size, disperse=True)
    ManagedModule.from_module(model).to(device)
    return device


def worlds() -> list[Task]:
    """48, of which the largest takes some thirty times the work of the smallest."""
    draw, found = random.Random(0), []
    for width in sorted((64 * int(4 * 6 ** draw.random()) for _ in range(48)), reverse=True):
        with torch.device("meta"):
            model = Transformer(width, 4, 4, 1000)
        found.append((_spread(model), _training(model, torch.randint(1000, (16, 128)))))
    return found


def _training(model: torch.nn.Module, tokens: torch.Tensor) -> Callable[[], object]:
    def train() -> None:
        device = next(model.parameters()).device
        x = tokens.as_subclass(ManagedTensor).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(model(x), x[:, 0]).backward()
            optimizer.step()

    return train


def models() -> list[Task]:
    from many_models import make_jobs, place, train

    jobs = make_jobs(100)
    place(jobs)
    return [(job.device, lambda job=job: train(job, STEPS)) for job in jobs]


def patches() -> list[Task]:
    import fault

    dense = [p for p in fault.cut(fault.load(), 128) if p.dense]
    found = []
    for p in dense:
        matrix = fault.as_tensor(p).as_subclass(ManagedTensor).cuda(disperse=True)
        found.append((matrix.device, lambda matrix=matrix, p=p: fault.solve(matrix, p)))
    return found


CASES = {
    "worlds": (worlds, False),
    "models": (models, False),
    "patches": (patches, True),
}


def group(case: str, devices: int) -> Report:
    """One case on so many devices, in this process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    make, values = CASES[case]
    memory = "512MiB" if values else None
    managed.simulate(devices, memory, preset=PRESET, values=values, repeatable=True)
    tasks = make()
    places = [torch.device("sim", i) for i in range(devices)]

    def work(place: torch.device) -> None:
        for device, task in tasks:
            if device == place:
                task()

    with ThreadPoolExecutor(devices) as pool:
        list(pool.map(work, places))
    return {"elapsed_s": torch.sim.elapsed(), "parts": parts(devices)}


def parts(devices: int) -> dict[str, float]:
    elapsed, busy = torch.sim.elapsed(), torch.sim.busy()
    found: dict[str, list[float]] = {"busy": [], "copies": [], "host": [], "early": []}
    for i in range(devices):
        ran, until = busy[f"sim:{i}"], torch.sim.virtual_time(i)
        link = busy.get(f"cpu->sim:{i}", 0.0) + busy.get(f"sim:{i}->cpu", 0.0)
        copies = min(link, until - ran)
        spent = {"busy": ran, "copies": copies, "host": until - ran - copies}
        for name, seconds in (spent | {"early": elapsed - until}).items():
            found[name].append(seconds / elapsed)
    return {name: statistics.mean(shares) for name, shares in found.items()}


def rows(reports: dict[int, Report]) -> list[list[str]]:
    alone = reports[1]["elapsed_s"]
    return [
        [
            f"{devices} devices",
            f"{r['elapsed_s'] * 1e3:.1f} ms",
            f"{alone / r['elapsed_s']:.2f}",
            *map(percent, r["parts"].values()),
        ]
        for devices, r in reports.items()
    ]


def main() -> int:
    parser = options(__file__, __doc__, "on 1 and 8 devices")
    parser.add_argument("--cases", default=",".join(CASES), help="with commas")
    asked = parser.parse_args()
    if asked.group:
        print(json.dumps(group(*json.loads(asked.group))))
        return 0
    results: dict[str, dict[int, Report]] = {}
    targets: list[tuple[str, float, float]] = []
    for case in asked.cases.split(","):
        if case not in CASES:
            raise SystemExit(f"there is no case {case!r}; there are {', '.join(CASES)}")
        counts = (1, 8) if asked.quick else DEVICES
        found = {n: apart(__file__, [case, n]) for n in counts}
        results[case] = found
        columns = ["time", "speed-up", *found[1]["parts"]]
        print_table(f"{case}, {PRESET}; parts in %", columns, rows(found))
        sys.stdout.flush()
        for n, faster in TARGETS.get(case, {}).items():
            if n in found:
                share = found[n]["elapsed_s"] / found[1]["elapsed_s"]
                targets.append((f"{case}: time of {n} devices over that of 1", share, 1 / faster))
    missed = [t for t in verdicts(targets) if not t["pass"]]
    write({"cases": results, "missed": missed}, asked.out)
    return int(asked.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
