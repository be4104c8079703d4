"""What a notebook shows of tensors, managers and errors.

Showing moves nothing, waits for nothing and starts no driver: a table tells what managed knows, and
values are shown only where they are on the host already.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

from managed._backend import C

__all__ = ["install", "out_of_memory_html"]


class _Managed:
    """A method that managed tensors have. A plain one lacks it, or has an attribute of its own."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function, self._name = function, name

    def __get__(self, tensor: torch.Tensor | None, owner: type | None = None) -> Any:
        if tensor is None:
            return self
        if self._name in vars(tensor):
            return vars(tensor)[self._name]
        if not C.is_managed(tensor):
            kind = type(tensor).__name__
            raise AttributeError(f"{kind!r} object has no attribute {self._name!r}")
        return MethodType(self._function, tensor)

    def __set__(self, tensor: torch.Tensor, value: Any) -> None:
        """As if there were none of ours; torch.overrides expects one beside `__get__`."""
        vars(tensor)[self._name] = value


def install() -> None:
    """Gives torch.Tensor and DeviceManager what notebooks look for."""
    tensor: Any = torch.Tensor
    tensor._repr_html_ = _Managed(_tensor_html, "_repr_html_")
    tensor._repr_mimebundle_ = _Managed(_tensor_bundle, "_repr_mimebundle_")
    manager: Any = C.DeviceManager
    manager._repr_html_ = _manager_html


def _tensor_rows(tensor: torch.Tensor) -> list[tuple[str, str]]:
    from managed._views.words import size
    from managed.explain import whereabouts

    home, where = str(tensor.device), whereabouts(tensor)
    rows = [("size", size(C.nbytes(tensor))), ("device", home)]
    if where != home:
        rows.append(("bytes are", f"on {where}; they come home for the next operator that uses it"))
    states = {
        "pinned: it does not move": C.pinned(tensor),
        "placed by the program": C.placed(tensor),
        "requires a gradient": tensor.requires_grad,
    }
    told = "; ".join(name for name, is_so in states.items() if is_so)
    return [*rows, ("state", told)] if told else rows


def _tensor_head(tensor: torch.Tensor) -> str:
    kind = "Parameter" if isinstance(tensor, torch.nn.Parameter) else "ManagedTensor"
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{kind} {tuple(tensor.shape)} of {dtype} on {tensor.device}"


def _tensor_line(tensor: torch.Tensor) -> str:
    told = [f"{value}" for name, value in _tensor_rows(tensor) if name != "device"]
    return f"{_tensor_head(tensor)}: {', '.join(told)}"


def _tensor_html(tensor: torch.Tensor) -> str:
    from managed._views import html

    if tensor.device.type == "cpu":
        values = html.preformatted(repr(tensor))
    else:
        values = html.note("print() shows the values, which are copied to the host for it.")
    return html.page(_tensor_head(tensor), html.table((), _tensor_rows(tensor)), values)


def _tensor_bundle(tensor: torch.Tensor, **asked: Any) -> dict[str, str] | None:
    """Both forms for a notebook, which would ask repr() for the text: that fetches the values."""
    from managed._views.cells import in_notebook

    if not in_notebook():
        return None
    text = repr(tensor) if tensor.device.type == "cpu" else _tensor_line(tensor)
    return {"text/plain": text, "text/html": _tensor_html(tensor)}


def _manager_html(manager: C.DeviceManager) -> str:
    from managed._views import html
    from managed._views.colors import OWNED
    from managed._views.stats_tables import by_owner
    from managed._views.words import size
    from managed.explain import stats

    rows = []
    for device, held in stats()["devices"].items():
        owners = by_owner(device, held)
        bar = html.bar(owners, OWNED, held["capacity"])
        told = ", ".join(f"{size(n)} {owner}" for owner, n in owners.items() if n)
        rows.append(
            (device, bar, *(size(held[k]) for k in ("used", "free", "peak", "capacity")), told)
        )
    head = ("device", "", "used", "free", "peak", "capacity", "by owner")
    if not rows:
        return html.page(repr(manager), html.note("no accelerator has been used yet"))
    return html.page(repr(manager), html.table(head, rows, right=[2, 3, 4, 5]))


def out_of_memory_html(error: BaseException) -> str:
    """The error's text: what was asked, then a line a device, then what to try."""
    from managed._views import html

    first, *lines = str(error).split("\n")
    devices = [tuple(line.strip().split(": ", 1)) for line in lines if line.startswith("  ")]
    rest = [line for line in lines if line and not line.startswith("  ")]
    table = [html.table((), devices, wide=[1])] if devices else []
    return html.page(f"OutOfMemoryError: {first}", *table, *map(html.note, rest))
