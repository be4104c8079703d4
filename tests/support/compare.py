"""Bitwise comparison of two results; says what differs, or nothing.

The first operand is what plain torch computed on the CPU. Never compares with a tolerance.
"""

import torch
from torch.utils._pytree import tree_flatten


def tensors(tree):
    """The tensors of a nested structure, in order."""
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def difference(expected, actual, *, values=True, form=True):
    """Why `actual` is not `expected`, in a few words, or None.

    Compares structure, Python values and, of each tensor, type, sizes, dtype, layout, strides,
    laziness (conjugate and negative bits), requires_grad and every bit of every element, NaN
    payloads and signs of zero included. `values=False` leaves out the elements, `form=False` what a
    copy does not keep: strides and laziness.
    """
    wanted, structure = tree_flatten(expected)
    got, other = tree_flatten(actual)
    if structure != other:
        return f"structure {other} instead of {structure}"
    for place, (a, b) in enumerate(zip(wanted, got, strict=True)):
        found = _leaf(a, b, values, form)
        if found:
            return f"[{place}] {found}" if len(wanted) > 1 else found
    return None


def _leaf(a, b, values, form):
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return _meta(a, b, form) or (_values(a, b) if values else None)
    if isinstance(a, torch.device) and isinstance(b, torch.device):
        return None  # where a result lies is the caller's question, not ours
    same = type(a) is type(b) and (a == b or (a != a and b != b))
    return None if same else f"{b!r} instead of {a!r}"


def _meta(a, b, form):
    for what, x, y in (
        ("sizes", tuple(a.shape), tuple(b.shape)),
        ("dtype", a.dtype, b.dtype),
        ("layout", a.layout, b.layout),
        ("requires_grad", a.requires_grad, b.requires_grad),
    ):
        if x != y:
            return f"{what} {y} instead of {x}"
    return _form(a, b) if form else None


def _form(a, b):
    if a.is_conj() != b.is_conj() or a.is_neg() != b.is_neg():
        return f"conjugate, negative bits {b.is_conj(), b.is_neg()}"
    strided = a.layout == torch.strided and not a.is_nested
    if strided and a.stride() != b.stride():
        return f"strides {b.stride()} instead of {a.stride()}"
    return None


def _values(a, b):
    parts, other = _parts(a.detach()), _parts(b.detach())
    for (name, x), (_, y) in zip(parts, other, strict=True):
        if x.shape != y.shape:
            return f"{name} {tuple(y.shape)} instead of {tuple(x.shape)}"
        x, y = bits(x), bits(y)
        if not torch.equal(x, y):
            return f"{name}: {_worst(a, b)}"
    return None


def _parts(t):
    """A tensor as strided tensors on the CPU: a sparse one has several."""
    if t.is_nested:
        return [(f"component {i}", x.cpu()) for i, x in enumerate(t.unbind())]
    if t.layout is torch.sparse_coo:
        coalesced = torch.tensor(t.is_coalesced())
        found = {"coalesced": coalesced, "indices": t._indices(), "values": t._values()}
    elif t.layout in (torch.sparse_csr, torch.sparse_bsr):
        found = {"rows": t.crow_indices(), "columns": t.col_indices(), "values": t.values()}
    elif t.layout in (torch.sparse_csc, torch.sparse_bsc):
        found = {"columns": t.ccol_indices(), "rows": t.row_indices(), "values": t.values()}
    else:
        found = {"values": t}
    return [(name, _arrived(x).cpu()) for name, x in found.items()]


def _arrived(x):
    """A copy to pinned memory that the sample does not wait for is on its way."""
    if x.is_cpu and x.is_pinned():
        for i in range(torch.cuda.device_count()):
            torch.cuda.synchronize(i)
    return x


def bits(t):
    """The elements of a strided CPU tensor as bytes."""
    t = t.resolve_conj().resolve_neg()
    if t.is_quantized:
        t = t.int_repr()
    fresh = t.clone(memory_format=torch.contiguous_format)
    return fresh.reshape(-1).view(torch.uint8)


def _worst(a, b):
    """How far two tensors known to differ are apart."""
    if a.dtype == torch.bool or a.is_nested:
        return "values differ"
    a, b = (_plain(t) for t in (a, b))
    wide = torch.complex128 if a.is_complex() else torch.float64
    apart = (a.to(wide) - b.to(wide)).abs()
    finite = apart[apart.isfinite()]
    if not finite.numel() or not finite.max():
        return "values differ in NaN, infinity or the sign of zero only"
    return f"values differ by up to {finite.max().item():.3g} in {int((apart > 0).sum())} places"


def _plain(t):
    t = t.detach().cpu()
    return t.to_dense() if t.layout is not torch.strided else t.resolve_conj().resolve_neg()
