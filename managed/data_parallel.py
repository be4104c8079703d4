"""DataParallel: one model on several devices, which work at once on parts of each batch."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from managed._backend import C
from managed._modules import adopt
from managed._parallel import homes, norm, parts
from managed._parallel.homes import Placement
from managed._parallel.shells import Shells
from managed._parallel.workers import Workers, in_part
from managed._torch_patches import checkpoint
from managed.module import ManagedModule

__all__ = ["DataParallel", "Placement", "run_parts"]

_NORMS = ("first", "sync")


class _Runtime:
    """What a model has to run on several devices. Copies and pickles of it are new ones."""

    def __init__(self, devices: list[torch.device], batch_norm: str) -> None:
        self.devices, self.batch_norm = devices, batch_norm
        self.lock = threading.RLock()  # one call at a time
        self.workers = Workers(devices)
        self.shells: Shells | None = None
        self.before: Shells | None = None  # which a graph may use
        self.is_ordered = False

    def __reduce__(self) -> Any:
        return _Runtime, (self.devices, self.batch_norm)


class DataParallel(ManagedModule):
    """Trains one model on several devices at once, each of which takes a part of the batch.

    The module becomes managed in place, as by `ManagedModule.from_module`, and is returned: class,
    attributes, hooks and the keys of its state_dict stay. Its parameters get homes, so that each
    device has about as many bytes of them; gradients arrive there as one sum, and the optimizer
    works there. For a call each device gets copies of what it lacks, unless it has them already.

    A call splits tensors with as many samples as the first one along their first dimension, n // N
    or one more for each of N devices, and gives all else to every part. Outputs come together on
    the first device: tensors are put together, numbers are averaged by samples. `each()` lets a
    loss be computed where each part is. Parts run in threads, each with its own device as the
    current one. What a forward pass sets on modules stays of the first part; so do buffers.

    Args:
        module: any module that Python code makes up.
        devices: on which parts run; by default all.
        batch_norm: `"first"`: each part is normalized by itself, and running statistics are those
            of the first part. `"sync"`: BatchNorm sees the whole batch.

    Raises:
        TypeError: for what is no module, and for scripted modules.
        ValueError: for devices that do not exist, for one named twice, for none, for an unknown
            `batch_norm`, for a lazy module that has no shapes yet, and for a BatchNorm layer with a
            forward pass of its own that is to be synced.
        PinConflictError: a parameter is pinned to a device that is not among them.
    """

    _managed_parallel: _Runtime | None = None  # of a shell: None

    def __new__(
        cls,
        module: Any = None,
        devices: Sequence[torch.device | int | str] | None = None,
        *,
        batch_norm: str = "first",
        **more: Any,
    ) -> Any:
        if cls is not DataParallel:  # the class that a module has got: another object of it
            return super().__new__(cls)
        if more:
            raise TypeError(
                f"managed: DataParallel got an unexpected argument {next(iter(more))!r}"
            )
        if batch_norm not in _NORMS:
            raise ValueError(
                f'managed: batch_norm is "first" or "sync", not {batch_norm!r}: write '
                'managed.DataParallel(model, batch_norm="sync")'
            )
        found = homes.chosen(devices)
        homes.check(module)
        if batch_norm == "sync":
            norm.check(module)
        ManagedModule.from_module(module)
        if found:
            homes.place(module, found)
        with ExitStack() as undo:
            adopt.adopt(module, DataParallel, undo)
            undo.pop_all()
        module._managed_parallel = _Runtime(found, batch_norm)
        return module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        runtime = _splits(self)
        if runtime is None:
            args, kwargs = _sent(self, (args, kwargs))
            return super().__call__(*args, **kwargs)
        return parts.gather(*self._split(runtime, _call, args, kwargs))

    def each(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls `function(net, *args, **kwargs)` for each part, where the part is.

        Args:
            function: `net` stands for the model, with parameters on the device of the part. It runs
                in a thread for each part.
            args, kwargs: they are split as those of a call.

        Returns:
            What the parts return, put together as the outputs of a call. If each returns a pair of
            numbers (sum, count), the sum of all over the count of all.
        """
        runtime = _splits(self)
        if runtime is None:
            args, kwargs = _sent(self, (args, kwargs))
            found = function(self, *args, **kwargs)
            return found[0] / found[1] if _is_pair(found) else found
        outputs, counts = self._split(runtime, function, args, kwargs)
        if all(map(_is_pair, outputs)):
            return parts.summed(s for s, _ in outputs) / parts.summed(n for _, n in outputs)
        return parts.gather(outputs, counts)

    def placement(self) -> Placement:
        """Returns which device has how many bytes of the parameters, and of copies of others."""
        runtime = self._managed_parallel
        return homes.placement(self, runtime.devices if runtime else [])

    def _split(
        self, runtime: _Runtime, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> tuple[list[Any], list[int]]:
        """The results of the parts and their numbers of samples."""
        given = (args, kwargs)
        count = parts.samples(given)
        counts = parts.sizes(count, len(runtime.devices))
        return _run(self, runtime, parts.split(given, count, counts), function), counts


def _call(net: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return net(*args, **kwargs)


def _sent(module: DataParallel, given: Any) -> Any:
    """The arguments of a call that is not split, on the first device; those of a part stay."""
    runtime = module._managed_parallel
    if runtime is None or in_part() or torch.compiler.is_compiling():
        return given
    return parts.sent(given, runtime.devices)


def _splits(module: nn.Module) -> _Runtime | None:
    """What runs the parts of a call; None if a call is not split.

    That is so on one device, in a part, and while what this thread does is recorded or transformed:
    the threads of parts would be missed.
    """
    runtime = getattr(module, "_managed_parallel", None)
    if not isinstance(runtime, _Runtime) or len(runtime.devices) < 2 or in_part():
        return None
    return None if torch.compiler.is_compiling() or C.is_recorded() else runtime


def run_parts(module: nn.Module, given: Sequence[Any]) -> list[Any]:
    """The outputs of a module for each (args, kwargs) of `given`.

    They are on the first device. If the module is not parallel, it runs for one after the other.
    """
    runtime = _splits(module)
    if runtime is None:
        return [module(*args, **kwargs) for args, kwargs in given]
    return _run(module, runtime, given, _call)


def _run(
    module: nn.Module, runtime: _Runtime, given: Sequence[Any], function: Callable[..., Any]
) -> list[Any]:
    """The results of `function(net, *args, **kwargs)`, all at once, on the first device."""
    devices, meeting = runtime.devices, norm.Meeting(len(given))

    def part(i: int, root: nn.Module, share: Any) -> Any:
        args, kwargs = parts.sent(share, devices[i:])
        return function(root, *args, **kwargs)

    with runtime.lock, ExitStack() as after:
        shells = _shells(module, runtime, after)
        roots = shells.fill()
        if runtime.batch_norm == "sync":
            norm.meet(shells.all(), meeting)
        jobs = [
            functools.partial(part, i, root, share)
            for i, (root, share) in enumerate(zip(roots, given, strict=False))
        ]
        shells.begin()
        made = checkpoint.made()
        try:
            outputs = runtime.workers.run(jobs, meeting.leave)
            shells.take_over()
        finally:
            if checkpoint.made() == made:
                shells.empty()
            else:  # parts run again in these shells, with the pieces of this call
                runtime.shells, runtime.before = None, shells
    return [parts.sent(output, devices) for output in outputs]


def _shells(module: nn.Module, runtime: _Runtime, after: ExitStack) -> Shells:
    """The shells of a module, made anew if it has other children or tensors.

    The first call that records a graph notes in which order modules are used; the parameters cross
    in that order from then on.
    """
    last = runtime.shells or runtime.before
    if last is None or not last.fits():
        runtime.shells, runtime.is_ordered = Shells(module, runtime.devices), False
    elif runtime.shells is None:
        runtime.shells = Shells(module, runtime.devices, last)
    runtime.before = None
    shells = runtime.shells
    assert shells is not None
    if not runtime.is_ordered and torch.is_grad_enabled():
        runtime.is_ordered = True
        used, stop = shells.note_order()
        after.callback(shells.order, used)
        after.callback(stop)
    return shells


def _is_pair(found: Any) -> bool:
    return isinstance(found, tuple) and len(found) == 2 and all(map(_is_number, found))


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dim() == 0
    return isinstance(value, (int, float)) and not isinstance(value, bool)
