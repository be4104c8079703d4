"""Threads that die inside of operators and backward passes leave nothing held."""

import threading

import torch
from pressed import Hammer, on, whole

from managed import _C

w = on(torch.ones(128, 128)).requires_grad_()
x = on(torch.ones(64, 128))


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        ctx.save_for_backward(t)
        return t * 1

    @staticmethod
    def backward(ctx, g):
        raise SystemExit  # in a thread of the engine


def die():
    try:
        Own.apply(torch.tanh(x @ w)).sum().backward()
    finally:
        kept = [torch.tanh(x @ w) for _ in range(3)]  # noqa: F841 # alive when the thread dies
        raise SystemExit


with Hammer():
    for _ in range(10):
        thread = threading.Thread(target=die)
        thread.start()
        thread.join()
assert w.grad is None
for _ in range(2):
    (x @ w).sum().backward()
assert w.grad is not None and w.grad[0, 0].item() == 128.0
w.grad = None
_C.spill_all()
whole(host=128 * 128 * 4 + 64 * 128 * 4)
