"""A training over four devices, and its virtual times: `dispersed_training.py free|repeatable`."""

import sys
import threading

import torch

import managed

managed.simulate(4, "64MiB", repeatable=sys.argv[1] == "repeatable")
torch.manual_seed(0)
layers = [torch.nn.Linear(64, 64) for _ in range(8)]
model = managed.ManagedModule.from_module(torch.nn.Sequential(*layers)).cuda(disperse=True)
x = torch.ones(16, 64)
seen = set()
for p in model.parameters():
    p.register_hook(lambda g: seen.add(threading.current_thread().ident))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    loss = sum(model(x).square().mean() for _ in range(2))
    loss.backward()
    optimizer.step()
print(loss.item())
print([p.device.index for p in model.parameters()], seen == {threading.main_thread().ident})
print(torch.sim.elapsed(), torch.sim.busy())
