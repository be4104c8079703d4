"""How much longer the backward passes of two devices take than that of one."""

import json

import torch

import managed
from managed._simulated.presets import PRESETS

described = PRESETS["a100-40g"]._asdict() | {"python_ns": 10**6}  # more than issue_ns
described["efficiency"] = {}
with open("card.json", "w") as file:
    json.dump(described, file)
managed.simulate(2, "64MiB", preset="card.json", repeatable=False)
times = []
for devices in ((0,), (0, 1)):
    roots = []
    for d in devices:
        y = x = torch.ones(4, device=f"sim:{d}", requires_grad=True)
        for _ in range(300):
            y = y * 2.0
        roots.append(y)
    gradients = [torch.ones_like(y) for y in roots]
    [torch.sim.synchronize(i) for i in range(2)]
    begin = torch.sim.virtual_time("cpu")
    torch.autograd.backward(roots, gradients)
    [torch.sim.synchronize(i) for i in range(2)]
    times.append(torch.sim.virtual_time("cpu") - begin)
print(times[1] / times[0])
