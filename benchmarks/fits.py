"""What fits where, and how long a step takes: models of real size on devices without values.

    python benchmarks/fits.py [--models gpt2,llama3-8b] [--machines h100-sxm,8xh100-sxm] [--json F]

Each cell is a process of its own that makes the model on meta, places it (over all devices where
there are several), and trains three steps with AdamW on random tokens. It prints the peak of the
fullest device, what spilled in a step, the virtual time of the last step, and the real time and
the memory that the process took for that. `--check` exits with 1 if a step takes 1 s of real time
or the process 1 GB, as the two large models must not.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from report import print_table, write
from tree import ROOT

GIB = 2**30


class Machine(NamedTuple):
    devices: int
    preset: str


MACHINES = {
    "rtx4090": Machine(1, "rtx4090"),
    "a100-40g": Machine(1, "a100-40g"),
    "h100-sxm": Machine(1, "h100-sxm"),
    "8xh100-sxm": Machine(8, "h100-sxm"),
}

#: Sequences of so many tokens, whether numbers are halved (weights, states and all), and the sizes
#: of transformers' configurations.
MODELS: dict[str, tuple[tuple[int, int], bool, str, dict[str, int]]] = {
    "gpt2": ((8, 1024), False, "GPT2", {"n_embd": 768, "n_head": 12, "n_layer": 12}),
    "gpt2-xl": ((4, 1024), False, "GPT2", {"n_embd": 1600, "n_head": 25, "n_layer": 48}),
    "gpt3-6.7b": (
        (1, 1024), False, "GPT2",
        {"n_embd": 4096, "n_head": 32, "n_layer": 32, "n_positions": 2048},
    ),
    "llama3-8b": (
        (1, 1024), True, "Llama",
        {
            "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "max_position_embeddings": 8192,
        },
    ),
}  # fmt: skip
_DROPOUTS = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def build(name: str, device: str = "meta") -> Any:
    """The model, on meta unless it is asked for elsewhere."""
    import torch
    import transformers

    _, halved, kind, sizes = MODELS[name]
    dropouts = _DROPOUTS if kind == "GPT2" else {}
    config = getattr(transformers, f"{kind}Config")(**sizes, **dropouts)
    torch.set_default_dtype(torch.bfloat16 if halved else torch.float32)
    with torch.device(device):
        model = getattr(transformers, f"{kind}LMHeadModel" if dropouts else f"{kind}ForCausalLM")(
            config
        )
    torch.set_default_dtype(torch.float32)
    return model


def steps(model: Any, batch: int, length: int, count: int) -> list[tuple[float, float]]:
    """Virtual and real seconds of each of `count` steps."""
    import torch
    import torch.nn.functional as F

    import managed

    vocabulary = model.config.vocab_size
    tokens = torch.randint(vocabulary, (batch, length)).as_subclass(managed.ManagedTensor)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    took = []
    for _ in range(count):
        managed.stats(reset=True)
        virtual, real = torch.sim.elapsed(), time.perf_counter()
        optimizer.zero_grad()
        logits = model(tokens, use_cache=False).logits[:, :-1].reshape(-1, vocabulary)
        F.cross_entropy(logits, tokens[:, 1:].reshape(-1).to(logits.device)).backward()
        optimizer.step()
        took.append((torch.sim.elapsed() - virtual, time.perf_counter() - real))
    return took


def cell(name: str, machine: str) -> dict[str, Any]:
    """One model on one machine, in this process."""
    import torch

    import managed

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    devices, preset = MACHINES[machine]
    managed.simulate(devices, preset=preset, values=False)
    (batch, length), *_ = MODELS[name]
    found: dict[str, Any] = {"model": name, "machine": machine, "batch": batch, "length": length}
    try:
        model = managed.ManagedModule.from_module(build(name))
        found["parameters"] = sum(p.numel() for p in model.parameters())
        model.cuda(disperse=devices > 1)
        took = steps(model, batch, length, 3)
    except managed.OutOfMemoryError as error:
        return found | {"error": str(error).splitlines()[0]}
    counted = managed.stats()
    return found | {
        "peak": [torch.sim.max_memory_allocated(i) for i in range(devices)],
        "spilled": counted["spill_bytes"] + counted["spare_bytes"],
        "restored": counted["restore_bytes"],
        "copied": counted["copy_bytes"],
        "virtual_s": took[-1][0],
        "real_s": took[-1][1],
        "first_real_s": took[0][1],
        "process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def run(name: str, machine: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--cell", name, machine]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(found: dict[str, Any]) -> list[str]:
    name = f"{found['model']} {found['batch']} x {found['length']} on {found['machine']}"
    if "error" in found:
        return [name, "does not fit", "", "", "", "", ""]
    return [
        name,
        f"{max(found['peak']) / GIB:.1f} GiB",
        f"{found['spilled'] / GIB:.1f} GiB",
        f"{found['copied'] / GIB:.1f} GiB",
        f"{found['virtual_s'] * 1e3:.0f} ms",
        f"{found['real_s']:.2f} s",
        f"{found['process'] / 1e6:.0f} MB",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--machines", default=",".join(MACHINES))
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench" / "fits.json")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.cell:
        print(json.dumps(cell(*asked.cell)))
        return
    names, machines = asked.models.split(","), asked.machines.split(",")
    for wrong in (set(names) - set(MODELS)) | (set(machines) - set(MACHINES)):
        raise SystemExit(f"there is no {wrong!r}; there are {', '.join((*MODELS, *MACHINES))}")
    cells = [run(name, machine) for name in names for machine in machines]
    columns = ["peak", "spilled", "copied", "step", "real", "process"]
    print_table("a step after the first, without values", columns, [row(c) for c in cells])
    write({"cells": cells}, asked.json)
    slow = [c for c in cells if c.get("real_s", 0) > 1 or c.get("process", 0) > 1e9]
    if asked.check and slow:
        raise SystemExit(f"over 1 s or 1 GB: {slow}")


if __name__ == "__main__":
    main()
