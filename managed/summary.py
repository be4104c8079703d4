"""summary(model): its modules with parameters, bytes and devices, and what a step holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from managed._views.summary import Optimizer, Summary

__all__ = ["summary"]


def summary(
    model: nn.Module,
    input_size: Sequence[int] | Sequence[Sequence[int]] | None = None,
    input_data: Any = None,
    *,
    dtypes: Sequence[torch.dtype] | None = None,
    depth: int = 3,
    optimizer: Optimizer | None = None,
) -> Summary:
    """The modules of a model: parameters, bytes, where these are, and the peak of a step.

    It prints itself: `lines` (one a module, with `position`, `name`, `parameters`, `bytes`,
    `devices`, `where`, `shape`), `total_params`, `trainable_params`, `bytes`, `where` (bytes by
    device), `peaks` (predicted, bytes by device) and `capacities`.

    With an input the peak is that of a forward pass, in training mode with the backward pass, and
    of the optimizer's step if there is one. It is found without running: nothing is computed, moved
    or allocated, and no generator advances. Room that libraries use on the side, recurrent layers
    of all, is not in it. Without an input it is what stays: parameters, buffers and, in training
    mode, gradients.

    Args:
        model: a module; it need not be managed.
        input_size: the shape of the input, or one shape for each input. They stand where the first
            parameter is.
        input_data: the input itself instead: a tensor, a tuple or list of arguments, or a dict of
            keyword arguments.
        dtypes: those of `input_size`; float32 unless given.
        depth: levels of modules to show.
        optimizer: what makes one of parameters, such as `torch.optim.AdamW`.

    Raises:
        TypeError: for what is no module, no shape, or nothing that makes an optimizer.
        ValueError: for both kinds of input, or a depth below 1.
        RuntimeError: with the reason where the model cannot take the input.
    """
    from managed._views import summary as _summary

    return _summary.summarize(model, input_size, input_data, dtypes, depth, optimizer)
