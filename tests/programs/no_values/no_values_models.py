"""What models in training count, with values and without, as JSON.

`python no_values_models.py WITH_VALUES WITHOUT EVERY`. Each EVERY-th of five models, with two
optimizers, in all memory that they use and in 60 and 40 % of it: peak, virtual time, and how often
and how much moved.
"""

import gc
import json
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import both_ways
import torch
from budgeted import managed_on, vacated
from training import MODELS, Trained

import managed

COUNTS = ("spill", "drop", "restore", "copy", "move")


def trained(model, optimizer, budget):
    with vacated():
        if budget:
            managed.budget("sim:0", budget)
        managed.stats(reset=True)
        start, end = torch.sim.elapsed(), "trained"
        try:
            running = Trained(model, optimizer, managed_on)
            for _ in range(3):
                running.step()
        except managed.OutOfMemoryError as error:
            end = str(error).splitlines()[0]
        counted = managed.stats()
        row = {"end": end, "peak": torch.sim.max_memory_allocated(0)}
        row["ns"] = round((torch.sim.elapsed() - start) * 1e9)
        row |= {n: counted[n] for kind in COUNTS for n in (kind, f"{kind}_bytes")}
        running = None
        gc.collect()
    return row


def write(path, values, every):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    managed.simulate(2, "4GiB", "a100-40g", values=values, repeatable=True)
    rows = {}
    for name, model in list(MODELS.items())[::every]:
        for optimizer in ("adamw", "adamw-fused"):
            whole = rows[f"{name} {optimizer} 1.0"] = trained(model, optimizer, None)
            for part in (0.6, 0.4):
                budget = int(whole["peak"] * part)
                rows[f"{name} {optimizer} {part}"] = trained(model, optimizer, budget)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(rows, file)


if __name__ == "__main__":
    both_ways.run(write)
