"""Runs the parts of a batch at once, in a lasting thread for each device.

What the calling thread has set goes along: grad and inference mode, autocast, the current streams,
managed.on() and context variables. One part draws random numbers from the one stream of all
devices: the part on the first accelerator or, if none is there, the first part. Each other part
draws from the generator of its device, which is seeded from that stream, so threads share none.
"""

from __future__ import annotations

import contextvars
import functools
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils import checkpoint

from managed._backend import C
from managed._modules import walk

__all__ = ["Workers", "in_part"]

_thread = threading.local()


def in_part() -> bool:
    """Whether this thread runs a part of a batch now."""
    return getattr(_thread, "inside", False)


class Workers:
    """The threads. They begin with the first call and end with this object."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._devices = devices
        self._threads: list[ThreadPoolExecutor] = []
        self._process = 0

    def run(self, parts: Sequence[Callable[[], Any]], leave: Callable[[int], None]) -> list[Any]:
        """The results of parts that run at once.

        All have ended when it returns or raises. If some raise, the exception of the first of them
        is raised, with a note that names part and device. `leave` is told of each part that has
        ended, and of all of them if the caller does not wait for their results.
        """
        begin = _surroundings(self._devices)
        jobs: list[Callable[[], Any]] = [
            functools.partial(_run, part, functools.partial(begin, i), functools.partial(leave, i))
            for i, part in enumerate(parts)
        ]
        if len(jobs) == 1:
            return [jobs[0]()]
        with self._started() as threads:
            try:
                ended = [
                    thread.submit(contextvars.copy_context().run, job)
                    for thread, job in zip(threads, jobs, strict=False)
                ]
                wait(ended)
            except BaseException:  # Ctrl-C: the parts use what the caller takes back
                for i in range(len(parts)):
                    leave(i)
                wait([thread.submit(int) for thread in threads])  # each runs one thing at a time
                raise
        return self._results(ended)

    @contextmanager
    def _started(self) -> Iterator[list[ThreadPoolExecutor]]:
        def start() -> list[ThreadPoolExecutor]:
            names = (f"managed part {i}" for i in range(len(self._devices)))
            return [ThreadPoolExecutor(1, thread_name_prefix=name) for name in names]

        if C.get_on():  # a thread that begins inside of managed.on() is inside until it ends
            with ExitStack() as stack:
                yield [stack.enter_context(thread) for thread in start()]
            return
        if self._process != os.getpid():  # a child of fork() has no threads
            self._threads, self._process = start(), os.getpid()
        yield self._threads

    def _results(self, ended: Sequence[Future[Any]]) -> list[Any]:
        errors = [(i, e) for i, e in enumerate(f.exception() for f in ended) if e is not None]
        if not errors:
            return [f.result() for f in ended]
        i, error = next(((i, e) for i, e in errors if not isinstance(e, LeftAlone)), errors[0])
        note = f"managed: in part {i + 1} of {len(ended)}, on {self._devices[i]}"
        walk.add_note(error, note)
        try:
            raise error
        finally:
            del error, errors  # their tracebacks hold this frame


class LeftAlone(RuntimeError):
    """Another part ended where this one waited for it."""


def _run(part: Callable[[], Any], begin: Callable[[], ExitStack], leave: Callable[[], None]) -> Any:
    try:
        with begin() as surroundings:
            _thread.inside = True
            surroundings.callback(setattr, _thread, "inside", False)
            try:
                return part()
            except BaseException as error:
                _leave_checkpoints(error)
                raise
    finally:
        leave()


def _leave_checkpoints(error: BaseException | None) -> None:
    """Takes back the hooks of checkpoints that the exception has left, in the thread of the part.

    In torch 2.11 that is done by the thread that drops the exception, and fails there.
    """
    seen: set[int] = set()  # a program may have made a circle
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        for frame in reversed(frames):
            code = frame.f_code
            if (code.co_filename, code.co_name) == (checkpoint.__file__, "checkpoint"):
                generator = frame.f_locals.get("gen")
                if generator is not None:
                    generator.close()
        error = error.__context__


def _surroundings(devices: Sequence[torch.device]) -> Callable[[int], ExitStack]:
    """What the calling thread has set, to be entered by the thread of each part."""
    kind = devices[0].type
    runtime: Any = torch.get_device_module(kind)
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    casts = [
        (name, torch.get_autocast_dtype(name), torch.is_autocast_enabled(name))
        for name in ("cpu", kind)
    ]
    cache = torch.is_autocast_cache_enabled()
    streams = [runtime.current_stream(device) for device in devices]
    seed = C.seed_of_stream(devices[0])
    has_first = any(device.index == 0 for device in devices)  # whose numbers are the stream's

    def enter(i: int) -> ExitStack:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(inference))
            stack.enter_context(torch.set_grad_enabled(grad))
            for name, dtype, enabled in casts:
                if enabled or torch.is_autocast_enabled(name):
                    stack.enter_context(torch.autocast(name, dtype, enabled, cache))
            for stream in streams:  # the part reads what others have made on them
                stack.enter_context(runtime.stream(stream))
            stack.enter_context(runtime.device(devices[i]))
            if devices[i].index and (i or has_first):
                C.own_numbers(devices[i], (seed + i * 0x9E3779B97F4A7C15) % 2**64)
                stack.callback(C.own_numbers, devices[i], None)
            return stack.pop_all()

    return enter
