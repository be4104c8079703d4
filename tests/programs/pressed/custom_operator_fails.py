"""A custom operator raises inside of itself: its operands may leave again."""

import torch
from pressed import MiB, on

import managed
from managed import _C

x, y = (on(torch.full((MiB,), float(i))).requires_grad_() for i in (1, 2))


@torch.library.custom_op("ends::fails", mutates_args=())
def fails(a: torch.Tensor, when: int) -> torch.Tensor:
    if when == 0:
        raise KeyError("at once")
    made = a * 2 + y.detach()  # noqa: F821 # y is deleted in the end
    if when == 1:
        made @ a[:3]
    return made  # type: ignore[no-any-return]


def backward(ctx, g):
    (g * y).sum()  # noqa: F821
    raise LookupError("in a backward pass")


fails.register_autograd(backward)
with managed.budget("sim:0", "17MiB"):
    for when, kind in ((0, KeyError), (1, RuntimeError), (2, LookupError)) * 3:
        try:
            fails(x, when).sum().backward()
        except kind:
            busy = [_C.residency(0)[name] for name in ("in_use", "moving", "pinned")]
            assert busy == [0, 0, 0], busy
            _C.spill_all()
            assert _C.is_spilled(x) and _C.is_spilled(y)
    print((x * y).sum().item() == 2 * MiB, x.grad)
del x, y, backward
fails = None  # type: ignore[assignment]
