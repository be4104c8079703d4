"""What managed.summary() finds. Imported when it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from managed._backend import C
from managed._modules import walk as _walk
from managed.explain import stats, whereabouts

__all__ = ["Line", "Summary", "summarize"]

Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass
class Line:
    """A module of the tree, with its own tensors; with all below it where the tree is cut."""

    depth: int
    position: str  #: "Linear: 2-1", as torchinfo counts: depth and number at that depth
    name: str  #: "layers.0.weight"'s "layers.0"
    tensors: list[torch.Tensor]  #: a tied tensor belongs to its first user alone
    ties: bool = False  #: whether some of its tensors belong to a module above
    last: bool = False  #: whether it is the last of its parent
    shape: str = ""  #: of what it gives, when the summary was given an input

    @property
    def parameters(self) -> int:
        """Numbers in its parameters."""
        return sum(_numbers(t) for t in self.tensors if isinstance(t, nn.Parameter))

    @property
    def bytes(self) -> int:
        return sum(map(_bytes, self.tensors))

    @property
    def devices(self) -> list[str]:
        """The homes of its tensors."""
        return list(dict.fromkeys(str(t.device) for t in self.tensors))

    @property
    def where(self) -> dict[str, int]:
        """Bytes by the device where they are now."""
        return _sums((whereabouts(t), _bytes(t)) for t in self.tensors)


def _numbers(tensor: torch.Tensor) -> int:
    return 0 if is_lazy(tensor) else tensor.numel()


def _bytes(tensor: torch.Tensor) -> int:
    return 0 if is_lazy(tensor) else C.nbytes(tensor)


def _sums(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, n in pairs:
        found[name] = found.get(name, 0) + n
    return found


@dataclass
class Summary:
    """What managed.summary() gives. It prints itself; a notebook shows it as a table."""

    model: str  #: the class of the model
    lines: list[Line]
    total_params: int = 0
    trainable_params: int = 0
    bytes: int = 0  #: of parameters and buffers
    where: dict[str, int] = field(default_factory=dict)  #: bytes by the device where they are
    peaks: dict[str, int] = field(default_factory=dict)  #: predicted, bytes by device
    capacities: dict[str, int] = field(default_factory=dict)  #: bytes that each device may use
    of: str = ""  #: what was predicted: "a step of training", ...

    def __repr__(self) -> str:
        from managed._views import summary_tables

        return summary_tables.text(self)

    def _repr_html_(self) -> str:
        from managed._views import summary_tables

        return summary_tables.html(self)


def summarize(
    model: nn.Module,
    input_size: Any,
    input_data: Any,
    dtypes: Sequence[torch.dtype] | None,
    depth: int,
    optimizer: Optimizer | None,
) -> Summary:
    """See managed.summary()."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"managed: summary takes a torch.nn.Module, not {model!r}")
    if depth < 1:
        raise ValueError(f"managed: depth is the number of levels to show, 1 or more, not {depth}")
    if optimizer is not None and not callable(optimizer):
        raise TypeError(
            "managed: optimizer is what makes one of parameters, such as torch.optim.AdamW, and "
            f"this is {type(optimizer).__name__!r} already; say lambda p: torch.optim.SGD(p, 0.1)"
        )
    if input_size is not None and input_data is not None:
        raise ValueError("managed: give input_size or input_data, not both")
    lines = list(_lines(model, depth))
    tensors = [t for line in lines for t in line.tensors]
    found = Summary(type(model).__name__, lines)
    parameters = [t for t in tensors if isinstance(t, nn.Parameter)]
    found.total_params = sum(map(_numbers, parameters))
    found.trainable_params = sum(_numbers(p) for p in parameters if p.requires_grad)
    found.bytes = sum(map(_bytes, tensors))
    found.where = _sums((whereabouts(t), _bytes(t)) for t in tensors)
    _add_peaks(found, model, tensors, _inputs(model, input_size, input_data, dtypes), optimizer)
    return found


def _lines(model: nn.Module, depth: int) -> Iterator[Line]:
    seen: set[int] = set()
    numbers: dict[int, int] = {}

    def own(module: nn.Module, whole: bool) -> tuple[list[torch.Tensor], bool]:
        found = _walk.slots([module]) if whole else list(_walk.own_slots(module))
        fresh = [s.tensor for s in found if id(s.tensor) not in seen]
        seen.update(id(t) for t in fresh)
        return fresh, len(fresh) < len(found)

    def walk(module: nn.Module, name: str, level: int, last: bool) -> Iterator[Line]:
        position = type(module).__name__
        if level:
            numbers[level] = numbers.get(level, 0) + 1
            position += f": {level}-{numbers[level]}"
        tensors, ties = own(module, level == depth)
        yield Line(level, position, name, tensors, ties, last)
        children = [(n, c) for n, c in module.named_children()] if level < depth else []
        for i, (child, there) in enumerate(children):
            below = f"{name}.{child}" if name else child
            yield from walk(there, below, level + 1, i == len(children) - 1)

    return walk(model, "", 0, True)


def _inputs(
    model: nn.Module, size: Any, data: Any, dtypes: Sequence[torch.dtype] | None
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The positional and the named inputs; those of a size are forms. None without inputs."""
    if data is not None:
        if isinstance(data, dict):
            return (), dict(data)
        return (tuple(data) if isinstance(data, (tuple, list)) else (data,)), {}
    if size is None:
        return None
    sizes = [size] if _is_shape(size) else size
    if not isinstance(sizes, Sequence) or not all(map(_is_shape, sizes)):
        raise TypeError(
            "managed: input_size is a shape such as (8, 64), or a list of shapes; what the model "
            f"is called with goes to input_data=. This is {type(size).__name__!r}"
        )
    kinds = list(dtypes or [torch.float32] * len(sizes))
    if len(kinds) != len(sizes):
        raise ValueError(
            f"managed: there are {len(sizes)} inputs and {len(kinds)} dtypes; give one for each"
        )
    from managed._views import predict

    first = next(iter(_walk.slots([model])), None)
    device = first.tensor.device if first else torch.device("cpu")
    made = [predict.Shaped(tuple(s), kind, device) for s, kind in zip(sizes, kinds, strict=True)]
    return tuple(made), {}


def _is_shape(size: Any) -> bool:
    return isinstance(size, Sequence) and all(
        isinstance(n, SupportsIndex) and not isinstance(n, torch.Tensor) for n in size
    )


def _add_peaks(
    found: Summary,
    model: nn.Module,
    tensors: list[torch.Tensor],
    inputs: tuple[tuple[Any, ...], dict[str, Any]] | None,
    optimizer: Optimizer | None,
) -> None:
    known = stats().get("devices", {})
    if inputs is not None:
        from managed._views import predict

        told = predict.predict(model, *inputs, optimizer)
        found.peaks = told.peaks
        for line in found.lines:
            line.shape = told.shapes.get(line.name, "")
        name = getattr(optimizer, "__name__", "its optimizer")
        step = f"a training step with {name}" if optimizer else "a forward and a backward pass"
        found.of = step if model.training else "a forward pass"
    else:
        gradients = [t for t in tensors if t.requires_grad] if model.training else []
        found.peaks = _sums((str(t.device), _bytes(t)) for t in [*tensors, *gradients])
        found.of = "parameters, buffers" + (" and gradients" if model.training else "")
    found.capacities = {d: known[d]["capacity"] for d in found.peaks if d in known}
