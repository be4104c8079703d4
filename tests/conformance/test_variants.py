"""In-place forms, list operators and out= with scattered operands: what is written stays there."""

import itertools

import pytest
import torch
from support.compare import difference, tensors
from support.slices import slice_of

from .conftest import SAMPLES
from .known import UNDEFINED_VALUES, has_values
from .operators import SECONDS, TooSlow, attempt, full_name, left_over, limit
from .placement import ACCELERATORS, Scattered, copied
from .tally import Outcome

CHUNKS = 4
SHORT = 16  # of the chunks of a short sweep `make test` runs one


def operators_in_place():
    from torch.testing._internal.common_methods_invocations import op_db

    return [
        op
        for op in op_db
        if torch.float32 in op.supported_dtypes("cpu") and op.inplace_variant is not None
    ]


def list_operators():
    from torch.testing._internal import common_methods_invocations as found

    kinds = ("unary", "binary", "pointwise", "reduce", "other")
    every = itertools.chain(*(getattr(found, f"foreach_{kind}_op_db") for kind in kinds))
    return [op for op in every if torch.float32 in op.supported_dtypes("cpu")]


def operators_with_out():
    from torch.testing._internal.common_methods_invocations import op_db

    return [
        op
        for op in op_db
        if torch.float32 in op.supported_dtypes("cpu")
        and op.supports_out
        and op.name not in UNDEFINED_VALUES
    ]


def forms_of(op):
    """A list operator as a function of fresh lists and as one that writes to its first list."""
    return [(k, f) for k, f in (("new", op.method_variant), ("in place", op.inplace_variant)) if f]


def with_out(op, sample, k):
    """The sample with what `op` shall write: empty, with strides of its own, or alike."""
    operands = copied((sample.input, sample.args, sample.kwargs))
    result, error = attempt(_call, op, operands)
    if error:  # torch refuses it once more where it is compared
        return sample
    out = [_to_write(t, (k + len(op.name)) % 3) for t in tensors(result)]
    kwargs = {k: v for k, v in sample.kwargs.items() if k != "device"}  # `out` says it
    kwargs["out"] = out[0] if isinstance(result, torch.Tensor) else tuple(out)
    return type(sample)(sample.input, args=sample.args, kwargs=kwargs)


def _to_write(t, form):
    if t.layout is not torch.strided:
        return t.clone()
    if form == 0:
        return t.new_empty(0)
    return torch.ones_like(t.mT).mT if form == 1 and t.dim() > 1 else torch.ones_like(t)


def sweep_one(op, kind, function, samples, seed):
    """Runs `function` of `op` on the CPU and scattered; the operands are compared after it."""
    outcome = Outcome(full_name(op), kind)
    torch.manual_seed(seed)
    made, error = attempt(
        lambda: list(itertools.islice(op.sample_inputs("cpu", torch.float32), samples))
    )
    if error:
        outcome.refused.append(f"no sample inputs: {error}")
    try:
        with limit(SECONDS):
            for k, sample in enumerate(made or []):
                if not has_values(op, sample):
                    continue
                if kind == "out":
                    sample = with_out(op, sample, k)
                where = Scattered(f"{seed}/{outcome.operator}/{kind}/{k}")
                found = _run(function, sample, where, outcome, k)
                if found:
                    outcome.forward.append(f"sample {k}, {where}: {found}")
    except TooSlow as error:
        outcome.forward.append(str(error))
    left = left_over()
    if left:
        outcome.forward.append(f"bytes left over: {left}")
    return outcome


def _run(function, sample, where, outcome, k):
    here = copied((sample.input, sample.args, sample.kwargs))
    there = where.operands((sample.input, sample.args, sample.kwargs))
    before = [(t.device, id(t)) for t in tensors(there)]
    found = _difference_elsewhere(there)
    if found:
        return found
    expected, error = attempt(_call, function, here)
    if error:
        outcome.refused.append(f"sample {k}: {error}")
        return None
    outcome.samples += 1
    outcome.mixed += where.mixed()
    actual, error = attempt(_call, function, there)
    if error:
        return error
    if _returned(expected, here) != _returned(actual, there):
        return "not the operand itself is returned"
    if before != [(t.device, id(t)) for t in tensors(there)]:
        return "an operand moved"
    found = difference(expected, actual) or difference(tensors(here), tensors(there))
    found = found or _difference_elsewhere(there)
    return found or next(filter(None, map(where.objection, tensors(actual))), None)


def _returned(results, operands):
    """Which operand each result is, as an object."""
    places = [id(t) for t in tensors(operands)]
    return [places.index(id(t)) if id(t) in places else None for t in tensors(results)]


def _difference_elsewhere(operands):
    """Whether some device sees other values than those that the operand has where it is."""
    for t in tensors(operands):
        for device in ACCELERATORS if t.layout is torch.strided else ():
            nothing = torch.zeros(1, dtype=t.dtype, device=device)
            here, there = t.detach().cpu().reshape(-1), t.detach().reshape(-1)
            found = difference(torch.cat([nothing.cpu(), here]), torch.cat([nothing, there]).cpu())
            if found:
                return f"as {device} sees it, {found}"
    return None


def _call(function, operands):
    torch.manual_seed(1)
    return function(operands[0], *operands[1], **operands[2])


@pytest.mark.conformance
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_operator_in_place(chunk, sweep, seed):
    chosen = operators_in_place()[chunk::CHUNKS]
    found = [sweep_one(op, "in place", op.inplace_variant, SAMPLES, seed) for op in chosen]
    sweep("scattered, in place", found, chunk, CHUNKS)


@pytest.mark.conformance
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_list_operator(chunk, sweep, seed):
    found = [
        sweep_one(op, kind, form, SAMPLES, seed)
        for op in list_operators()[chunk::CHUNKS]
        for kind, form in forms_of(op)
    ]
    sweep("scattered, lists", found, chunk, CHUNKS)


@pytest.mark.conformance
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_operator_with_out(chunk, sweep, seed):
    chosen = operators_with_out()[chunk::CHUNKS]
    found = [sweep_one(op, "out", op, SAMPLES, seed) for op in chosen]
    sweep("scattered, out", found, chunk, CHUNKS)


@pytest.mark.parametrize("chunk", slice_of(range(SHORT)))
def test_operators_in_place(chunk, sweep, seed):
    chosen = operators_in_place()[chunk::SHORT]
    found = [sweep_one(op, "in place", op.inplace_variant, 2, seed) for op in chosen]
    sweep("scattered, in place, two samples", found, chunk, SHORT)


@pytest.mark.parametrize("chunk", slice_of(range(SHORT)))
def test_list_operators(chunk, sweep, seed):
    found = [
        sweep_one(op, kind, form, 4, seed)
        for op in list_operators()[chunk::SHORT]
        for kind, form in forms_of(op)
    ]
    sweep("scattered, lists, four samples", found, chunk, SHORT)


@pytest.mark.parametrize("chunk", slice_of(range(SHORT)))
def test_operators_with_out(chunk, sweep, seed):
    found = [sweep_one(op, "out", op, 1, seed) for op in operators_with_out()[chunk::SHORT]]
    sweep("scattered, out, one sample", found, chunk, SHORT)
