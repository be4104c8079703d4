"""Times of two threads, each on its device, and then of two on one device."""

import threading

import torch

import managed

managed.simulate(2, "64MiB", repeatable=True)
x = [torch.ones((), device=f"sim:{i}") for i in range(2)]
before = torch.sim.virtual_time("cpu")
took: dict[int, float] = {}


def work(i):
    for _ in range(1000):
        x[i].add_(1)
    took[i] = torch.sim.virtual_time("cpu")


threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
for t in threads:
    t.start()
for t in threads:
    t.join()
assert torch.sim.virtual_time("cpu") == before
print(took[0] - before, took[1] - before, torch.sim.elapsed())
took.clear()
for _ in range(2):  # both on one device: one after the other
    t = threading.Thread(target=work, args=(0,))
    t.start()
    t.join()
    print(took[0] - before)
