"""A training under a budget that loads and saves the plans of a file, which is its argument."""

import sys

import torch
from torch import nn

import managed
from managed import ManagedModule, ManagedTensor

torch.set_num_threads(1)
managed.simulate(1, memory="16MiB")
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(10)])
model = ManagedModule.from_module(model).to("sim:0")
optimizer = torch.optim.SGD(model.parameters(), 1e-4)
x = torch.randn(64, 512).as_subclass(ManagedTensor)
managed.budget("sim:0", "12MiB")
taken = managed.load_plans(sys.argv[1])
for _ in range(8):
    managed.stats(reset=True)
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    s, state = managed.stats(), managed._C.step_state(1)
    print(taken, state["follows"], s["restore_bytes"], loss.item().hex())
managed.save_plans(sys.argv[1])
