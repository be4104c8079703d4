"""The exceptions of the sweeps, each with its reason. An entry that no longer fails is an error."""

from dataclasses import dataclass

import torch
from support.devices import ON_CUDA

# Their values are whatever the memory held; sizes, strides and dtype are compared.
UNDEFINED_VALUES = frozenset(
    (
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
    )
)

# Of a compressed operand these make a tensor whose compressed indices torch does not write.
COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
UNWRITTEN_INDICES = frozenset(("new_full", "new_ones"))


def has_values(op, sample):
    """Whether the CPU's own result is defined: the same call gives the same values twice."""
    if op.name == "linalg.lstsq":
        # torch hands LAPACK's gelsy, its default, a pivot array that it did not initialise, and
        # gelsy reads it.
        return sample.kwargs.get("driver") not in (None, "gelsy")
    layout = getattr(sample.input, "layout", None)
    if layout is torch.sparse_coo and "dropout" in op.name and sample.kwargs.get("p") == 1.0:
        return False  # all is dropped, and torch does not write what is left
    if layout in COMPRESSED and op.name in UNWRITTEN_INDICES:
        return False
    return op.name not in UNDEFINED_VALUES


@dataclass(frozen=True)
class Known:
    """Excuses the failures of an operator in whose text the pattern is found, and no others."""

    reason: str
    pattern: str
    always: bool = True  # False: whether it shows depends on the samples and on the draw
    dtypes: tuple = ()  # empty: all


# The operator that torch picks on CUDA has no kernel for the CPU.
BY_DEVICE_TYPE = Known(
    "torch picks its accumulation policy by device type (LinearCrossEntropyOptions)",
    "mm.dtype_out cannot run on virtual GPUs|values differ" if ON_CUDA else "values differ",
    always=False,
    dtypes=("bfloat16",),
)

# On plain simulated tensors these differ from the CPU, and rightly.
ON_DEVICE = {
    "tensor_split": Known(
        "torch demands its indices on the CPU, on any accelerator",
        "tensor_split expected tensor_indices_or_sections to be on cpu",
        always=False,
    ),
    "nn.functional.linear_cross_entropy.chunked": BY_DEVICE_TYPE,
    "nn.functional.linear_cross_entropy.chunked_none": BY_DEVICE_TYPE,
}

# With scattered managed operands.
USED_AGAIN = Known(
    "an operand is used several times: gradients of its uses are summed where they arise, and so "
    "in another order",
    r"backward: .*values differ by up to \d(\.\d+)?e-(0[6-9]|[1-9]\d) ",
    always=False,
)
SCATTERED = {
    "pca_lowrank": USED_AGAIN,
    "svd_lowrank": USED_AGAIN,
    "nn.functional.linear_cross_entropy.chunked": BY_DEVICE_TYPE,
    "nn.functional.linear_cross_entropy.chunked_none": BY_DEVICE_TYPE,
}
SCATTERED_MODULES = dict.fromkeys(
    (
        "nn.MultiheadAttention",
        "nn.Transformer",
        "nn.TransformerDecoderLayer",
        "nn.TransformerEncoder",
        "nn.TransformerEncoderLayer",
    ),
    USED_AGAIN,
)
