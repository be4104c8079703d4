"""torch's database of modules, each parameter, buffer and input on a device of its own."""

import copy
import random

import pytest
import torch
from support.compare import difference, tensors
from support.scattering import scatter, state, strayed
from support.slices import slice_of

from .known import SCATTERED_MODULES
from .operators import SECONDS, TooSlow, attempt, float_kind, left_over, limit
from .placement import Scattered, copied
from .tally import Outcome

CHUNKS = 6
SHORT = 12  # of the chunks of a short sweep `make test` runs one


def modules():
    from torch.testing._internal.common_modules import module_db  # takes seconds

    return module_db


def sweep_one(info, training, seed, take):
    """All inputs of one module whose number `take` accepts, forward, backward and buffers."""
    outcome = Outcome(info.name, "training" if training else "evaluation")
    torch.manual_seed(seed)
    inputs, error = attempt(
        lambda: list(
            info.module_inputs_func(
                info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
            )
        )
    )
    if error:
        outcome.refused.append(f"no inputs: {error}")
    try:
        with limit(SECONDS):
            for k, given in enumerate(inputs or []):
                if given.forward_input is not None and take(k):
                    where = Scattered(f"{seed}/{info.name}/{training}/{k}")
                    _run(info, given, training, where, outcome, k)
    except TooSlow as error:
        outcome.forward.append(str(error))
    left = left_over()
    if left:
        outcome.forward.append(f"bytes left over: {left}")
    return outcome


def _make(info, given, training):
    torch.manual_seed(0)
    arguments = given.constructor_input
    return info.module_cls(*arguments.args, **arguments.kwargs).train(training)


def _forward(module, operands):
    torch.manual_seed(1)
    return module(*operands[0], **operands[1])


def _run(info, given, training, where, outcome, k):
    here = copied((given.forward_input.args, given.forward_input.kwargs))
    plain, error = attempt(_make, info, given, training)
    if not error:
        scattered = _scattered(plain, f"{where.random.random()}")
        there = where.operands((given.forward_input.args, given.forward_input.kwargs))
        expected, error = attempt(_forward_again, plain, here)
    if error:
        outcome.refused.append(f"input {k}: {error}")
        return
    outcome.samples += 1
    outcome.mixed += len({t.device for t in (*tensors(there), *scattered.parameters())}) > 1
    actual, error = attempt(_forward_again, scattered, there)
    found = error or difference(expected, actual)
    found = found or next(filter(None, map(where.objection, tensors(actual))), None)
    if found:
        outcome.forward.append(f"input {k}, {where}: {found}")
        return
    error = _backward(expected, actual, outcome)
    if error:
        outcome.backward.append(f"input {k}, {where}: {error}")
        return
    error = _misplaced(scattered, tensors(there))
    expected, actual = _results(plain, here), _results(scattered, there)
    error = error or difference(expected, actual, form=False)
    if error:
        outcome.backward.append(f"input {k}, {where}: {error}")


def _scattered(plain, seed):
    rng = random.Random(seed)
    return scatter(copy.deepcopy(plain), lambda: rng.choice(Scattered.devices))


def _backward(expected, actual, outcome):
    """Backward of both with the same root gradients; what went wrong on our side, if anything."""
    pairs = [
        (x, y)
        for x, y in zip(tensors(expected), tensors(actual), strict=True)
        if x.requires_grad and float_kind(x.dtype)
    ]
    if not pairs:
        return None
    torch.manual_seed(3)
    roots = [torch.randn_like(x.detach()) for x, _ in pairs]
    _, error = attempt(_pull, [x for x, _ in pairs], roots)
    if error:
        outcome.refused.append(f"backward: {error}")
        return None
    outcome.differentiated += 1
    moved = [r.to(y.device) for r, (_, y) in zip(roots, pairs, strict=True)]
    return attempt(_pull, [y for _, y in pairs], moved)[1]


def _pull(outputs, roots):
    torch.manual_seed(2)
    torch.autograd.backward(outputs, roots)


def _results(module, inputs):
    """What a step leaves behind: buffers, and the gradients of parameters and inputs."""
    found = state(module)
    found["inputs"] = [t.grad.cpu() for t in tensors(inputs) if t.is_leaf and t.grad is not None]
    return found


def _misplaced(module, inputs):
    wrong = strayed(module)
    for t in inputs:
        if t.is_leaf and t.grad is not None and t.grad.device != t.device:
            wrong.append(f"an input on {t.device} has its gradient on {t.grad.device}")
    return wrong[0] if wrong else None


def _forward_again(module, operands):
    """The second use finds the copies that the first has made."""
    _forward(module, operands)
    return _forward(module, operands)


@pytest.mark.conformance
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_module(chunk, sweep, seed):
    found = [
        sweep_one(info, training, seed, lambda k: True)
        for info in modules()[chunk::CHUNKS]
        for training in (True, False)
    ]
    sweep("scattered modules", found, chunk, CHUNKS, SCATTERED_MODULES)


@pytest.mark.parametrize("chunk", slice_of(range(SHORT)))
def test_every_module_on_a_few_inputs(chunk, sweep, seed):
    """Every fifth input of each module, the first included."""
    chosen = modules()[chunk::SHORT]
    found = [sweep_one(info, True, seed, lambda k: k % 5 == 0) for info in chosen]
    sweep("scattered modules, every fifth input", found, chunk, SHORT, SCATTERED_MODULES)
