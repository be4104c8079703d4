"""Whether a dispersed model stays dispersed: copies, spills and peaks beside a pinned one.

    python benchmarks/dispersed.py [--quick] [--check]

Two programs whose activations outweigh their weights, over four simulated devices by
cuda(disperse=True): 16 Linear(256, 256) with 512 rows, and a GPT-2 of 12 layers, trained with
AdamW in float32 and under autocast, with a budget and without, and without gradients. Each runs as
it is and with pin(), which keeps everything where the plan put it. All figures are the simulator's
and repeat exactly. `borders` is what a step copied, less the batch, over what is needed on both
sides of the plan's borders, gradients included. Writes build/bench/dispersed.json. With --check the
exit status is 1 when a figure is more than 5 % above the pinned one's, or more than 1.3 times the
borders.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from report import Report, machine, print_table, verdicts, write
from torch import nn
from tree import ROOT

import managed

DEVICES, MEMORY, STEPS = 4, "250MiB", 4
Loss = Callable[[Any, torch.Tensor], torch.Tensor]
FIGURES = {"copied": "copy_bytes", "spilled": "spill_bytes"}


def perceptron(quick: bool) -> tuple[nn.Module, Callable[[], torch.Tensor], Loss]:
    net = nn.Sequential(*[nn.Linear(256, 256) for _ in range(16)])
    return net, lambda: torch.randn(512, 256), lambda m, x: m(x).square().mean()


def gpt2(quick: bool) -> tuple[nn.Module, Callable[[], torch.Tensor], Loss]:
    from transformers import GPT2Config, GPT2LMHeadModel

    rows, length = (8, 64) if quick else (24, 128)
    config = GPT2Config(
        n_layer=12, n_embd=128, n_head=4, vocab_size=1000, n_positions=length, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    draw = lambda: torch.randint(0, 1000, (rows, length))  # noqa: E731
    return GPT2LMHeadModel(config), draw, lambda m, x: m(input_ids=x, labels=x).loss


#: name: program, budget of each device in the quick run and else, autocast, gradients
CASES: dict[str, tuple[Any, tuple[str, str] | None, bool, bool]] = {
    "perceptron": (perceptron, None, False, True),
    "perceptron, autocast": (perceptron, None, True, True),
    "perceptron, 3 MiB": (perceptron, ("3MiB", "3MiB"), False, True),
    "perceptron, inference": (perceptron, None, False, False),
    "GPT-2": (gpt2, None, False, True),
    "GPT-2, autocast": (gpt2, None, True, True),
    "GPT-2, half the memory": (gpt2, ("16MiB", "90MiB"), False, True),
    "GPT-2, inference": (gpt2, None, False, False),
}


def border_bytes(net: Any, batch: torch.Tensor) -> int:
    """What a forward pass needs on both sides of each border between layers, in float32."""
    found, last = [0], [batch.device]
    between: set[nn.Module] = set(net.modules())  # where no residual stream passes by
    stream = 0
    if hasattr(net, "transformer"):
        stream = batch.numel() * net.config.n_embd * 4
        between = {net.lm_head, net.transformer.ln_f, net.transformer.wte, net.transformer.wpe}
        between |= {block.ln_1 for block in net.transformer.h}

    def enter(module: nn.Module, inputs: Any) -> None:
        device = next(module.parameters(recurse=False)).device
        if device != last[0] and last[0].type != "cpu":
            found[0] += inputs[0].nbytes + (0 if module in between else stream)
        last[0] = device

    own = [m for m in net.modules() if next(m.parameters(recurse=False), None) is not None]
    handles = [m.register_forward_pre_hook(enter) for m in own]
    with torch.no_grad():
        net(batch)
    for handle in handles:
        handle.remove()
    return found[0]


def measure(name: str, pin: bool, quick: bool) -> Report:
    """Bytes of a step after the first, the largest peak, and how many parameters have moved."""
    make, budgets, autocast, grad = CASES[name]
    torch.manual_seed(0)
    module, draw, loss = make(quick)
    net = managed.ManagedModule.from_module(module).cuda(disperse=True)
    homes = [p.device for p in net.parameters()]
    if pin:
        net.pin()
    batch = draw()
    borders = border_bytes(net, batch) * (2 if grad else 1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for i in range(DEVICES):
        managed.budget(f"sim:{i}", budgets and budgets[0 if quick else 1])
    for step in range(STEPS):
        if step == 1:
            managed.stats(reset=True)
        optimizer.zero_grad()
        cast = torch.autocast("sim", torch.bfloat16, enabled=autocast)
        with torch.set_grad_enabled(grad), cast:
            value = loss(net, draw())
        if grad:
            value.backward()
            optimizer.step()
    total = managed.stats(reset=True)
    for i in range(DEVICES):
        managed.budget(f"sim:{i}", None)
    row: Report = {key: total[field] // (STEPS - 1) for key, field in FIGURES.items()}
    row["peak"] = max(d["peak"] - d["foreign"] for d in total["devices"].values())
    row["moved"] = sum(a != p.device for a, p in zip(homes, net.parameters(), strict=True))
    row["borders"] = (row["copied"] - batch.nbytes) / borders
    return row


def ratio(free: Report, pinned: Report, key: str) -> float:
    return float(free[key] / pinned[key]) if pinned[key] else 1.0 + free[key]


def targets_of(report: Report) -> list[tuple[str, float, float]]:
    """(what, measured, limit)"""
    found = []
    for name, row in report.items():
        free, pinned = row["free"], row["pinned"]
        ratios = {key: ratio(free, pinned, key) for key in (*FIGURES, "peak")}
        found += [(f"{name}, {key} over pinned", value, 1.05) for key, value in ratios.items()]
        found.append((f"{name}, copied over borders", free["borders"], 1.3))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller GPT-2")
    parser.add_argument("--check", action="store_true", help="exit status 1 for a missed target")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "dispersed.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    managed.simulate(devices=DEVICES, memory=MEMORY)
    results: Report = {"machine": machine(), "quick": options.quick, "cases": {}}
    for name in CASES:
        row = results["cases"][name] = {}
        for kind in ("free", "pinned"):
            row[kind] = measure(name, kind == "pinned", options.quick)
            gc.collect()
    rows = []
    for name, row in results["cases"].items():
        free = row["free"]
        cells = [f"{free[key] / 2**20:.1f}" for key in (*FIGURES, "peak")]
        ratios = [f"{ratio(free, row['pinned'], key):.3f}" for key in (*FIGURES, "peak")]
        rows.append([name, *cells, *ratios, f"{free['borders']:.2f}", str(free["moved"])])
    shown = ["copied", "spilled", "peak", "/ pinned", "/ pinned", "/ pinned", "/ borders", "moved"]
    print_table("MiB a step, and over the pinned model", shown, rows)
    results["targets"] = verdicts(targets_of(results["cases"]))
    write(results, options.out)
    return int(options.check and not all(t["pass"] for t in results["targets"]))


if __name__ == "__main__":
    sys.exit(main())
