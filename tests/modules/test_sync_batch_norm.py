"""The operators of nn.SyncBatchNorm, which torch has for CUDA alone: those of simulated and virtual
devices give what BatchNorm gives for the whole batch. tests/sim/test_groups.py has the module."""

import pytest
import torch
import torch.nn.functional as F
from support.devices import D0

EPS, MOMENTUM = 1e-5, 0.3
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_parts_of_a_batch_have_the_statistics_of_the_whole(dtype, affine):
    torch.manual_seed(6)
    x, gradient = torch.randn(2, 10, 6, 3, dtype=torch.float64).to(dtype)
    precise = torch.promote_types(dtype, torch.float32)
    weight, bias = torch.rand(2, 6, dtype=precise).add(0.5) if affine else (None, None)
    running = [torch.zeros(6, dtype=precise), torch.ones(6, dtype=precise)]
    leaves = [
        t.detach().clone().requires_grad_() for t in (x.to(precise), weight, bias) if t is not None
    ]
    there = [t if t is None else t.to(D0) for t in (weight, bias, *running)]
    wanted = F.batch_norm(
        leaves[0], *running, *leaves[1:], training=True, momentum=MOMENTUM, eps=EPS
    )
    wanted.backward(gradient.to(precise))
    weight, bias, *running_there = there

    parts = [t.to(D0).split([4, 6]) for t in (x, gradient)]
    own = [torch.batch_norm_stats(part, EPS) for part in parts[0]]
    means, inverses = (torch.stack(kind) for kind in zip(*own, strict=True))
    counts = torch.tensor([12.0, 18.0], dtype=precise, device=D0)
    mean, inverse = torch.batch_norm_gather_stats_with_counts(
        parts[0][0], means, inverses, *running_there, MOMENTUM, EPS, counts
    )
    out, sums = [], []
    for part, g in zip(*parts, strict=True):
        out.append(torch.batch_norm_elemt(part, weight, bias, mean, inverse, EPS))
        sums.append(
            torch.batch_norm_backward_reduce(g, part, mean, inverse, weight, True, affine, affine)
        )
    total = [sum(kind) for kind in zip(*(s[:2] for s in sums), strict=True)]
    back = [
        torch.batch_norm_backward_elemt(g, part, mean, inverse, weight, *total, counts.int())
        for part, g in zip(*parts, strict=True)
    ]
    assert {t.dtype for t in (*out, *back)} == {dtype}
    assert mean.dtype == precise
    found = [torch.cat(out), torch.cat(back), *running_there]
    expected = [wanted, leaves[0].grad, *running]
    if affine:
        found += [sum(kind) for kind in zip(*(s[2:] for s in sums), strict=True)]
        expected += [leaf.grad for leaf in leaves[1:]]
    else:
        assert all(s[2] is None and s[3] is None for s in sums)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(
            one.cpu().to(precise),
            other.detach(),
            rtol=0,
            atol=TOLERANCE[dtype] * other.abs().max().item(),
        )
