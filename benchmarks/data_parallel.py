"""managed.DataParallel on simulated devices: a step of N times the batch beside one device's.

    python benchmarks/data_parallel.py [--quick] [--check] [--out FILE]

speed  GPT-2 medium with tied embeddings under bfloat16 autocast (8 x 1024 tokens a device) and
       ResNet-50 (64 images a device) with AdamW, on simulated A100s with NVLink and on RTX 4090s,
       whose copies share the host's links, and one device of the same kind for comparison. `times`:
       N times one device's step over this one. `bound`: the sum over forward pass, backward pass
       and optimizer of the longer of operators and the busiest port, which no order of the same
       work can beat, over this step. Times are virtual, and the median of five: threads share the
       interpreter's lock, and their order is that of the machine. No values are computed.
bytes  What a device sends and receives in a step, the most of all devices, over
       2 (N - 1) / N times the gradients, which is what any exchange without a hub must move.
budget A step of sixteen 4096 x 4096 layers whose devices have 0.6 of the peak, on A100s of which
       two are behind each PCIe switch: its virtual time over what the learned plans predict.
host   A model of 3,000 small parameters in real time: a step on 4 devices over 4 steps on one.

--check: the exit status is 1 if a step takes longer than its bound over 0.9, if more than 1 % more
bytes cross at N = 2 or 4, or if the host's ratio, or time over prediction, is over 1.25.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from pipeline import gpt2
from published import resnet
from report import Report, print_table, verdicts, write
from torch import nn
from virtual import apart, options, simulate

import managed
from managed._simulated.presets import PRESETS

CASES = ("GPT-2", "ResNet-50")
CARDS = ("a100-80g-sxm", "rtx4090")


def loss_of(case: str) -> Callable[[Any, Any, Any], torch.Tensor]:
    if case == "GPT-2":
        return lambda net, x, y: F.cross_entropy(net(input_ids=x).logits.flatten(0, 1), y.flatten())
    return lambda net, x, y: F.cross_entropy(net(x), y)


def batch_of(case: str, devices: int) -> tuple[torch.Tensor, torch.Tensor]:
    if case == "GPT-2":
        tokens = torch.zeros(8 * devices, 1024, dtype=torch.long)
        return tokens, tokens
    return torch.empty(64 * devices, 3, 224, 224), torch.zeros(64 * devices, dtype=torch.long)


def made(case: str) -> nn.Module:
    with torch.device("meta"):
        model = gpt2() if case == "GPT-2" else resnet((3, 4, 6, 3))
    model.to_empty(device="cpu")
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    return model


def measure(case: str, card: str, devices: int) -> Report:
    """A step when all has settled, in s, and what devices and links did in its parts."""
    managed.COPY_WARNING = 0
    simulate(PRESETS[card], devices, repeatable=False)
    model, loss = made(case), loss_of(case)
    size = sum(p.nbytes for p in model.parameters())
    if devices == 1:
        net: Any = managed.ManagedModule.from_module(model).cuda()
    else:
        net = managed.DataParallel(model)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    x, y = batch_of(case, devices)
    sim: Any = torch.sim  # type: ignore[attr-defined]
    names = [f"sim:{i}" for i in range(devices)]

    def ended() -> tuple[float, dict[str, float]]:
        for i in range(devices):
            sim.synchronize(i)
        return sim.elapsed(), sim.busy()

    def step(parted: bool) -> list[tuple[float, dict[str, float]]]:
        """Time and work after each part of a step; apart, each part waits for the one before."""
        marks = [ended()]
        cast = torch.autocast("sim", torch.bfloat16) if case == "GPT-2" else nullcontext()
        with cast:
            found = (
                loss(net, x.to("sim:0"), y.to("sim:0")) if devices == 1 else net.each(loss, x, y)
            )
        marks += [ended()] if parted else []
        found.backward()
        marks += [ended()] if parted else []
        optimizer.step()
        optimizer.zero_grad()
        return [*marks, ended()]

    for _ in range(4):
        step(False)
    managed.stats(reset=True)
    step(False)
    links, waits = managed.stats()["links"], managed.stats()["host_waits"]
    times = [after[0] - before[0] for before, after in (step(False) for _ in range(5))]
    parts = step(True)
    bound = 0.0
    for (_, busy), (_, then) in itertools.pairwise(parts):
        work = {k: v - busy.get(k, 0.0) for k, v in then.items()}
        ports = [
            max(
                sum(v for k, v in work.items() if k.startswith(f"{n}->sim")),
                sum(v for k, v in work.items() if k.endswith(f"->{n}") and k.startswith("sim")),
            )
            for n in names
        ]
        bound += max(*(work.get(n, 0.0) for n in names), *ports, 0.0)
    sent = [sum(v for k, v in links.items() if k.startswith(f"{n}->sim")) for n in names]
    got = [
        sum(v for k, v in links.items() if k.endswith(f"->{n}") and "cpu" not in k) for n in names
    ]
    return {
        "time": statistics.median(times),
        "bound": bound,
        "bytes": max(*sent, *got) / (2 * (devices - 1) / devices * size) if devices > 1 else 0.0,
        "waits": waits,
    }


def spilling(devices: int) -> Report:
    """A step in which bytes leave each device, in s, and what the slowest plan predicts."""
    simulate(PRESETS["a100-80g-sxm"], devices)
    net = managed.DataParallel(nn.Sequential(*(nn.Linear(4096, 4096, False) for _ in range(16))))
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    sim: Any = torch.sim  # type: ignore[attr-defined]

    def step() -> float:
        x = torch.empty(64 * devices, 4096)
        net.each(lambda part, x: part(x).square().mean(), x).backward()
        optimizer.step()
        optimizer.zero_grad()
        for i in range(devices):
            sim.synchronize(i)
        return sim.elapsed()

    step(), step()
    for i in range(devices):
        managed.budget(f"sim:{i}", int(0.6 * sim.max_memory_allocated(i)))
    *_, before, after = (step() for _ in range(12))
    plans = [managed._C.step_state(i + 1) for i in range(devices)]
    assert all(plan["follows"] for plan in plans)
    return {"time": after - before, "predicted": max(plan["predicted"] for plan in plans) * 1e-9}


def small(devices: int) -> Report:
    """Real seconds of a step of 3,000 small parameters."""
    managed.COPY_WARNING = 0
    managed.simulate(devices, "1GiB")
    torch.set_num_threads(1)
    layers = [nn.Linear(16, 16) for _ in range(1500)]
    net: Any = nn.Sequential(*layers)
    net = (
        managed.DataParallel(net) if devices > 1 else managed.ManagedModule.from_module(net).cuda()
    )
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    x = torch.randn(8 * devices, 16)

    def loss(module: Any, given: torch.Tensor) -> torch.Tensor:
        return module(given).square().mean()

    def step() -> float:
        begin = time.perf_counter()
        (net.each(loss, x) if devices > 1 else loss(net, x.to("sim:0"))).backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - begin

    for _ in range(3):
        step()
    return {"time": statistics.median(step() for _ in range(9))}


def speed(quick: bool, targets: list[tuple[str, float, float]]) -> Report:
    grid = [("ResNet-50", "rtx4090")] if quick else [(c, card) for c in CASES for card in CARDS]
    found: Report = {}
    rows = []
    for case, card in grid:
        one = apart(__file__, [case, card, 1])["time"]
        for devices in (4,) if quick else (2, 4, 8):
            r = apart(__file__, [case, card, devices])
            times, bound = devices * one / r["time"], r["bound"] / r["time"]
            found[f"{case} {card} {devices}"] = r | {"times": times}
            row = [f"{case}, {devices} x {card}", f"{1e3 * r['time']:.1f}", f"{times:.2f}"]
            rows.append([*row, f"{bound:.2f}", f"{r['bytes']:.3f}", f"{r['waits']}"])
            targets.append((f"{case}, {devices} x {card}: time over bound", 1 / bound, 1 / 0.9))
            if devices <= 4:
                targets.append((f"{case}, {devices} x {card}: bytes", r["bytes"], 1.01))
    print_table("a step on N devices", ["ms", "times", "bound", "bytes", "host waits"], rows)
    return found


def main() -> int:
    told = options(__file__, __doc__, "one model on four cards").parse_args()
    if told.group:
        given = json.loads(told.group)
        kinds = {1: spilling, 3: measure}
        print(json.dumps(small(given) if isinstance(given, int) else kinds[len(given)](*given)))
        return 0
    targets: list[tuple[str, float, float]] = []
    results = {"speed": speed(told.quick, targets), "budget": {}}
    for devices in (2, 4):
        found = apart(__file__, [devices])
        results["budget"][f"{devices}"] = found
        ratio = found["time"] / found["predicted"]
        targets.append((f"0.6 of the peak on {devices}: time over prediction", ratio, 1.25))
    ratios = [apart(__file__, 4)["time"] / (4 * apart(__file__, 1)["time"]) for _ in range(3)]
    results["host"] = {"ratios": ratios}
    targets.append(("3,000 parameters: 4 devices over 4 x one", statistics.median(ratios), 1.25))
    records = verdicts(targets)
    write({**results, "targets": records}, told.out)
    return int(told.check and not all(r["pass"] for r in records))


if __name__ == "__main__":
    sys.exit(main())
