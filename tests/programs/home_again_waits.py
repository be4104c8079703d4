"""A block that came home waits for the streams that were in use; prints both times."""

import torch

import managed
from managed import _C, ManagedTensor

managed.simulate(1, "64MiB")
busy = torch.ones(2**20, device="sim:0")
x = torch.ones(2**20).as_subclass(ManagedTensor).to("sim:0")
side = torch.Stream("sim:0")
with side:
    busy.sin_()
_C.spill_all()
x.add_(1)
torch.sim.synchronize(0)
rest, _ = torch.sim.mem_get_info(0)
full = torch.empty(rest, dtype=torch.uint8, device="sim:0")
start = torch.sim.virtual_time("cpu")
with side:
    for _ in range(200):
        busy.sin_()
    others = torch.Event("sim:0")
    others.record(side)
del x
torch.empty(2**20, device="sim:0").zero_()
torch.sim.current_stream(0).synchronize()
waited = torch.sim.virtual_time("cpu") - start
others.synchronize()
print(torch.sim.virtual_time("cpu") - start, waited)
