"""BatchNorm over the whole batch, while its parts run on several devices.

Each part gives its count, mean and sum of squared deviations, which are added in the order of the
parts (Chan, Golub, LeVeque 1983, "Algorithms for computing the sample variance"); so all parts have
the same statistics, and gradients are those of the whole batch. The first part alone writes running
statistics.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from managed._parallel.parts import summed
from managed._parallel.workers import LeftAlone
from managed._torch_patches import checkpoint

__all__ = ["Meeting", "check", "meet"]


class _Round:
    def __init__(self) -> None:
        self.given: dict[int, Any] = {}
        self.made: Sequence[Any] | None = None


class Meeting:
    """Where parts meet: each gives a value, and gets its own of what one makes of all of them."""

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._changed = threading.Condition()
        self._rounds: list[_Round] = []
        self._passed = [0] * parts
        self._left: set[int] = set()

    def join(self, part: int, value: Any, combine: Callable[[list[Any]], Sequence[Any]]) -> Any:
        """What `combine` makes for this part of the values of all, in the order of the parts.

        Waits for the parts that have not met as often.
        """
        with self._changed:
            number = self._passed[part]
            self._passed[part] += 1
            if number == len(self._rounds):
                self._rounds.append(_Round())
            here = self._rounds[number]
            here.given[part] = value
            if len(here.given) == self._parts:
                here.made = combine([here.given[i] for i in range(self._parts)])
            self._changed.notify_all()
            self._changed.wait_for(lambda: here.made is not None or self._misses(number))
            if here.made is None:
                raise LeftAlone(
                    'managed: with batch_norm="sync" each part of a batch runs through the same '
                    "BatchNorm layers, and one has ended without this one"
                )
            return here.made[part]

    def _misses(self, number: int) -> bool:
        """Whether a part has left that did not come to this round."""
        return any(self._passed[part] <= number for part in self._left)

    def leave(self, part: int) -> None:
        """The part comes to no further round."""
        with self._changed:
            self._left.add(part)
            self._changed.notify_all()

    @property
    def is_over(self) -> bool:
        return len(self._left) == self._parts


def check(module: nn.Module) -> None:
    """ValueError for a layer whose own forward pass would be left out."""
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and type(layer).forward is not _BatchNorm.forward:
            raise ValueError(
                f"managed: {name or 'the module'} is a {type(layer).__name__} with a forward pass "
                'of its own, which batch_norm="sync" cannot replace: use batch_norm="first", or '
                "torch.nn.BatchNorm"
            )


def meet(layers: Iterable[tuple[int, nn.Module]], meeting: Meeting) -> None:
    """Lets BatchNorm layers, each of a part, use the statistics of all parts of this call."""
    for part, layer in layers:
        if isinstance(layer, _BatchNorm):
            vars(layer)["forward"] = _Synced(part, layer, meeting)


class _Synced:
    """The forward pass of a layer in one part."""

    def __init__(self, part: int, layer: Any, meeting: Meeting) -> None:
        self.part, self.layer, self.meeting = part, layer, meeting

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        layer = self.layer
        if not layer.training and layer.running_mean is not None:
            return type(layer).forward(layer, x)  # type: ignore[no-any-return]
        if self.meeting.is_over or checkpoint.is_inside():
            raise RuntimeError(
                'managed: batch_norm="sync" does not go with torch.utils.checkpoint around a '
                "BatchNorm layer, which would run again without the other parts. Leave the layer "
                'out of the checkpoint, or use batch_norm="first"'
            )
        layer._check_input_dim(x)
        return self._normalized(x)

    def _normalized(self, x: torch.Tensor) -> torch.Tensor:
        layer = self.layer
        over = [0, *range(2, x.dim())]
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        count = x.numel() // x.size(1)
        mean = wide.mean(over)
        spread = (wide - _along(mean, x)).square().sum(over)
        mean, spread, total = self.meeting.join(self.part, (count, mean, spread), _combined)
        if self.part == 0:
            with torch.no_grad():
                self._keep(mean, spread / (total - 1))
        scale = (spread / total + layer.eps).rsqrt()
        if layer.weight is not None:
            scale = scale * layer.weight
        result = (wide - _along(mean, x)) * _along(scale, x)
        if layer.bias is not None:
            result = result + _along(layer.bias, x)
        return result.to(x.dtype)

    def _keep(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Writes the running statistics as torch.nn.BatchNorm does, the variance unbiased."""
        layer = self.layer
        if not layer.training or layer.running_mean is None:
            return
        layer.num_batches_tracked.add_(1)
        momentum = layer.momentum
        if momentum is None:
            momentum = 1.0 / float(layer.num_batches_tracked)
        layer.running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
        layer.running_var.mul_(1 - momentum).add_(variance, alpha=momentum)


def _along(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """One value for each channel, in the shape of x."""
    return values.view(1, -1, *[1] * (x.dim() - 2))


def _combined(found: list[Any]) -> list[Any]:
    """Of (count, mean, spread) of all parts: mean, spread and count of all, for each part."""
    counts = [n for n, _, _ in found]
    total = sum(counts)
    if total <= 1:
        raise ValueError(f"managed: BatchNorm needs more than 1 value per channel, not {total}")
    given = *(m for _, m, _ in found), *(s for _, _, s in found)
    made = _Combine.apply(counts, *given)  # type: ignore[no-untyped-call]
    means, spreads = made[: len(found)], made[len(found) :]
    return [(m, s, total) for m, s in zip(means, spreads, strict=True)]


class _Combine(torch.autograd.Function):
    """One node for all parts, so that sums have one order in the backward pass, too."""

    @staticmethod
    def forward(ctx: Any, counts: list[int], *given: torch.Tensor) -> Any:
        devices = [t.device for t in given[: len(counts)]]
        means, spreads = _halves([t.to(devices[0]) for t in given])
        total = sum(counts)
        mean = summed(m * (n / total) for n, m in zip(counts, means, strict=True))
        apart = [m - mean for m in means]
        spread = summed(s + n * d.square() for n, s, d in zip(counts, spreads, apart, strict=True))
        ctx.counts, ctx.devices = counts, devices
        ctx.save_for_backward(*apart)
        return tuple(t.to(d, copy=True) for t in (mean, spread) for d in devices)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        counts, devices = ctx.counts, ctx.devices
        of_means, of_spreads = _halves([g.to(devices[0]) for g in grads])
        of_mean, of_spread = summed(of_means), summed(of_spreads)
        total = sum(counts)
        back = [
            of_mean * (n / total) + of_spread * (2 * n) * d
            for n, d in zip(counts, ctx.saved_tensors, strict=True)
        ]
        pairs = zip([*back, *[of_spread] * len(counts)], devices * 2, strict=True)
        return None, *(g.to(d) for g, d in pairs)


def _halves(tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    middle = len(tensors) // 2
    return tensors[:middle], tensors[middle:]
