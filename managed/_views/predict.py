"""How many bytes a step of a model will hold on each device, without doing the step.

A copy of the model with fake tensors in the places of its tensors runs: it has shapes and devices
and neither bytes nor results, so nothing is computed, moved or allocated. What is alive is counted.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

if TYPE_CHECKING:
    from managed._views.summary import Optimizer

__all__ = ["Prediction", "predict"]

_MOVING = {torch.Tensor.copy_, torch.Tensor.to, torch.Tensor.set_}


class Prediction(NamedTuple):
    """What a step will hold and give."""

    peaks: dict[str, int]  #: bytes by device
    shapes: dict[str, str]  #: shape of what each module gives, by the module's name


class _Alive(TorchDispatchMode):
    """Counts the bytes of all storages that are alive, by device, and the most at one time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peaks: dict[str, int] = {}
        self._alive: dict[str, int] = {}
        self._seen: dict[int, weakref.ref[Any]] = {}

    def count(self, tensor: torch.Tensor) -> None:
        storage, device = tensor.untyped_storage(), str(tensor.device)
        key, nbytes = storage._cdata, storage.nbytes()
        if key in self._seen:
            return

        def gone(_: object) -> None:
            self._seen.pop(key, None)
            self._alive[device] -= nbytes

        self._seen[key] = weakref.ref(storage, gone)
        self._alive[device] = self._alive.get(device, 0) + nbytes
        self.peaks[device] = max(self.peaks.get(device, 0), self._alive[device])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, FakeTensor):
                self.count(tensor)
        return result


class _Meeting(TorchFunctionMode):
    """Brings operands together as managed does, and keeps the copies as long as it does."""

    def __init__(self, homes: Iterable[FakeTensor]) -> None:
        super().__init__()
        self._homes = {t.untyped_storage()._cdata for t in homes}
        self._copies: dict[tuple[int, torch.device], tuple[Any, torch.Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        named = getattr(func, "__name__", "")
        if func in _MOVING or named in ("__get__", "__set__"):
            return func(*args, **kwargs)
        operands = [t for t in tree_leaves((args, kwargs)) if isinstance(t, FakeTensor)]
        if len({t.device for t in operands}) > 1 and (device := self._device(operands)):
            args, kwargs = tree_map_only(FakeTensor, self._bring(device), (args, kwargs))
        return func(*args, **kwargs)

    def _device(self, operands: list[FakeTensor]) -> torch.device | None:
        """Where the model's own tensors are, or most bytes of an accelerator."""
        there = [t for t in operands if t.device.type != "cpu"]
        own = [t for t in there if t.untyped_storage()._cdata in self._homes]
        if own:
            return own[0].device
        return max(there, key=lambda t: t.nbytes).device if there else None

    def _bring(self, device: torch.device) -> Callable[[FakeTensor], Any]:
        def bring(t: FakeTensor) -> Any:
            if t.device == device or (t.dim() == 0 and t.device.type == "cpu"):
                return t
            storage = t.untyped_storage()
            key = (storage._cdata, device)
            form = (t._version, t.shape, t.stride(), t.storage_offset(), t.requires_grad)
            known = self._copies.get(key)
            if known is None or known[0] != form:
                weakref.finalize(storage, self._copies.pop, key, None)
                known = self._copies[key] = (form, t.to(device))
            return known[1]

        return bring


def _faked(model: nn.Module, mode: FakeTensorMode) -> tuple[nn.Module, list[FakeTensor]]:
    """A copy of the model that shares nothing with it, with fake tensors, and these."""
    tensors = [*model.parameters(), *model.buffers()]
    fakes: dict[int, Any] = {id(t): mode.from_tensor(t) for t in tensors}
    twin = copy.deepcopy(model, dict(fakes))
    return twin, list(fakes.values())


@dataclass
class Shaped:
    """An input of which only the form is known."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def _made(form: Shaped) -> torch.Tensor:
    return torch.empty(form.shape, dtype=form.dtype, device=form.device)


def _note_shapes(model: nn.Module, shapes: dict[str, str]) -> None:
    def noting(name: str) -> Callable[..., None]:
        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            found = [list(t.shape) for t in tree_leaves(output) if isinstance(t, torch.Tensor)]
            shapes[name] = ", ".join(map(str, found))

        return note

    for name, module in model.named_modules():
        module.register_forward_hook(noting(name))


def predict(
    model: nn.Module, inputs: Sequence[Any], named: dict[str, Any], optimizer: Optimizer | None
) -> Prediction:
    """A forward pass, in training mode a backward pass, and a step of the optimizer, if any.

    RuntimeError when the model cannot run so: with inputs that it cannot take, or where it asks for
    values. The text has the reason.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    shapes: dict[str, str] = {}
    try:
        twin, kept = _faked(model, mode)
        _note_shapes(twin, shapes)
        given = tree_map_only(torch.Tensor, mode.from_tensor, (tuple(inputs), dict(named)))
        with mode:
            given = tree_map_only(Shaped, _made, given)
        alive = _Alive()
        for t in [*kept, *tree_leaves(given)]:
            for found in (t, t.grad if isinstance(t, nn.Parameter) else None):
                if isinstance(found, FakeTensor):
                    alive.count(found)
        with mode, alive, _Meeting(kept), torch.set_grad_enabled(model.training):
            _steps(twin, given[0], given[1], optimizer)
    except Exception as error:
        values = isinstance(error, DataDependentOutputException | DynamicOutputShapeException)
        why = f"it asks for values, and none are computed ({error})" if values else error
        raise RuntimeError(
            f"managed: what a step of {type(model).__name__} needs could not be predicted: {why}"
        ) from error
    return Prediction(alive.peaks, shapes)


def _steps(
    model: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], optimizer: Optimizer | None
) -> None:
    """One pass; with an optimizer two steps, since its state is there from the second one on."""
    made = optimizer(model.parameters()) if optimizer and model.training else None
    for group in made.param_groups if made else ():
        apart = any(p.device.type == "cpu" for p in group["params"])
        if "foreach" in group and group["foreach"] is None and not apart:
            group["foreach"] = not group.get("fused")  # torch asks types, which the fakes lack
    for _ in range(2 if made else 1):
        results = model(*inputs, **named)
        if model.training:
            given = (t for t in tree_leaves(results) if isinstance(t, torch.Tensor))
            losses = [t.sum() for t in given if t.requires_grad]
            del results
            torch.autograd.backward(losses)
        if made:
            made.step()
            made.zero_grad()
