"""Forms, bytes and virtual time of operators on sim:0, with values and without, as JSON.

`python no_values_operators.py WITH_VALUES WITHOUT EVERY`. Of each EVERY-th operator of torch's
database up to six samples, forward and backward. Without values nothing is known, not even small
integers, so that every kernel tells forms.
"""

import gc
import json
import random
import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import both_ways
import numpy as np
import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils._pytree import tree_flatten, tree_map

import managed
from managed import _sim

SAMPLES = 6
STRANGE = ("jiterator", "meshgrid")  # for CUDA alone; samples in a random order


def put(tree):
    def move(t):
        if not isinstance(t, torch.Tensor) or t.layout != torch.strided:
            return t
        return t.detach().to("sim:0").requires_grad_(t.requires_grad)

    return tree_map(move, tree)


def tensors(tree):
    return [t for t in tree_flatten(tree)[0] if isinstance(t, torch.Tensor)]


def form(t):
    if not isinstance(t, torch.Tensor):
        return type(t).__name__
    if t.layout != torch.strided:
        return str(t.layout)
    storage = t.untyped_storage().nbytes()
    where = (str(t.device), t.storage_offset(), storage, t.requires_grad)
    return [list(t.shape), list(t.stride()), str(t.dtype), *where]


class Measured:
    def __init__(self):
        torch.sim.reset_peak_memory_stats(0)
        self.bytes, self.time = torch.sim.memory_allocated(0), torch.sim.elapsed()

    def now(self):
        peak = torch.sim.max_memory_allocated(0) - self.bytes
        return peak, round((torch.sim.elapsed() - self.time) * 1e9)


def told(error):
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def backward(op, result, arguments):
    """None where there is no gradient."""
    outputs = [t for t in tensors(result) if t.requires_grad and t.layout == torch.strided]
    leaves = [t for t in tensors(arguments) if t.requires_grad]
    if not (outputs and leaves and op.supports_autograd):
        return None
    seeds = [torch.ones_like(t) for t in outputs]
    return [form(t) for t in torch.autograd.grad(outputs, leaves, seeds, allow_unused=True)]


def measured(op, sample):
    """Form, peak in bytes and time in ns after the operator and after its gradient, or errors."""
    arguments = put((sample.input, sample.args, sample.kwargs))
    start = Measured()
    torch.manual_seed(1)
    try:
        result = op(arguments[0], *arguments[1], **arguments[2])
        row = [[form(t) for t in tree_flatten(result)[0]], *start.now()]
    except Exception as error:
        return [told(error)]
    try:
        return [row, backward(op, result, arguments), *start.now()]
    except Exception as error:
        return [row, told(error)]


def convolutions():
    """Layouts, of which meta kernels do not tell: (name, function, tensors)."""
    plain, last = torch.contiguous_format, torch.channels_last
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for a, b in ((plain, plain), (last, plain), (plain, last), (last, last)):
            x = torch.randn(2, 8, 9, 9, dtype=dtype).to(memory_format=a).requires_grad_()
            w = torch.randn(8, 8, 3, 3, dtype=dtype).to(memory_format=b).requires_grad_()
            kind = f"{dtype}, {a}, {b}"
            yield f"conv2d {kind}", F.conv2d, (x, w)
            yield f"conv2d, strided {kind}", partial(F.conv2d, stride=2, padding=1), (x, w)
            yield f"conv2d in groups {kind}", partial(F.conv2d, groups=2), (x, w[:, :4])
            yield f"conv_transpose2d {kind}", F.conv_transpose2d, (x, w)
            if dtype == torch.float32:  # else strides of one channel differ, which say nothing
                yield f"one channel {kind}", F.conv2d, (x[:, :1], w[:, :1])
    for layout in (plain, torch.channels_last_3d):
        x = torch.randn(2, 4, 5, 5, 5).to(memory_format=layout).requires_grad_()
        w = torch.randn(4, 4, 3, 3, 3).requires_grad_()
        yield f"conv3d {layout}", F.conv3d, (x, w)
        yield f"conv_transpose3d {layout}", F.conv_transpose3d, (x, w)
    x, w = torch.randn(2, 4, 9).requires_grad_(), torch.randn(4, 4, 3).requires_grad_()
    yield "conv1d", F.conv1d, (x, w)


class Plain(NamedTuple):
    function: Callable[..., torch.Tensor]
    supports_autograd: bool = True

    def __call__(self, first, *rest):
        return self.function(first, *rest)


def rows(op):
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    found = list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd))
    chosen = found[:: max(1, len(found) // SAMPLES)][:SAMPLES]
    for sample in chosen:
        if torch.sim.memory_allocated(0):
            gc.collect()
        parts = (sample.input, sample.args, sample.kwargs)
        if all(t.layout == torch.strided for t in tensors(parts)):
            yield measured(op, sample)


def write(path, values, every):
    warnings.simplefilter("ignore")
    managed.simulate(1, "8GiB", "a100-40g", values=values, repeatable=True)
    _sim.know_nothing(True)
    all_rows = {}
    for op in op_db[::every]:
        if torch.float32 in op.dtypes and not op.name.startswith(STRANGE):
            all_rows[f"{op.name}.{op.variant_test_name}".strip(".")] = list(rows(op))
    for name, function, (first, *others) in convolutions():
        sample = SampleInput(first, args=tuple(others))
        all_rows[name] = [measured(Plain(function), sample)]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(all_rows, file)


if __name__ == "__main__":
    both_ways.run(write)
