"""Four threads train the same leaves, which two devices need: each gradient is exact."""

import sys
import threading

import torch
from threads_begin import on

from managed import ManagedTensor

sys.setswitchinterval(1e-5)
COUNT = 4
leaves = [on("sim:0", 16).requires_grad_() for _ in range(20)]
inputs = [torch.randint(-8, 8, (64, 16)).float() for _ in range(COUNT)]
step = threading.Barrier(COUNT)
failures: list[Exception] = []


def end_step():
    expected = torch.stack(inputs).sum((0, 1))
    for w in leaves:
        assert w.grad is None or torch.equal(w.grad.cpu(), expected)
        w.grad = None
    torch._foreach_add_([w.detach() for w in leaves], 0)


def train(number):
    x = inputs[number].as_subclass(ManagedTensor).to(f"sim:{1 + number % 2}")
    try:
        for _ in range(10):
            if step.wait() == 0:
                end_step()
            step.wait()
            for w in leaves:
                y = w * x
                assert torch.equal(y.detach().cpu(), inputs[number])
                y.sum().backward()
    except Exception as error:
        failures.append(error)
        step.abort()


threads = [threading.Thread(target=train, args=(i,)) for i in range(COUNT)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
