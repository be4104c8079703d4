"""One operator of torch's database, run plain on the CPU and once more elsewhere, and compared."""

import contextlib
import gc
import itertools
import signal
import time
import warnings

import torch
from support.compare import difference, tensors
from support.devices import D0, device_module
from support.garbage import empty_queue
from torch.utils._pytree import tree_map

from .known import has_values
from .placement import copied
from .tally import Outcome

SECONDS = 120  # for all samples of one operator; the slowest needs about ten


class TooSlow(Exception):
    pass


@contextlib.contextmanager
def limit(seconds):
    """Raises TooSlow where an operator would hang the whole sweep."""

    def ring(signum, frame):
        raise TooSlow(f"not done in {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def attempt(function, *args, **kwargs):
    """(result, None), or (None, what it raised in one line); warnings are the operator's affair."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*args, **kwargs), None
    except TooSlow:
        raise
    except Exception as error:
        return None, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def full_name(op):
    return ".".join(filter(None, (op.name, op.variant_test_name)))


def float_kind(dtype):
    return dtype.is_floating_point or dtype.is_complex


_known_rest = {}  # bytes by device that left_over() leaves out


def forget_rest():
    """Leaves out of left_over() what is allocated now: small constants of graphs, for example,
    that torch's compiler keeps of an earlier test."""
    global _known_rest
    _known_rest = _allocated()


def left_over():
    """Bytes allocated on simulated devices since the last call, per device that has some.

    The engine's threads drop their last tensors a little after backward has returned, so that
    a rest is looked at again for some seconds before it counts.
    """
    deadline = time.monotonic() + 5
    looks = 0
    while (rest := _rest()) and time.monotonic() < deadline:
        time.sleep(0.002)  # lets those threads have the interpreter
        looks += 1
        if looks % 10 == 0:
            empty_queue(D0)
            gc.collect()
    forget_rest()
    return rest


def _rest():
    known = _known_rest
    return {i: n - known.get(i, 0) for i, n in _allocated().items() if n > known.get(i, 0)}


def _allocated():
    return {i: device_module.memory_allocated(i) for i in range(device_module.device_count())}


def run_operator(op, dtype, placement, *, samples, seed, layout=torch.strided):
    """Forward and, where it is defined, backward of up to `samples` samples of `op`.

    With a sparse layout, each sample with its first operand of that layout, and again with all
    that can be; gradients then are those of the dense operands.
    """
    outcome = Outcome(full_name(op), str(dtype).removeprefix("torch."))
    try:
        with limit(SECONDS):
            made = _samples(op, dtype, samples, seed, outcome)
            if layout is not torch.strided:
                made = list(_in_layout(made, layout, outcome))
            for k, sample in enumerate(made):
                where = placement(f"{seed}/{outcome.operator}/{outcome.kind}/{k}")
                _run_sample(op, sample, where, outcome, k)
    except TooSlow as error:
        outcome.forward.append(str(error))
    left = left_over()
    if left:
        outcome.forward.append(f"bytes left over: {left}")
    return outcome


def _samples(op, dtype, number, seed, outcome):
    grad = op.supports_autograd and float_kind(dtype)
    torch.manual_seed(seed)
    made, error = attempt(
        lambda: list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grad), number))
    )
    if error:
        outcome.refused.append(f"no sample inputs: {error}")
    return made or []


def _sparse(tree, layout):
    blocks = {"blocksize": (1, 1)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}

    def convert(x):
        if not isinstance(x, torch.Tensor) or x.dim() < 2:
            return x
        return x.detach().to_sparse(layout=layout, **blocks)

    return tree_map(convert, tree)


def _in_layout(samples, layout, outcome):
    for k, sample in enumerate(samples):
        first, error = attempt(_sparse, sample.input, layout)
        if error or not any(t.layout is layout for t in tensors(first)):
            outcome.refused.append(f"sample {k}: {error or 'no matrix'}")
            continue
        yield type(sample)(first, args=sample.args, kwargs=sample.kwargs)
        rest, error = attempt(_sparse, sample.args, layout)
        if not error and any(t.layout is layout for t in tensors(rest)):
            yield type(sample)(first, args=rest, kwargs=sample.kwargs)


def _with_generator(kwargs, make):
    """A sample that brings a generator gets one of the same seed on the right device."""
    return {
        k: make(v.initial_seed()) if isinstance(v, torch.Generator) else v
        for k, v in kwargs.items()
    }


def _call(function, operands, kwargs, seed=1):
    torch.manual_seed(seed)
    return function(operands[0], *operands[1], **kwargs)


def _run_sample(op, sample, where, outcome, k):
    here = copied((sample.input, sample.args, sample.kwargs))
    there = where.operands((sample.input, sample.args, sample.kwargs))
    for _ in range(where.uses):  # some operators update operands: as often here as there
        expected, error = attempt(
            _call, op, here, _with_generator(here[2], lambda s: torch.Generator().manual_seed(s))
        )
    if error:  # torch's own refusal: nothing to compare with
        outcome.refused.append(f"sample {k}: {error}")
        return
    outcome.samples += 1
    outcome.mixed += where.mixed()
    values = has_values(op, sample)
    for _ in range(where.uses):
        actual, error = attempt(_call, op, there, _with_generator(there[2], where.generator))
    found = error or _compare(expected, actual, where, values)
    found = found or _operands(here, there, values)
    if found:
        outcome.forward.append(f"sample {k}, {where}: {found}")
        return
    pairs = _differentiable(expected, actual)
    if pairs:
        _run_backward(pairs, tensors(here), tensors(there), where, outcome, k)


def _compare(expected, actual, where, values):
    found = difference(expected, actual, values=values)
    # Where CUDA is there, some samples name a device of it, and the CPU's result is there too.
    pairs = zip(tensors(expected), tensors(actual), strict=False)
    moved = (y for x, y in pairs if x.device.type == "cpu")
    return found or next(filter(None, map(where.objection, moved)), None)


def _operands(here, there, values):
    """What a call did to its operands must be equal too."""
    found = difference(tensors(here), tensors(there), values=values)
    return found and f"operand {found}"


def _differentiable(expected, actual):
    return [
        (x, y)
        for x, y in zip(tensors(expected), tensors(actual), strict=True)
        if x.requires_grad and float_kind(x.dtype) and x.layout is torch.strided
    ]


def _run_backward(pairs, here, there, where, outcome, k):
    torch.manual_seed(3)
    roots = [torch.randn_like(x) if x.is_nested else _root(x) for x, _ in pairs]
    mine = [t for t in here if t.requires_grad]
    theirs = [t for t in there if t.requires_grad]
    expected, error = attempt(_grad, [x for x, _ in pairs], mine, roots)
    if error:
        outcome.refused.append(f"sample {k}, backward: {error}")
        return
    outcome.differentiated += 1
    moved = [root.to(y.device) for root, (_, y) in zip(roots, pairs, strict=True)]
    actual, error = attempt(_grad, [y for _, y in pairs], theirs, moved)
    found = error or difference(expected, actual, form=where.gradient_form)
    if not found:
        found = next(
            (
                f"gradient on {g.device} for a leaf on {leaf.device}"
                for g, leaf in zip(actual, theirs, strict=True)
                if g is not None and g.device != leaf.device
            ),
            None,
        )
    if found:
        outcome.backward.append(f"sample {k}, {where}: {found}")


def _root(x):
    """A gradient for `x` with its strides: random, so that a transposition cannot hide."""
    return torch.randn_like(x.detach(), memory_format=torch.preserve_format)


def _grad(outputs, leaves, roots):
    torch.manual_seed(2)
    return torch.autograd.grad(outputs, leaves, roots, allow_unused=True)
