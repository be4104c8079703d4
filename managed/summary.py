"""summary(model): its modules with parameters, bytes and devices, and what a step holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from managed._summary import Optimizer, Summary

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

    input_size: the shape of the input, or one shape for each input; dtypes: theirs, float32 unless
    given. input_data: the input itself instead: a tensor, a tuple or list of arguments, or a dict
    of keyword arguments. Inputs of a size stand where the first parameter is. depth: levels of
    modules to show. optimizer: what makes one of parameters, such as `torch.optim.AdamW`.

    With an input the peak is that of a forward pass, in training mode with the backward pass, and
    of the optimizer's step if there is one. It is found without running: nothing is computed, moved
    or allocated, and no generator advances. Room that libraries use on the side, recurrent layers
    of all, is not in it. Without an input it is what stays: parameters, buffers and, in training
    mode, gradients.

    TypeError for what is no module, ValueError for both kinds of input or a depth below 1, and
    RuntimeError with the reason where the model cannot take the input.
    """
    from managed import _summary

    return _summary.summarize(model, input_size, input_data, dtypes, depth, optimizer)
