"""Splits a batch into parts along its samples, and puts the results of the parts together."""

from __future__ import annotations

import copy
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from managed._backend import C
from managed.tensor import ManagedTensor

__all__ = ["average", "gather", "leaves", "rebuild", "samples", "sent", "sizes", "split", "summed"]


def rebuild(nest: Any, change: Callable[[Any], Any]) -> Any:
    """The same nest with changed leaves: dictionaries, lists, tuples and dataclasses are nests."""
    if isinstance(nest, dict):
        changed = {key: rebuild(value, change) for key, value in nest.items()}
        return changed if type(nest) is dict else _like(nest, changed)
    if isinstance(nest, (list, tuple)):
        parts = [rebuild(value, change) for value in nest]
        return type(nest)(*parts) if hasattr(nest, "_fields") else type(nest)(parts)
    if dataclasses.is_dataclass(nest) and not isinstance(nest, type):
        fields = {f.name: rebuild(getattr(nest, f.name), change) for f in dataclasses.fields(nest)}
        return dataclasses.replace(nest, **fields)
    return change(nest)


def _like(nest: Any, changed: dict[Any, Any]) -> Any:
    """A dictionary of the class of `nest`, such as an OrderedDict or a ModelOutput."""
    if dataclasses.is_dataclass(nest) and not isinstance(nest, type):
        return type(nest)(**changed)
    try:
        return type(nest)(changed)
    except TypeError:  # a defaultdict, a BatchEncoding with arguments of its own
        return changed


def leaves(nest: Any) -> Iterator[Any]:
    """The leaves of a nest, in order."""
    if isinstance(nest, dict):
        for value in nest.values():
            yield from leaves(value)
    elif isinstance(nest, (list, tuple)):
        for value in nest:
            yield from leaves(value)
    elif dataclasses.is_dataclass(nest) and not isinstance(nest, type):
        for field in dataclasses.fields(nest):
            yield from leaves(getattr(nest, field.name))
    else:
        yield nest


def _has_samples(leaf: Any, count: int | None = None) -> bool:
    if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0:
        return False
    return count is None or leaf.size(0) == count


def samples(batch: Any) -> int:
    """The number of samples: the first dimension of the first tensor that has one.

    ValueError if the batch holds no such tensor.
    """
    for leaf in leaves(batch):
        if _has_samples(leaf):
            return int(leaf.size(0))
    raise ValueError(
        "managed: a batch is split along the first dimension of its tensors, and this one holds "
        f"no tensor that has a dimension: {type(batch).__name__}. Give the samples as a tensor, or "
        "as a tuple or dictionary of tensors"
    )


def sizes(count: int, parts: int) -> list[int]:
    """Sizes of at most so many parts: count // parts or one more, the larger ones first."""
    parts = max(1, min(count, parts))  # one empty part if there are no samples
    return [count // parts + (i < count % parts) for i in range(parts)]


def split(nest: Any, count: int, counts: Sequence[int]) -> list[Any]:
    """One nest for each part, with views of the tensors that have `count` samples.

    Objects that hold tensors and are made of what they hold, such as the caches of language models,
    are split likewise, and empty ones copied. All other leaves go whole into every part.
    """
    parts, begin = [], 0
    for n in counts:
        end = begin + n
        cuts: dict[int, Any] = {}  # a tensor that is given twice stays one

        def cut(leaf: Any, begin: int = begin, end: int = end, cuts: Any = cuts) -> Any:
            if _is_object(leaf):
                return _cut_object(leaf, cut)
            if not _has_samples(leaf, count):
                return leaf
            if id(leaf) not in cuts:
                cuts[id(leaf)] = leaf[begin:end]
            return cuts[id(leaf)]

        parts.append(rebuild(nest, cut))
        begin = end
    return parts


def _is_object(leaf: Any) -> bool:
    """Whether a leaf is an object that gives tensors, or None in their place, one after another."""
    if not isinstance(leaf, Iterable) or isinstance(leaf, (torch.Tensor, str, bytes, Iterator)):
        return False
    if type(leaf).__module__.partition(".")[0] in ("builtins", "numpy"):
        return False
    return all(one is None or isinstance(one, torch.Tensor) for one in leaves([*leaf]))


def _cut_object(leaf: Any, cut: Callable[[Any], Any]) -> Any:
    if all(one is None for one in leaves([*leaf])):
        return copy.deepcopy(leaf)
    return type(leaf)([rebuild(one, cut) for one in leaf])


def sent(part: Any, devices: Sequence[torch.device]) -> Any:
    """The part with its tensors on the first of the devices, if there is one."""
    if not devices:
        return part
    there: dict[int, Any] = {}  # a tensor that is given twice crosses once

    def send(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.is_meta or leaf.device == devices[0]:
            return leaf
        if id(leaf) not in there:
            there[id(leaf)] = _at(leaf, devices[0])
        return there[id(leaf)]

    return rebuild(part, send)


def _at(leaf: torch.Tensor, device: torch.device) -> torch.Tensor:
    if leaf.is_cpu:
        return leaf.as_subclass(ManagedTensor).to(device, non_blocking=True)
    return C.cross(leaf, device)


def gather(outputs: Sequence[Any], counts: Sequence[int]) -> Any:
    """The outputs of parts as one: tensors one after the other, numbers averaged by samples.

    Objects that can be iterated over, and made of what they hold, are put together likewise.
    Everything else is that of the first part. ValueError if the parts returned different nests.
    """
    if len(outputs) == 1:
        return outputs[0]
    columns = [list(leaves(output)) for output in outputs]
    if len({len(column) for column in columns}) > 1:
        raise ValueError(
            "managed: the parts of a batch returned nests of different sizes "
            f"({sorted({len(column) for column in columns})} leaves), which cannot be put together"
        )
    rows = iter(zip(*columns, strict=True))
    return rebuild(outputs[0], lambda _: _joined(next(rows), counts))


def _joined(parts: Sequence[Any], counts: Sequence[int]) -> Any:
    first = parts[0]
    if _has_samples(first):
        return torch.cat([*parts])
    if isinstance(first, torch.Tensor):
        return average(parts, counts)
    if isinstance(first, (int, float)) and not isinstance(first, bool):
        return first if all(part == first for part in parts) else average(parts, counts)
    if _is_object(first):
        joined = [gather(each, counts) for each in zip(*parts, strict=True)]
        return type(first)(joined) if any(one is not None for one in leaves(joined)) else first
    return first


def average(numbers: Sequence[Any], counts: Sequence[int]) -> Any:
    """The mean of numbers that stand for so many samples each."""
    total = sum(counts)
    return summed(number * (n / total) for number, n in zip(numbers, counts, strict=True))


def summed(terms: Iterable[Any]) -> Any:
    """The sum of terms, of which there is one at least, in their order."""
    return functools.reduce(operator.add, terms)
