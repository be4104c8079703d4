"""A training that `managed plan` plans.

`python planned_training.py RATE [LINE]`: with a line of a plan, as JSON, it runs with values on
devices as there, and prints what its step took.
"""

import json
import os
import sys

import torch
from torch import nn

import managed
from managed import ManagedModule, ManagedTensor

line = json.loads(sys.argv[2]) if len(sys.argv) > 2 else None
if line:
    torch.set_num_threads(1)
    managed.simulate(line["count"], line["memory_bytes"], line["preset"], repeatable=True)
    for i in range(line["count"] if line["budget_bytes"] else 0):
        managed.budget(i, line["budget_bytes"])
else:
    managed.simulate(2)  # the plan simulates its own devices
layers = [nn.Linear(512, 512) for _ in range(6)]
model = ManagedModule.from_module(nn.Sequential(*layers, nn.Linear(512, 10))).cuda(disperse=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=float(sys.argv[1]))
os.makedirs("out", exist_ok=True)
for step in range(line["steps"] if line else 100):
    managed.stats(reset=True)
    begun = torch.sim.elapsed()
    x = torch.randn(256, 512).as_subclass(ManagedTensor)
    model(x).square().mean().backward()
    optimizer.step()
    took = torch.sim.elapsed() - begun
    counted = managed.stats()
    optimizer.zero_grad()
    if not line:
        torch.save({"step": torch.tensor(step)}, f"out/{step}.pt")
        assert torch.load(f"out/{step}.pt")["step"] == step
    assert step < 8, "it went on after its steps"
print(
    json.dumps(
        {
            "peak": [torch.sim.max_memory_allocated(i) for i in range(torch.sim.device_count())],
            "left": {kind: counted[f"{kind}_bytes"] for kind in ("spill", "spare", "drop")},
            "step": took,
        }
    )
)
