"""Inference of a model of which a part fits: how near a pass comes to what its missing bytes take.

    python benchmarks/stream.py [--quick] [--check] [--models gpt2-xl,mlp] [--fractions 1,0.5]
                                [--json FILE]

On one simulated A100 40 GB without values. The budget is a part of what a pass holds without one.
A pass can take no less than its operators, nor than copying what is missing: its weights, but for
those that the budget holds beside twice the largest working set, one for the operator that runs
and one for that which comes. The tables have a pass, three long after three others, over the larger
of the two. What others publish of models that do not fit, and what we take from it:

- Accelerate (huggingface/accelerate, benchmarks/big_model_inference/README.md): OPT-30B in float16
  on two Titan RTX with 14.1 GB of it on the host, 2.37 s a token. Over PCIe 3.0 x16 (16 GB/s) the
  14.1 GB take 0.88 s: 2.7 times the least.
- FlexGen (benchmark/batch_size_table.md): OPT-30B in float16 (60 GB) on a T4 of 16 GB and PCIe 3.0
  x16, 512 tokens in and 32 out. Accelerate 0.62 tokens/s in batches of 8, DeepSpeed ZeRO-Inference
  0.60 in batches of 4: 12.9 and 6.7 s a pass, the prompt's share included. To copy 60 GB takes
  3.8 s: 3.4 and 1.8 times, more where a part stays on the card.
- Diffusers (docs, optimization/fp16): sequential offloading brings Stable Diffusion under 3 GB and
  is "much slower"; it gives no figure.

--check: the exit status is 1 where the learned policy takes more than 1.1 times as
much although the budget is at least twice the largest working set.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import fits
import torch
from bound import recorded
from budgeted import vacated, without_handle
from ideal import LEARNED
from report import Report, print_table, verdicts, write
from torch import nn
from training import DEVICE
from virtual import apart, compared, options, percent, placed, pressed, simulate, timed

from managed._simulated.presets import PRESETS

PRESET = "a100-40g"
FRACTIONS = "1,0.75,0.5,0.25,0.1,0.05"
QUICK = "1,0.5,0.1"


def language(batch: int) -> Callable[[], None]:
    """A prompt of 1,024 tokens, of which the last one's logits are wanted, in bfloat16."""
    model = fits.build("gpt2-xl").to(torch.bfloat16).eval().to_empty(device="cpu")
    model.tie_weights()  # which to_empty() does not keep
    model = placed(model)
    tokens = placed(torch.randint(50257, (batch, 1024)))
    return lambda: model(tokens, use_cache=False, logits_to_keep=1)


def chain(batch: int) -> Callable[[], None]:
    """64 layers that are all alike."""
    width = 8192
    layers: list[nn.Module] = []
    with torch.device("meta"):
        for _ in range(64):
            layers += [nn.Linear(width, width, dtype=torch.bfloat16), nn.ReLU()]
    model = placed(nn.Sequential(*layers))
    x = placed(torch.empty(batch, width, dtype=torch.bfloat16))
    return lambda: model(x)


MODELS = {
    "gpt2-xl": ("GPT-2 XL, 1 x 1024 tokens", lambda: language(1)),
    "gpt2-xl-8": ("GPT-2 XL, 8 x 1024 tokens", lambda: language(8)),
    "mlp": ("64 layers of 8192 x 8192, batch 512", lambda: chain(512)),
}


def group(name: str, fractions: list[float]) -> Report:
    """One model in this process."""
    preset = PRESETS[PRESET]
    simulate(preset)
    torch.set_grad_enabled(False)
    _, make = MODELS[name]
    with vacated():
        step = make()
        held = torch.sim.memory_allocated(DEVICE)  # the weights and the input
        free = timed(step)
        program, _ = recorded(step)
        twice = 2 * program.largest() + without_handle()
        del step
    report: Report = {"name": name, "free": free, "held": held, "twice": twice, "cells": []}
    for fraction in fractions:
        budget = int(free["peak"] * fraction)
        missing = 0 if budget >= free["peak"] else held - max(0, budget - twice)
        least = max(free["step_s"], missing / preset.host_bytes_per_ns * 1e-9)
        found = {p: pressed(make, budget, p) for p in compared()}
        for row in found.values():
            if "step_s" in row:
                row["over"] = row["step_s"] / least
        one = {"fraction": fraction, "budget": budget, "missing": missing, "least_s": least}
        report["cells"].append(one | {"policies": found})
    return report


def rows(report: Report, names: list[str]) -> list[list[str]]:
    table = []
    for one in report["cells"]:
        over = [one["policies"][p].get("over") for p in names]
        table.append(
            [
                f"{percent(one['fraction'])} %" + ("" if fits_twice(report, one) else ", less"),
                f"{one['budget'] / 1e9:.2f} GB",
                f"{one['missing'] / 1e9:.2f} GB",
                f"{one['least_s'] * 1e3:.1f} ms",
                *("no room" if o is None else f"{o:.2f}" for o in over),
            ]
        )
    return table


def title_of(report: Report) -> str:
    free = report["free"]
    return (
        f"a pass over the least: {MODELS[report['name']][0]}; {report['held'] / 1e9:.2f} GB, "
        f"twice the largest working set {report['twice'] / 1e9:.2f} GB, "
        f"without a budget {free['step_s'] * 1e3:.1f} ms, idle {abs(100 * free['idle']):.1f} %"
    )


def fits_twice(report: Report, one: Report) -> bool:
    return bool(one["budget"] >= report["twice"])


def targets(reports: list[Report]) -> list[tuple[str, float, float]]:
    """All are of the learned policy."""
    return [
        (f"{r['name']}, {percent(one['fraction'])} %", found.get("over", float("inf")), 1.1)
        for r in reports
        for one in r["cells"]
        if fits_twice(r, one) and (found := one["policies"].get(LEARNED)) is not None
    ]


def main() -> int:
    parser = options(__file__, __doc__, f"parts {QUICK}")
    parser.add_argument("--models", default=",".join(MODELS), help="with commas")
    parser.add_argument("--fractions", help=f"that fit, with commas; {FRACTIONS}")
    asked = parser.parse_args()
    if asked.group:
        print(json.dumps(group(*json.loads(asked.group))))
        return 0
    told = asked.fractions or (QUICK if asked.quick else FRACTIONS)
    fractions, names, reports = [float(f) for f in told.split(",")], compared(), []
    columns = ["budget", "missing", "at least", *names]
    for model in asked.models.split(","):
        if model not in MODELS:
            raise SystemExit(f"there is no model {model!r}; there are {', '.join(MODELS)}")
        report = apart(__file__, [model, fractions])
        reports.append(report)
        print_table(title_of(report), columns, rows(report, names))
        sys.stdout.flush()
    missed = [t for t in verdicts(targets(reports)) if not t["pass"]]
    if LEARNED not in names:
        print(f"\nthis build has no policy {LEARNED!r}, of which the targets are")
    write({"policies": names, "models": reports, "missed": missed}, asked.out)
    return int(asked.check and (bool(missed) or LEARNED not in names))


if __name__ == "__main__":
    sys.exit(main())
