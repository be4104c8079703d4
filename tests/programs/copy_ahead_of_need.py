"""An operand that crosses waits for the copy ahead of need that another stream has been given."""

import itertools

import torch

import managed
from managed import _C, ManagedTensor

MIB = 2**20
managed.simulate(2, 256 * MIB)
torch.set_grad_enabled(False)
managed.budget("sim:0", 4 * 16 * MIB + 6 * MIB)
tensors = [torch.rand(4 * MIB).as_subclass(ManagedTensor).to("sim:0") for _ in range(6)]
small = torch.rand(1, device="sim:0").as_subclass(ManagedTensor)
y = torch.rand(MIB).as_subclass(ManagedTensor).to("sim:1")

plain, side = torch.zeros(MIB, device="sim:0"), torch.Stream("sim:0")


def work():
    with side:
        for _ in range(200):
            plain.sin_()


def begin():
    torch.sim.synchronize("sim:0")
    return torch.sim.virtual_time("cpu")


start = begin()
work()
alone = begin() - start


def operators():
    for step in itertools.count():
        for t in tensors:
            yield t.fill_(step)
        for t in tensors:
            yield small.add_(t[0])


steps = operators()
for _ in range(12 * 8):
    next(steps)
assert _C.step_state(1)["follows"]
for _ in range(24):
    start, mark = begin(), managed.explain()[-1].sequence
    work()
    next(steps)
    made = [e for e in managed.explain() if e.sequence > mark and e.kind == "spare"]
    x = next((t for t in tensors for e in managed.explain(t) if e in made), None)
    if x is None:
        continue
    y.view(4, -1) + x[: MIB // 4]
    x.mul_(2)
    break
else:
    raise AssertionError("no copy was made ahead of need")
event = torch.Event("sim:0")
event.record(torch.sim.current_stream("sim:0"))
event.synchronize()
took = torch.sim.virtual_time("cpu") - start
assert took > alone, (took, alone)
