"""One allocator for a program: other libraries take memory of torch's, so tensors leave for it.

`managed.integrations` has these functions. Nothing is imported before they are called.
"""

from __future__ import annotations

import ctypes
import sys
from importlib import import_module
from typing import Any

import torch

from managed.holders import give_back

__all__ = ["cupy_allocator", "numba_memory_manager", "rmm_callback", "rmm_resource"]


_cuda: Any = torch.cuda  # some of its functions have no types


class _Block:
    """Bytes of torch's allocator, on the current device; they go back when this dies."""

    address = 0

    def __init__(self, nbytes: int, stream: int) -> None:
        self.delete = _cuda.caching_allocator_delete  # managed.on() may have ended when it dies
        self.address = _cuda.caching_allocator_alloc(nbytes, stream=stream)

    def __del__(self) -> None:
        if self.address and not sys.is_finalizing():
            self.delete(self.address)


def cupy_allocator() -> Any:
    """`cupy.cuda.set_allocator(cupy_allocator())`: CuPy's arrays are in memory of torch's.

    CuPy's own pool is not used then, and idle tensors leave for its arrays. A request for which
    nothing can leave raises torch.OutOfMemoryError.
    """
    cuda = import_module("cupy").cuda

    def allocate(nbytes: int) -> Any:
        block = _Block(nbytes, cuda.get_current_stream().ptr)
        device = cuda.runtime.getDevice()
        return cuda.MemoryPointer(cuda.UnownedMemory(block.address, nbytes, block, device), 0)

    return allocate


def rmm_resource() -> Any:
    """`rmm.mr.set_current_device_resource(rmm_resource())`, for RMM and cuDF."""

    streams: dict[int, int] = {}  # of blocks, by address

    def allocate(*told: Any) -> int:
        """Told (bytes, stream), or by later versions (stream, bytes, alignment)."""
        stream = next(one for one in told if hasattr(one, "__cuda_stream__"))
        nbytes = next(one for one in told if isinstance(one, int))
        handle = stream.__cuda_stream__()[1]
        address: int = _cuda.caching_allocator_alloc(nbytes, stream=handle)
        streams[address] = handle
        return address

    def free(*told: Any) -> None:
        """The address is the first number, in all versions.

        The block goes back to the stream that it was allocated for, so another stream that has used
        it is waited for.
        """
        stream = next(one for one in told if hasattr(one, "__cuda_stream__"))
        address = next(one for one in told if isinstance(one, int))
        if address:
            if streams.pop(address) != stream.__cuda_stream__()[1]:
                stream.synchronize()
            _cuda.caching_allocator_delete(address)

    return import_module("rmm.mr").CallbackMemoryResource(allocate, free)


def rmm_callback(nbytes: int) -> bool:
    """Makes room for a resource of RMM's own that has found none, by `managed.give_back()`.

    `rmm.mr.FailureCallbackResourceAdaptor(resource, rmm_callback)` calls it, and asks the resource
    again if it returns True: now the driver has so many bytes, and had not before.
    """
    device = torch.cuda.current_device()
    free, total = torch.cuda.mem_get_info(device)
    if free >= nbytes or nbytes > total:
        return False
    give_back(device, nbytes - free)
    return torch.cuda.mem_get_info(device)[0] >= nbytes


def _pointer(address: int) -> Any:
    """A pointer as Numba wants it: one of NVIDIA's binding, or of ctypes where there is none."""
    try:
        return import_module("cuda.bindings.driver").CUdeviceptr(address)
    except ImportError:
        return ctypes.c_uint64(address)


def numba_memory_manager() -> type:
    """`numba.cuda.set_memory_manager(numba_memory_manager())`, for Numba.

    It has to be set before Numba uses a device.
    """
    cuda = import_module("numba.cuda")

    class ManagedMemory(cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc,name-defined]
        interface_version = 1

        def initialize(self) -> None: ...

        def memalloc(self, size: int) -> Any:
            block, blocks = _Block(size, 0), self.allocations
            blocks[block.address] = block
            address = _pointer(block.address)
            return cuda.MemoryPointer(
                self.context, address, size, finalizer=lambda: blocks.pop(block.address, None)
            )

        def get_memory_info(self) -> Any:
            return cuda.MemoryInfo(*torch.cuda.mem_get_info())

        def get_ipc_handle(self, memory: Any) -> Any:
            raise NotImplementedError(
                "managed: memory of torch's allocator has no handle for Numba"
            )

    return ManagedMemory
