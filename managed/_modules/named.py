"""Names for tensors: what modules and optimizers call them, for tools that look on from outside.

Modules and optimizers are known weakly, and nothing is asked of them before a name is wanted.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from managed._backend import C

__all__ = ["know", "names"]

_known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def know(owner: nn.Module | torch.optim.Optimizer) -> None:
    """From now on names() asks it."""
    _known[id(owner)] = owner


def names() -> dict[int, str]:
    """The names of tensors by the number of their bytes (`C.number`), the longest of each.

    Parameters and buffers as their module calls them, optimizers' state as "exp_avg of" these.
    """
    owners = [owner for ref in _known.valuerefs() if (owner := ref()) is not None]
    found: dict[int, str] = {}
    for owner in owners:
        if isinstance(owner, nn.Module):
            for name, tensor in [*owner.named_parameters(), *owner.named_buffers()]:
                number = C.number(tensor)
                if len(name) > len(found.get(number, "")):
                    found[number] = name
    for owner in owners:
        if isinstance(owner, torch.optim.Optimizer):
            found |= _of_state(owner, found)
    found.pop(0, None)  # of those that cannot leave
    return found


def _of_state(optimizer: torch.optim.Optimizer, names: dict[int, str]) -> dict[int, str]:
    state = [(p, s) for p, s in list(optimizer.state.items()) if isinstance(s, dict)]
    return {
        C.number(value): f"{kind} of {name}"
        for parameter, values in state
        if isinstance(parameter, torch.Tensor) and (name := names.get(C.number(parameter)))
        for kind, value in list(values.items())
        if isinstance(value, torch.Tensor)
    }
