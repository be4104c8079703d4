"""Two allocators on one device: torch, and a data-frame library that keeps what it frees.

The library, a stand-in of a few lines, takes 60 % of the device and frees it, into its own pool.
Then torch needs 60 %. Plain tensors run out of memory, although the pool is unused. Managed tensors
make room and leave for the host, as far as bytes are missing. If the pool is a holder, it gives
these bytes back first, and no tensor leaves. And the other way round: managed.give_back() makes
room for a library that knows nothing of managed. Without a GPU the device is simulated. Needs
matplotlib for the picture.
"""

import argparse
import ctypes
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import managed
from managed import ManagedTensor

BLOCK = 16 << 20  # bytes of a tensor, and of a block of the pool
SIZE, COUNT = 40 * BLOCK, 24  # bytes of the device, and blocks in 60 % of it
DEVICE = "cuda:0" if torch.cuda.is_available() else "sim:0"


def cuda_runtime() -> ctypes.CDLL:
    """The one that torch has loaded; a virtual GPU's is among the names of the process."""
    if hasattr(ctypes.CDLL(None), "cudaMalloc"):
        return ctypes.CDLL(None)
    with open("/proc/self/maps") as maps:
        return ctypes.CDLL(next(line.split()[-1] for line in maps if "libcudart" in line))


def raw_alloc(nbytes: int) -> int | None:
    """Takes bytes from the driver, without torch: an address, or None without room."""
    if DEVICE == "sim:0":
        return torch.sim.raw_alloc(nbytes, DEVICE)
    address = ctypes.c_void_p()
    if cuda_runtime().cudaMalloc(ctypes.byref(address), ctypes.c_size_t(nbytes)):
        cuda_runtime().cudaGetLastError()  # or torch reports it
    return address.value


def raw_free(address: int) -> None:
    if DEVICE == "sim:0":
        torch.sim.raw_free(address)
    else:
        cuda_runtime().cudaFree(ctypes.c_void_p(address))


class Pool:
    """The library's allocator: it keeps each freed block. The two last methods make it a holder."""

    def __init__(self) -> None:
        self.live, self.cached = set[int](), list[int]()

    def alloc(self) -> None:
        block = self.cached.pop() if self.cached else raw_alloc(BLOCK)
        assert block, "the device is full"
        self.live.add(block)

    def free(self) -> None:
        self.cached.append(self.live.pop())

    def __gpu_memory_report__(self, device: str) -> dict[str, int]:
        here = BLOCK if device == DEVICE else 0
        return {"live": len(self.live) * here, "cached": len(self.cached) * here}

    def __gpu_memory_reclaim__(self, device: str, nbytes: int) -> int:
        """Runs in a thread of managed's: a pool that is more than a list needs a lock."""
        given = 0
        while device == DEVICE and self.cached and given < nbytes:
            raw_free(self.cached.pop())
            given += BLOCK
        return given


class Row(NamedTuple):
    """What a run ended with, in bytes."""

    run: str
    result: str
    tensors: int  #: on the device
    spilled: int
    before: int  #: what the pool kept when torch needed memory
    cached: int  #: what it keeps in the end
    live: int = 0  #: what the library uses


def values(i: int) -> Tensor:
    return torch.arange(i, i + BLOCK // 4, dtype=torch.float32)


def same(tensors: list[Tensor]) -> bool:
    return all(torch.equal(x.cpu(), values(i)) for i, x in enumerate(tensors))


def torch_needs_memory(run: str, kind: type[Tensor], holder: bool = False) -> Row:
    runtime, pool, tensors = torch.get_device_module(DEVICE), Pool(), []
    for use in (pool.alloc, pool.free):
        for _ in range(COUNT):
            use()
    if holder:
        managed.holders.add(pool, name="frames")  # This line is all that a program needs.
    result, before = "fits", len(pool.cached) * BLOCK
    managed.stats(reset=True)
    try:
        tensors.extend(values(i).as_subclass(kind).to(DEVICE) for i in range(COUNT))
    except torch.OutOfMemoryError:
        result = "OutOfMemoryError"
    spilled, cached = managed.stats()["spill_bytes"], len(pool.cached) * BLOCK
    row = Row(run, result, runtime.memory_allocated(), spilled, before, cached)
    print(f"# {run}\n{managed.holders.report(DEVICE)}\n")
    assert same(tensors)
    if holder:
        managed.holders.remove(pool)
    pool.__gpu_memory_reclaim__(DEVICE, cached)
    tensors.clear()
    runtime.empty_cache()  # the next run finds the device as this one did
    return row


def the_library_needs_memory(run: str) -> Row:
    """In one piece, while idle tensors are on the device."""
    runtime, wanted = torch.get_device_module(DEVICE), COUNT * BLOCK
    tensors = [values(i).as_subclass(ManagedTensor).to(DEVICE) for i in range(COUNT)]
    managed.stats(reset=True)
    assert raw_alloc(wanted) is None
    gained = managed.give_back(DEVICE, wanted - runtime.mem_get_info()[0])
    address = raw_alloc(wanted)
    assert address, "the bytes that were given back are the driver's"
    spilled = managed.stats()["spill_bytes"]
    row = Row(run, "fits", runtime.memory_allocated(), spilled, 0, 0, wanted)
    print(f"# {run}\n{managed.holders.report(DEVICE)}\n")
    raw_free(address)
    for x in tensors:
        x.sum()  # on the device
    back = managed.stats()["restore_bytes"]
    print(f"{gained:,} bytes given, and {back:,} came back later; same bits: {same(tensors)}\n")
    return row


def draw(rows: list[Row], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot(ylabel="% of the device; above the line: on the host")
    names, bottom = [f"{row.run}\n{row.result}" for row in rows], [0.0] * len(rows)
    for label, colour, sizes in (
        ("tensors", "#2a9d8f", [row.tensors for row in rows]),
        ("the library uses", "#c8553d", [row.live for row in rows]),
        ("the library keeps", "#f4a261", [row.cached for row in rows]),
        ("tensors on the host", "#a8dadc", [row.spilled for row in rows]),
    ):
        height = [100 * size / SIZE for size in sizes]
        axes.bar(names, height, 0.6, bottom, color=colour, label=label)
        bottom = [a + b for a, b in zip(bottom, height, strict=True)]
    axes.axhline(100, color="black")
    figure.legend(loc="outside upper center", ncols=4)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a folder for the picture")
    args = parser.parse_args()

    torch.set_num_threads(1)
    if DEVICE == "sim:0":
        managed.simulate(devices=1, memory=SIZE)
    else:
        raw_alloc(torch.cuda.mem_get_info()[0] - SIZE)  # as much is left as simulated devices have
    rows = [
        torch_needs_memory("plain torch", Tensor),
        torch_needs_memory("managed", ManagedTensor),
        torch_needs_memory("managed, a holder", ManagedTensor, holder=True),
        the_library_needs_memory("give_back()"),
    ]
    print(f"{'':17}  {'':16} {'spilled':>12} {'pool before':>12} {'pool after':>12}")
    for row in rows:
        sizes = f"{row.spilled:12,} {row.before:12,} {row.cached:12,}"
        print(f"{row.run:17}  {row.result:16} {sizes}")
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        draw(rows, args.out / "two_allocators.png")
        print(f"what each holds in the end of a run: {args.out / 'two_allocators.png'}")


if __name__ == "__main__":
    main()
