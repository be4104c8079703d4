"""torch's database of operators: on one simulated device, and scattered over four places."""

import contextlib
import itertools
import zlib

import pytest
import torch
from support.slices import slice_of

import managed.debug
from managed import _C

from .conftest import SAMPLES
from .known import ON_DEVICE, SCATTERED
from .operators import full_name, run_operator
from .placement import OnDevice, Scattered, Together

CHUNKS = 12
SHORT = 24  # of the chunks of a short sweep `make test` runs one
PLACEMENTS = {
    "device": (OnDevice, ON_DEVICE),
    "scattered": (Scattered, SCATTERED),
    "shaken": (Scattered, SCATTERED),  # kept copies are dropped by chance
    "tortured": (Together, SCATTERED),  # what is not in use leaves before every operator
    "tortured and scattered": (Scattered, SCATTERED),
    "tortured by chance": (Scattered, SCATTERED),
}
SLOWER = ("tortured and scattered", "tortured by chance")  # `make conformance` runs them
ODDS = {"tortured": 1, "tortured and scattered": 1, "tortured by chance": 3}


def operators(dtype):
    from torch.testing._internal.common_methods_invocations import op_db  # takes seconds

    return [op for op in op_db if dtype in op.supported_dtypes("cpu")]


@contextlib.contextmanager
def pressed(placement, seed):
    _C.shake_replicas(seed + 1 if placement == "shaken" else 0)
    odds = ODDS.get(placement)
    try:
        with managed.debug.torture(odds, seed) if odds else contextlib.nullcontext():
            yield
    finally:
        _C.shake_replicas(0)


def run(placement, dtype, chosen, samples, seed, layout=torch.strided):
    kind, known = PLACEMENTS[placement]
    sizes = {"samples": samples, "seed": seed, "layout": layout}
    with pressed(placement, seed):
        outcomes = [run_operator(op, dtype, kind, **sizes) for op in chosen]
    return outcomes, known


@pytest.mark.conformance
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize(
    ("placement", "dtype"),
    [
        *itertools.product(
            ["device", "scattered"], ["float32", "complex64", "bfloat16", "int64", "bool"]
        ),
        *itertools.product(["shaken", *ODDS], ["float32"]),
        *itertools.product(["tortured"], ["complex64", "bfloat16", "int64", "bool"]),
    ],
)
def test_every_operator(placement, dtype, chunk, sweep, seed):
    kind = getattr(torch, dtype)
    outcomes, known = run(placement, kind, operators(kind)[chunk::CHUNKS], SAMPLES, seed)
    sweep(f"{placement} {dtype}", outcomes, chunk, CHUNKS, known)


@pytest.mark.parametrize("chunk", slice_of(range(SHORT)))
@pytest.mark.parametrize(
    "placement",
    [pytest.param(p, marks=pytest.mark.conformance if p in SLOWER else ()) for p in PLACEMENTS],
)
def test_every_operator_once(placement, chunk, sweep, seed):
    """Two samples of each operator in float32: most of what the full sweep finds, in seconds."""
    chosen = operators(torch.float32)[chunk::SHORT]
    outcomes, known = run(placement, torch.float32, chosen, 2, seed)
    sweep(f"{placement} float32, two samples", outcomes, chunk, SHORT, known)


@pytest.mark.parametrize("chunk", slice_of(range(8)))
@pytest.mark.parametrize("dtype", ["complex64", "bfloat16", "int64", "bool"])
@pytest.mark.parametrize("placement", ["device", "scattered"])
def test_a_fifth_of_the_operators(placement, dtype, chunk, sweep, seed):
    """The other dtypes on a part of the operators that does not depend on their order."""
    kind = getattr(torch, dtype)
    chosen = [op for op in operators(kind) if zlib.crc32(full_name(op).encode()) % 5 == 0]
    outcomes, known = run(placement, kind, chosen[chunk::8], 2, seed)
    sweep(f"{placement} {dtype}, a fifth", outcomes, chunk, 8, known)


SPARSE = ["sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"]


@pytest.mark.conformance
@pytest.mark.parametrize("layout", SPARSE)
def test_every_operator_of_sparse_tensors(layout, sweep, seed):
    kind, chosen = getattr(torch, layout), operators(torch.float32)
    outcomes, _ = run("tortured", torch.float32, chosen, SAMPLES, seed, kind)
    sweep(f"tortured {layout}", outcomes)


@pytest.mark.parametrize("chunk", slice_of(range(SHORT)))
@pytest.mark.parametrize("layout", SPARSE[:2])
def test_operators_of_sparse_tensors(layout, chunk, sweep, seed):
    """Two samples of each operator that has a kernel for such operands at all."""
    kind, chosen = getattr(torch, layout), operators(torch.float32)
    outcomes, _ = run("tortured", torch.float32, chosen[chunk::SHORT], 2, seed, kind)
    sweep(f"tortured {layout}, two samples", outcomes, chunk, SHORT)
