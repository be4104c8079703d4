"""A library whose allocator keeps what its program freed, as a data-frame library does."""

import contextlib
import ctypes
import threading
import weakref

import pytest
import torch

from managed._backend import C
from support.devices import D0, ON_CUDA

__all__ = ["Keeper", "closes_keepers", "driver_free", "raw_alloc", "raw_free"]


def _runtime():
    """CUDA's runtime that this process has loaded: a virtual GPU's is among the process's names."""
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "libcudart" in line}
    virtual = ctypes.CDLL(None)
    return ctypes.CDLL(paths.pop()) if paths and not hasattr(virtual, "cudaMalloc") else virtual


_taken = {}  # the device of each address


def raw_alloc(nbytes, index=0):
    """Bytes of the driver: an address, or None without room."""
    address = _malloc(nbytes, index) if ON_CUDA else torch.sim.raw_alloc(nbytes, index)
    if address is not None:
        _taken[address] = index
    return address


def _malloc(nbytes, index):
    address = ctypes.c_void_p()
    with torch.cuda.device(index):
        failed = _runtime().cudaMalloc(ctypes.byref(address), ctypes.c_size_t(nbytes))
        if failed:
            _runtime().cudaGetLastError()  # or torch reports it
    return None if failed else address.value


def raw_free(address, index=0):
    _taken.pop(address)
    if not ON_CUDA:
        torch.sim.raw_free(address)
        return
    with torch.cuda.device(index):
        assert _runtime().cudaFree(ctypes.c_void_p(address)) == 0


def driver_free(index=0):
    """Bytes that the driver has, whatever the program's budget."""
    module = torch.cuda if ON_CUDA else torch.sim
    return module.mem_get_info(index)[0]


class Keeper:
    """Keeps freed blocks for requests of their size. Its lock is held in all of its methods."""

    def __init__(self, device=D0):
        self.device, self.index = device, torch.device(device).index
        self.lock = threading.Lock()
        self.live, self.kept = {}, {}
        self.reports, self.asked = 0, []

    def alloc(self, nbytes):
        with self.lock:
            same = [address for address, size in self.kept.items() if size == nbytes]
            address = same[0] if same else raw_alloc(nbytes, self.index)
            self.kept.pop(address, None)
            if address is not None:
                self.live[address] = nbytes
            return address

    def free(self, address):
        with self.lock:
            self.kept[address] = self.live.pop(address)

    def keep(self, nbytes, blocks):
        """Takes so many bytes and frees them: from now on they are cached."""
        taken = [self.alloc(nbytes // blocks) for _ in range(blocks)]
        assert None not in taken
        for address in taken:
            self.free(address)
        return self

    @property
    def cached(self):
        return sum(self.kept.values())

    def close(self):
        for address in (*self.live, *self.kept):
            raw_free(address, self.index)
        self.live, self.kept = {}, {}

    def __gpu_memory_report__(self, device):
        with self.lock:
            self.reports += 1
            here = device == self.device
            return {
                "live": sum(self.live.values()) if here else 0,
                "cached": self.cached if here else 0,
            }

    def __gpu_memory_reclaim__(self, device, nbytes):
        with self.lock:
            self.asked.append(nbytes)
            given = 0
            while self.kept and given < nbytes:
                address, size = self.kept.popitem()
                raw_free(address, self.index)
                given += size
            return given


@pytest.fixture(autouse=True)
def closes_keepers(monkeypatch):
    """Removes the holders that a test has left, also one that failed, and gives raw bytes back.

    A file of tests has this by its import.
    """
    added, add = [], C.holders_add

    def noting_add(holder, *rest):
        add(holder, *rest)
        try:
            added.append(weakref.ref(holder))
        except TypeError:  # a capsule
            added.append(lambda: holder)

    monkeypatch.setattr(C, "holders_add", noting_add)
    yield
    for held in filter(None, (ref() for ref in added)):
        with contextlib.suppress(ValueError):  # the test has removed it
            C.holders_remove(held)
    for address, index in [*_taken.items()]:
        raw_free(address, index)
