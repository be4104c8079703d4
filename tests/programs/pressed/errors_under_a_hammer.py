"""Operators that fail in four threads while everything leaves again and again."""

import torch
from pressed import Hammer, on, together, whole

xs = [on(torch.full((64, 512), float(i))) for i in range(4)]


def work(x, value):
    for _ in range(60):
        for call in (
            lambda: x + torch.ones(3),
            lambda: x.view(7, -1),
            lambda: torch.cat([x, torch.ones(2, 2)]),
            lambda: x.repeat(10**6),
            lambda: torch.linalg.cholesky(-x[:64, :64] - torch.eye(64)),
        ):
            try:
                call()
            except RuntimeError:
                continue
            raise AssertionError(call)
        assert (x + 1)[3, 3].item() == value + 1


with Hammer():
    together(*(lambda i=i: work(xs[i], float(i)) for i in range(4)))
xs.clear()
whole()
