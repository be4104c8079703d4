"""torch's database of optimizers: with parameters apart and under pressure, the CPU's bits."""

import copy
import itertools
import warnings

import pytest
import torch
from support.devices import D0, D1, D2
from support.slices import slice_of
from torch.testing._internal.common_optimizers import (
    _get_optim_inputs_including_global_cliquey_kwargs as inputs_of,
)
from torch.testing._internal.common_optimizers import optim_db

import managed.debug
from managed import ManagedTensor

SHAPES = [(), (1,), (5,), (3, 4), (40, 30), (8, 3, 2, 2), (0,), (128, 64)]
# The devices of the parameters in turn, and whether everything leaves before each operator.
PLACES = {
    "one device": ([D0], False),
    "apart": ([D0, D1, D2], True),
    "on the host, too": (["cpu", D1], False),
}
DENSE = [info for info in optim_db if not info.only_supports_sparse_grads]
STEPS = 3


def configurations(info, dtype):
    """Keywords of the database, each with every implementation that the optimizer has.

    Which one torch takes by itself depends on the device, and other sums have other bits.
    """
    for given in inputs_of("cpu", dtype, info):
        if given.kwargs.get("differentiable"):
            continue  # its parameters are no leaves
        if given.kwargs.get("fused") and dtype.is_complex:
            continue  # torch has no such kernel
        if given.kwargs.get("fused") or "foreach" not in info.supported_impls:
            yield given.kwargs
        else:
            yield from ({**given.kwargs, "foreach": lists} for lists in (False, True))


def trained(info, keywords, dtype, places):
    """The parameters after some steps, and one more from a copy of the states. None: plain."""
    random = torch.Generator().manual_seed(0)

    def made(shape, device):
        t = torch.randn(shape, generator=random, dtype=dtype)
        return t if places is None else t.as_subclass(ManagedTensor).to(device)

    shapes = list(SHAPES)
    if info.optim_cls is torch.optim.Muon:
        shapes = [shape for shape in SHAPES if len(shape) == 2]  # it takes nothing else
    elif info.optim_cls is torch.optim.Adafactor:
        shapes.remove((0,))  # it divides by the size
    devices = itertools.cycle(places or ["cpu"])
    leaves = [made(shape, next(devices)).requires_grad_() for shape in shapes]

    def step(optimizer):
        for leaf in leaves:
            leaf.grad = made(leaf.shape, leaf.device)
        if info.step_requires_closure:
            optimizer.step(lambda: sum(leaf.abs().square().sum() for leaf in leaves))
        else:
            optimizer.step()

    keywords = copy.deepcopy(keywords)
    optimizer = info.optim_cls(leaves, **keywords)
    for _ in range(STEPS):
        step(optimizer)
    again = info.optim_cls(leaves, **keywords)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(again)
    return leaves


CASES = [
    (info, dtype, place)
    for info in DENSE
    for dtype in (torch.float32, torch.complex64)
    for place in PLACES
    if info.supports_complex or not dtype.is_complex
]


@pytest.mark.parametrize(
    ("info", "dtype", "place"),
    slice_of(CASES, 4),
    ids=lambda case: getattr(getattr(case, "optim_cls", case), "__name__", str(case)),
)
def test_optimizers(info, dtype, place):
    devices, tortured = PLACES[place]
    with managed.debug.torture(odds=1 if tortured else None):
        for keywords in configurations(info, dtype):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # complex numbers, other names of an argument
                expected = trained(info, keywords, dtype, None)
                found = trained(info, keywords, dtype, devices)
            for mine, plain in zip(found, expected, strict=True):
                assert torch.equal(mine.detach().cpu(), plain.detach()), (keywords, plain.shape)
