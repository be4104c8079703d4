"""Allocators of libraries that the program has imported, as holders. Nothing is imported here.

Called in a shortage, in a thread of managed's own (csrc/python/holders.c).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from managed._backend import C

__all__ = ["find"]


def _index(device: str) -> int:
    """The number of a CUDA device; -1 for others, on which these libraries have nothing."""
    kind, _, index = device.partition(":")
    return int(index) if kind == "cuda" else -1


class _Known:
    """The holder of one library."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def __gpu_memory_report__(self, device: str) -> dict[str, int]:
        index = _index(device)
        live, cached = self.held(index) if index >= 0 else (0, 0)
        return {"live": live, "cached": cached}

    def __gpu_memory_reclaim__(self, device: str, nbytes: int) -> int:
        index = _index(device)
        if index >= 0:
            self.free(index, nbytes)
        return 0  # the driver tells

    def held(self, index: int) -> tuple[int, int]:
        """Bytes that are live, and cached."""
        raise NotImplementedError

    def free(self, index: int, nbytes: int) -> None:
        raise NotImplementedError


class _CuPy(_Known):
    """The default pool, which gives back whole blocks, whatever the number of bytes."""

    def held(self, index: int) -> tuple[int, int]:
        pool = self._pool(index)
        return pool.used_bytes(), pool.free_bytes()

    def free(self, index: int, nbytes: int) -> None:
        self._pool(index).free_all_blocks()

    def _pool(self, index: int) -> Any:
        """Of the device, which stays this thread's: `with` would make a context on the first."""
        self.library.cuda.Device(index).use()
        return self.library.get_default_memory_pool()


class _RMM(_Known):
    """Resources over a driver's pool whose handle is known; a PoolMemoryResource never shrinks."""

    def _pool(self, index: int) -> tuple[Any, Any] | None:
        """CUDA's runtime, which RMM has imported, and the handle."""
        runtime = sys.modules.get("cuda.bindings.runtime")
        resource = self.library.mr.get_per_device_resource(index)
        while resource is not None and not hasattr(resource, "pool_handle"):
            resource = getattr(resource, "upstream_mr", None)
        if runtime is None or resource is None:
            return None
        return runtime, runtime.cudaMemPool_t(int(resource.pool_handle()))

    def held(self, index: int) -> tuple[int, int]:
        found = self._pool(index)
        if found is None:
            return 0, 0
        runtime, pool = found
        kinds = runtime.cudaMemPoolAttr
        used, reserved = (
            int(runtime.cudaMemPoolGetAttribute(pool, kind)[1])
            for kind in (
                kinds.cudaMemPoolAttrUsedMemCurrent,
                kinds.cudaMemPoolAttrReservedMemCurrent,
            )
        )
        return used, reserved - used

    def free(self, index: int, nbytes: int) -> None:
        found = self._pool(index)
        if found is not None:
            runtime, pool = found
            used, cached = self.held(index)
            runtime.cudaMemPoolTrimTo(pool, used + max(0, cached - nbytes))


class _Numba(_Known):
    """What waits to be freed, which Numba does in batches."""

    def _waiting(self, index: int) -> Any:
        context = self.library.gpus[index]._device.primary_context
        return None if context is None else context.memory_manager.deallocations

    def held(self, index: int) -> tuple[int, int]:
        waiting = self._waiting(index)
        return 0, 0 if waiting is None else waiting._size

    def free(self, index: int, nbytes: int) -> None:
        waiting = self._waiting(index)
        if waiting is not None:
            with self.library.gpus[index]:
                waiting.clear()


class _CuDF(_Known):
    """Buffers that may go to the host, if the program lets cuDF spill. It uses one device.

    That is taken to be the first that the process sees, as programs of several processes have it.
    """

    def held(self, index: int) -> tuple[int, int]:
        manager = self.library.get_global_manager() if index == 0 else None
        there = [b for b in manager.buffers() if not b.is_spilled] if manager else []
        idle = sum(b.size for b in there if b.spillable)
        return sum(b.size for b in there) - idle, idle

    def free(self, index: int, nbytes: int) -> None:
        manager = self.library.get_global_manager()
        if manager:
            manager.spill_device_memory(nbytes)


# By the module whose import makes them known.
_LIBRARIES: dict[str, tuple[str, Callable[[Any], _Known]]] = {
    "cupy": ("cupy", _CuPy),
    "rmm": ("rmm", _RMM),
    "numba.cuda": ("numba", _Numba),
    "cudf.core.buffer.spill_manager": ("cudf", _CuDF),
}
_known: dict[str, _Known] = {}


def find() -> bool:
    """Adds the libraries that were imported since; returns whether there were any.

    A library that is still being imported is left for the next time.
    """
    found = False
    for module, (name, make) in _LIBRARIES.items():
        library = sys.modules.get(module)
        if library is None or module in _known or _is_being_imported(library):
            continue
        _known[module] = make(library)  # keeps the holder, to which the table refers weakly
        with contextlib.suppress(ValueError):  # the program has taken the name
            C.holders_add(_known[module], name, 0)
        found = True
    return found


def _is_being_imported(library: Any) -> bool:
    return bool(getattr(getattr(library, "__spec__", None), "_initializing", False))
