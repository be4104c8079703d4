"""managed.on: a block in which tensors and modules are managed without being wrapped."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch.utils._contextlib import context_decorator

from managed._backend import INERT, C
from managed._budgets import budget as set_budget
from managed._budgets import cap_of
from managed._modules import placement
from managed._on import modules
from managed._torch_patches.patches import Patch, Patches
from managed.sim import is_simulated, read_devices, simulate

__all__ = ["on"]

Function = TypeVar("Function", bound=Callable[..., Any])
Device = torch.device | int | str


class on:
    """A block, or a decorator, in which all that is made is managed, without a changed line.

    Tensors are managed from the first operator on that makes or meets them. Where the program says
    `"cuda"` without an index, the manager chooses. What is made of tensors that are on a device
    already is made there. A module becomes managed, and goes to one device as a whole, when it is
    sent to `"cuda"` or called first; one that fits on no device is spread over all of them by
    layers if `disperse` says so. On simulated devices `"cuda"` names them, in torch.cuda's
    functions, too; the `.device` of a tensor still says `sim:0`.

    It decorates functions and generators. Threads that are started inside are inside until they
    end; others are not. It may be nested, entered again, and left by an exception.

    Args:
        devices: `"4x8GiB"`, or `"8GiB,4GiB"` with one size a device, simulates devices, which stay
            after the block; a list such as `["cuda:0"]` has the manager use no others meanwhile.
            By default those that there are, or four simulated ones.
        budget: what may be used of each device meanwhile, as for `managed.budget`: `"50%"`,
            `"8GiB"`, bytes.
        disperse: what names no device in particular goes where least is in use; `False`: to the
            fullest that has room.

    Raises:
        ValueError: for arguments that make no sense. Whenever it raises, nothing has changed.
        TypeError: for arguments of another kind, and for coroutines.
        RuntimeError: as `managed.simulate`.
    """

    def __init__(
        self,
        devices: str | Sequence[Device] | None = None,
        budget: int | str | None = None,
        disperse: bool = True,
    ) -> None:
        if not isinstance(disperse, bool):
            raise ValueError(f"managed: disperse is True or False, not {disperse!r}")
        if isinstance(devices, str) and not devices[:1].isdigit():
            raise ValueError(
                f"managed: devices are simulated ('4x8GiB'), or a list of some that there are: "
                f"[{devices!r}]"
            )
        if devices is not None and not isinstance(devices, (str, list, tuple)):
            if callable(devices):
                raise TypeError("managed: on takes arguments first: write @managed.on()")
            raise TypeError(
                "managed: devices are simulated ('4x8GiB'), or a list of some that there are "
                f"(['cuda:0', 'cuda:1']), not {devices!r}"
            )
        self._simulated = read_devices(devices) if isinstance(devices, str) else None
        self._chosen = None if devices is None or isinstance(devices, str) else list(devices)
        if budget is not None:
            cap_of(budget, 2**62, "a device")  # or an error
        self._budget, self._disperse = budget, disperse
        self._open = threading.local()  # what this thread has to undo, the last entry at the end

    def __enter__(self) -> on:
        with ExitStack() as undo:
            if not INERT:
                self._enter(undo)
            stack = vars(self._open).setdefault("undo", [])
            stack.append(undo.pop_all())
        return self

    def _enter(self, undo: ExitStack) -> None:
        if self._simulated:
            simulate(*self._simulated)
        elif self._chosen is None and not C.rooms(C.get_manager()):
            simulate()
        if self._chosen is not None:
            before = C.get_manager()
            chosen = C.DeviceManager(
                before.comm_interface,
                self._chosen,
                before.reserved,
                before.retry_limit,
                before.wait_time,
            )
            undo.callback(C.set_manager, before)
            C.set_manager(chosen)
        if self._budget is not None:
            for device in C.get_manager().cuda_devices:
                undo.enter_context(set_budget(device, self._budget))
        _join(C.DISPERSING if self._disperse else C.ON, undo)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.undo.pop().close()

    def __call__(self, function: Function) -> Function:
        """A function that runs inside; a generator is inside whenever it runs."""
        import inspect

        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                "managed: on() cannot decorate a coroutine, because others run in its thread while "
                "it waits; use `with managed.on():` around what does not wait"
            )
        wrapped: Function = context_decorator(lambda: self, function)  # type: ignore[no-untyped-call]
        return wrapped


def _join(mode: int, undo: ExitStack) -> None:
    """Takes the calling thread in, and what others' code asks for there."""
    _patches.enter()
    undo.callback(_patches.leave)
    if is_simulated():
        from managed._on import cuda

        cuda.enter()
        undo.callback(cuda.leave)
    undo.callback(C.set_on, C.set_on(mode, pick), pick)


def pick(size: int) -> torch.device:
    """The device for a new tensor of so many bytes."""
    return placement.for_bytes(size, C.get_manager(), C.get_on() == C.DISPERSING)


# ---- tensors


def _read(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of torch.Tensor: what a program did not send to a device it need not fetch from there."""

    @functools.wraps(original)
    def numpy(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        far = not self.is_cpu and C.is_managed(self) and C.get_on()
        return original(self.cpu() if far else self, *args, **kwargs)

    return numpy


# ---- threads


def _started(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def start(self: threading.Thread) -> None:
        mode = C.get_on()
        if not mode or self.ident is not None:
            return original(self)
        run = self.run
        with ExitStack() as undo:  # from now on, so that the names stay when the block is left
            _patches.enter()
            undo.callback(_patches.leave)

            def run_inside() -> None:
                with undo_at_end, ExitStack() as out:
                    del self.run
                    _join(mode, out)
                    run()

            self.run = run_inside  # type: ignore[method-assign]
            undo_at_end = undo.pop_all()
        try:
            original(self)
        except BaseException:
            undo_at_end.close()
            del self.run
            raise

    return start


def _make() -> Iterator[Patch]:
    from managed._on import parallel

    yield from modules.patches()
    yield Patch(torch.Tensor, "numpy", _read(torch.Tensor.numpy))
    yield Patch(threading.Thread, "start", _started(threading.Thread.start))
    yield from parallel.patches()


_patches = Patches(_make)
