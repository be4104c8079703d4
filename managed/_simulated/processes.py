"""Simulated devices and other processes: what may leave, what is refused, what a fork needs.

The bytes of a simulated device belong to one process. Batches of a DataLoader's workers travel as
values; whatever would have to be shared raises, and no process waits for what never comes.
Also here: nn.DataParallel, which would take them for devices that it can copy to.
"""

from __future__ import annotations

import functools
import multiprocessing.queues
import os
import sys
import threading
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import torch
from torch.multiprocessing.reductions import reduce_storage
from torch.utils.data import get_worker_info

__all__: list[str] = []


def install() -> None:
    """Called once, when devices are simulated."""
    ForkingPickler.register(torch.UntypedStorage, _reduce_storage)
    original = torch.UntypedStorage.share_memory_

    @functools.wraps(original)
    def share_memory_(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == "sim":
            _refuse(str(self.device))
        return original(self, *args, **kwargs)

    torch.UntypedStorage.share_memory_ = share_memory_  # type: ignore[method-assign]
    os.register_at_fork(after_in_child=_mend_thread_pool)
    _keep_data_parallel()


def _reduce_storage(storage: torch.UntypedStorage) -> Any:
    """What ForkingPickler writes for a storage."""
    if storage.device.type != "sim":
        return reduce_storage(storage)  # type: ignore[no-untyped-call]
    device = str(storage.device)
    if get_worker_info() is not None:
        values = storage.cpu()  # type: ignore[no-untyped-call]
        return _arrive, (values, device)
    if not _unheard():
        _refuse(device)
    return _refuse, (device,)


def _arrive(values: torch.UntypedStorage, device: str) -> torch.UntypedStorage:
    size = values.nbytes()
    storage = torch.UntypedStorage(size, device=device)  # type: ignore[no-untyped-call]
    storage.copy_(values)
    return storage


def _refuse(device: str) -> NoReturn:
    raise RuntimeError(
        f"managed: a tensor on {device} cannot be shared with another process, because simulated "
        "devices belong to one process. Share x.cpu(), and move it to a device where it arrives"
    )


def _unheard() -> bool:
    """Whether this is the thread of a queue that prints errors and drops what it cannot send.

    A process that waits for the item would wait for ever, so the refusal is sent in its place.
    """
    arguments = getattr(threading.current_thread(), "_args", ())
    return multiprocessing.queues.Queue._on_queue_feeder_error in arguments  # type: ignore[attr-defined]


def _mend_thread_pool() -> None:
    """Makes torch replace its pool of threads, which did not survive the fork.

    The engine's device threads would do it at once in the child's first backward pass, and torch
    aborts when two of them meet there.
    """
    torch.set_num_threads(torch.get_num_threads())


def _keep_data_parallel() -> None:
    """nn.DataParallel copies with functions that CUDA alone has: without CUDA it calls its module.

    It would take the simulated devices for some that it can use. Inside of managed.on() they have
    CUDA's name, and _on/parallel.py sees to it.
    """
    parallel: Any = sys.modules["torch.nn.parallel.data_parallel"]
    asked = parallel._get_available_device_type

    def available() -> str | None:
        found: str | None = asked()
        return None if found == "sim" else found

    parallel._get_available_device_type = available
