"""managed.Pipeline on simulated devices: its time beside the formula and beside one device.

    python benchmarks/pipeline.py [--quick] [--check] [--out FILE]

formula  equal linear layers, links and issuing that take no time, p devices and m parts. A step of
         GPipe and of 1F1B takes (m + p - 1) / m times the work of a stage. Times are virtual.
models   GPT-2 medium with tied embeddings under bfloat16 autocast (parts of 8 x 1024 tokens) and
         ResNet-152 (parts of 32 images) on simulated A100s in 16 parts, beside the work of one
         device: how much faster a step is, and what the rest is. `bubble`: the formula's part of a
         step; `uneven`: stages are not equal; `rest`: links, issuing, and what the host does.
         `plan` is the time that plan() expects over the time of the step, and `peak` the largest
         ratio, over the devices, of the bytes in use over those that plan() expects.

No values are computed. --check: the exit status is 1 if a step of the formula's part takes 1 % more
than the formula allows, if 4 devices are less than 3 times as fast as one, or if time or peak of
plan() are more than 5 % away.
"""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from published import resnet
from report import Report, print_table, verdicts, write
from torch import nn
from virtual import apart, options, simulate

import managed
from managed._simulated.presets import PRESETS, Preset

A100 = PRESETS["a100-80g-sxm"]


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=24, n_embd=1024, n_head=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        attn_implementation="eager", use_cache=False, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def linear(devices: int) -> nn.Module:
    return nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(4 * devices)])


def of_tokens(output: Any, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.logits.flatten(0, 1), target.flatten())


def program(case: str, devices: int, parts: int) -> tuple[nn.Module, Any, Any, Any, Any]:
    """The model, its batch, its targets, the loss function and a context for its steps."""
    cast: AbstractContextManager[Any] = nullcontext()
    if case == "GPT-2":
        tokens = torch.zeros(8 * parts, 1024, dtype=torch.long)
        cast = torch.autocast("sim", torch.bfloat16)
        return gpt2(), {"input_ids": tokens}, tokens, of_tokens, cast
    if case == "ResNet-152":
        images = torch.empty(32 * parts, 3, 224, 224, device="sim:0")
        labels = torch.zeros(32 * parts, dtype=torch.long)
        return resnet((3, 8, 36, 3)), images, labels, F.cross_entropy, cast
    # The input wants a gradient, so that the first layer's backward pass is as long as the others'.
    x = torch.empty(8192 * parts, 4096, device="sim:0").requires_grad_()
    return linear(devices), x, None, lambda y, _: y.mean(), cast


def free(preset: Preset) -> Preset:
    """A device whose copies to others and whose issuing take no time."""
    return preset._replace(
        peer_bytes_per_ns=1e6, peer_latency_ns=0, host_bytes_per_ns=1e6, host_latency_ns=0,
        devices_per_switch=1, peers_over_host=False, issue_ns=0, python_ns=0,
    )  # fmt: skip


def measure(case: str, devices: int, parts: int, schedule: str) -> Report:
    managed.COPY_WARNING = 0
    simulate(free(A100) if case == "linear" else A100, devices)
    with torch.device("meta"):
        model, *_ = program(case, devices, parts)
    model.to_empty(device="cpu")
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    _, batch, target, loss, cast = program("none" if case == "linear" else case, devices, parts)
    pipe = managed.Pipeline(model, parts, schedule=schedule)
    everywhere = range(devices)

    def step() -> tuple[float, list[float], list[int]]:
        for i in everywhere:
            torch.sim.synchronize(i)  # type: ignore[attr-defined]
            torch.sim.reset_peak_memory_stats(i)  # type: ignore[attr-defined]
        begin, busy = torch.sim.virtual_time("cpu"), torch.sim.busy()  # type: ignore[attr-defined]
        with cast:
            pipe.step(loss, batch, target)
        took = torch.sim.elapsed() - begin  # type: ignore[attr-defined]
        after = torch.sim.busy()  # type: ignore[attr-defined]
        peaks = [torch.sim.max_memory_allocated(i) for i in everywhere]  # type: ignore[attr-defined]
        for p in model.parameters():
            p.grad = None
        return took, [after[f"sim:{i}"] - busy[f"sim:{i}"] for i in everywhere], peaks

    for _ in range(5):  # the first measures, and up to three more look for a cut that serves
        took, work, peaks = step()
    plan = pipe.plan()
    print(plan, file=sys.stderr)
    expected = {str(s.device): s.peak for s in plan.stages}
    return {
        "time": took,
        "work": work,
        "planned": plan.step_ns * 1e-9,
        "peaks": peaks,
        "peak": max(peaks[int(d.removeprefix("sim:"))] / peak for d, peak in expected.items()),
        "waits": managed.stats()["host_waits"],
        "schedule": plan.schedule,
        "back": plan.goes_back,
    }


def formula(quick: bool, targets: list[tuple[str, float, float]]) -> Report:
    grid = [(2, 4), (4, 8)] if quick else [(p, m) for p in (2, 4, 8) for m in (4, 8, 16, 32)]
    found: Report = {}
    rows = []
    for p, m in grid:
        cells = []
        for schedule in ("gpipe", "1f1b"):
            r = apart(__file__, ["linear", p, m, schedule])
            ratio = r["time"] / (max(r["work"]) * (m + p - 1) / m)
            found[f"{p} {m} {schedule}"] = r | {"ratio": ratio}
            targets.append((f"{schedule}, p={p}, m={m}: over the formula", ratio, 1.01))
            cells.append(f"{ratio:.4f}")
        rows.append([f"p={p} m={m}", f"{(m + p - 1) / m:.3f}", *cells])
    print_table("time over (m + p - 1) / m times a stage", ["formula", "gpipe", "1f1b"], rows)
    return found


def models(quick: bool, targets: list[tuple[str, float, float]]) -> Report:
    cases = (
        [("ResNet-152", 4)] if quick else [(c, p) for c in ("GPT-2", "ResNet-152") for p in (4, 8)]
    )
    found: Report = {}
    rows = []
    m = 16
    for case, p in cases:
        for schedule in ("1f1b",) if quick else ("gpipe", "1f1b"):
            r = apart(__file__, [case, p, m, schedule])
            work, time = r["work"], r["time"]
            speed = sum(work) / time
            even = sum(work) / p * (m + p - 1) / m
            uneven = max(work) * (m + p - 1) / m
            bubble = 1 - sum(work) / p / even
            found[f"{case} {p} {schedule}"] = r | {"speed": speed}
            rows.append(
                [
                    f"{case}, {p} devices, {r['schedule']}", f"{speed:.2f}", f"{bubble:.1%}",
                    f"{(uneven - even) / time:.1%}", f"{1 - uneven / time:.1%}",
                    f"{r['planned'] / time:.3f}", f"{r['peak']:.3f}",
                    " ".join(f"{b / 2**30:.1f}" for b in r["peaks"]),
                ]
            )  # fmt: skip
            if p == 4 and schedule == "1f1b":
                targets += [
                    (f"{case}: one device over 4 devices", 1 / speed, 1 / 3.0),
                    (f"{case}: plan's time", abs(r["planned"] / time - 1), 0.05),
                    (f"{case}: plan's peak", abs(r["peak"] - 1), 0.05),
                ]
    columns = ["times one", "bubble", "uneven", "rest", "plan", "peak", "peaks, GiB"]
    print_table("models in 16 parts on simulated A100s", columns, rows)
    return found


def main() -> int:
    told = options(__file__, __doc__, "two shapes of the formula and one model").parse_args()
    if told.group:
        print(json.dumps(measure(*json.loads(told.group))))
        return 0
    targets: list[tuple[str, float, float]] = []
    results = {"formula": formula(told.quick, targets), "models": models(told.quick, targets)}
    records = verdicts(targets)
    write({**results, "targets": records}, told.out)
    return int(told.check and not all(r["pass"] for r in records))


if __name__ == "__main__":
    sys.exit(main())
