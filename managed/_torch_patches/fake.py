"""Lets torch.compile and other tracers follow managed tensors of several devices.

A fake mode refuses an operator whose operands stand on different devices. With managed tensors that
is no error: the operator will meet the chokepoint when it runs. So a mode that has seen a managed
tensor brings the fake operands together. Where is a guess that only code asking a traced result for
its device can see; where the operator really runs is decided when it does.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from managed._backend import C

__all__: list[str] = []


def install() -> None:
    """Wraps what makes a fake tensor of a real one, and what runs an operator on fake ones."""
    convert, run = FakeTensorMode.from_tensor, FakeTensorMode.dispatch

    @functools.wraps(convert)
    def from_tensor(self: FakeTensorMode, tensor: torch.Tensor, **kwargs: Any) -> FakeTensor:
        if C.is_managed(tensor):
            for seer in (self, self.shape_env):  # Dynamo hands the latter on to a mode of its own
                if seer is not None:
                    seer._saw_managed = True  # type: ignore[union-attr]
        return convert(self, tensor, **kwargs)

    @functools.wraps(run)
    def dispatch(
        self: FakeTensorMode,
        func: Any,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] = {},
    ) -> object:
        try:
            return run(self, func, types, args, kwargs)
        except RuntimeError:
            together = _together(self, func, args, kwargs) if saw_managed(self) else None
            if together is None:
                raise
            return run(self, func, types, *together)

    FakeTensorMode.from_tensor = from_tensor  # type: ignore[method-assign]
    FakeTensorMode.dispatch = dispatch  # type: ignore[method-assign]


def saw_managed(mode: FakeTensorMode | None) -> bool:
    """Whether a managed tensor has become one of the mode's fake tensors."""
    seers = (mode, getattr(mode, "shape_env", None))
    return any(getattr(seer, "_saw_managed", False) for seer in seers)


def _together(mode: FakeTensorMode, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    """The arguments on one device, or None when they stand together: the failure was another."""
    operands = [a for a in tree_leaves((args, kwargs)) if isinstance(a, FakeTensor)]
    voters = [t for t in operands if t.dim() > 0 or t.device.type != "cpu"]
    if len({t.device for t in voters}) < 2:
        return None
    first = func._schema.arguments[0].alias_info
    written = first is not None and first.is_write
    accelerated = (t.device for t in voters if t.device.type != "cpu")
    device = operands[0].device if written else next(accelerated)

    def bring(t: FakeTensor) -> Any:
        return t if t.device == device else t.detach().to(device)

    with mode:
        return tree_map_only(FakeTensor, bring, (args, kwargs))  # type: ignore[no-any-return]
