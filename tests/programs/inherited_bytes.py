"""A forked child begins with the bytes that it has inherited, and its own audit counts them."""

import os

import torch

import managed
from managed import _sim

managed.simulate(2, "64MiB")
torch.set_num_threads(1)  # a child of fork() has none of OpenMP's
_sim.start_audit()
x = torch.ones(2**20, device="sim:0")
side = torch.Stream("sim:0")
event = torch.Event("sim:0", enable_timing=True)
host = torch.ones(2**20).pin_memory()
with side:
    for _ in range(10):
        x.sin_()
    host.copy_(x, non_blocking=True)  # under way
    event.record()
child = os.fork()
if not child:
    event.synchronize()
    _sim.start_audit()
    y = torch.ones(2**20, device="sim:0")
    held = _sim.check_audit(0)
    del x, y
    os._exit(0 if held == 2 * 2**22 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), _sim.check_audit(0) == 2**22)
