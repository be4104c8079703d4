"""Loads files to each place there is: `python loaded_elsewhere.py FOLDER COUNT`, of devices."""

import sys
from typing import Any

import torch

import managed
from managed import ManagedTensor

torch.set_num_threads(1)
folder, devices = sys.argv[1], int(sys.argv[2])
if devices:
    managed.simulate(devices=devices, memory="64MiB")
weights, expected = torch.load(folder + "/plain.pt")
names = [f"sim:{i}" for i in range(devices)]
ways: list[Any] = ["cpu", torch.device("cpu"), lambda storage, location: storage, *names]
if devices:
    ways.append({f"sim:{i}": names[i % devices] for i in range(4)})
for way in ways:
    state = torch.load(folder + "/state.pt", map_location=way)
    assert all(torch.equal(state[k].cpu(), weights[k]) for k in weights), way
    net = torch.load(folder + "/net.pt", map_location=way, weights_only=False)
    assert torch.equal(net(torch.ones(2, 64)).cpu(), expected), way
    assert all(isinstance(p, ManagedTensor) for p in net.parameters())
    net.load_state_dict(state)
try:
    torch.load(folder + "/state.pt")
except RuntimeError as error:
    print(error)
