"""The graphs that the database of operators records over scattered operands, and the plain ones."""

import itertools

import pytest
import torch
from support.compare import tensors
from support.graphwalk import difference
from support.slices import slice_of

from .operators import attempt, full_name
from .placement import Scattered, copied
from .test_operators import operators

CHUNKS = 12
SAMPLES = 2


def call(op, operands):
    torch.manual_seed(1)
    return [t for t in tensors(op(operands[0], *operands[1], **operands[2])) if t.requires_grad]


def walk(op, sample, where):
    """(whether there was a graph, where it differs)."""
    tree = (sample.input, sample.args, sample.kwargs)
    there = where.operands(tree)
    outs, error = attempt(call, op, there)
    if error or not outs:
        return False, None
    device = outs[0].device
    here = torch.utils._pytree.tree_map(
        lambda t: (
            t.detach().to(device).requires_grad_(t.requires_grad)
            if isinstance(t, torch.Tensor)
            else t
        ),
        copied(tree),
    )
    plain, error = attempt(call, op, here)
    if error:  # such as indices that torch demands on the CPU
        return False, None
    leaves = [(a, b) for a, b in zip(tensors(here), tensors(there), strict=True) if a.requires_grad]
    return True, difference(plain, outs, leaves)


@pytest.mark.parametrize("chunk", slice_of(range(CHUNKS)))
def test_graphs_of_every_operator(chunk, seed):
    walked, found = 0, []
    for op in [op for op in operators(torch.float32) if op.supports_autograd][chunk::CHUNKS]:
        torch.manual_seed(seed)
        made, _ = attempt(
            lambda op=op: list(
                itertools.islice(
                    op.sample_inputs("cpu", torch.float32, requires_grad=True), SAMPLES
                )
            )
        )
        for k, sample in enumerate(made or []):
            if any(t.is_nested for t in tensors((sample.input, sample.args, sample.kwargs))):
                continue  # simulated devices hold none
            where = Scattered(f"{seed}/{full_name(op)}/{k}")
            ran, differs = walk(op, sample, where)
            walked += ran
            if differs:
                found.append(f"{full_name(op)}, sample {k}, {where}: {differs}")
    assert not found, "\n".join(found)
    assert walked >= 60
