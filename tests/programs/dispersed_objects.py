"""Spreads objects of any size over devices of any size; prints sizes and what devices held."""

import json
import random

import torch

import managed
from managed import ManagedTensor

managed.simulate(devices=4, memory="256MiB")
result = {}
for seed in range(6):
    rng = random.Random(seed)
    sizes = [rng.choice((1, 10, 1000)) * rng.randint(1, 4096) for _ in range(rng.randint(1, 40))]
    for i in range(4):
        managed.budget(f"sim:{i}", f"{rng.randint(170, 256)}MiB")
    kept, held = [], []
    for size in sizes:
        x = torch.empty(size, dtype=torch.uint8).as_subclass(ManagedTensor)
        kept.append(x.cuda(disperse=True))
        held.append([torch.sim.memory_allocated(i) for i in range(4)])
    result[seed] = sizes, held
    del x, kept
print(json.dumps(result))
