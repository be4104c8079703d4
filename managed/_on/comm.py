"""What programs on several GPUs call to copy between them and to other processes.

Of torch.nn.parallel: what torch.nn.parallel.comm calls in a CUDA build's torch._C, for simulated
devices. scatter, replicate, gather and the autograd functions between them are torch's own. Devices
are indices there; -1 is the CPU, and None is the current device.

Of torch.distributed: what makes and names groups for NCCL. The groups of simulated devices
(_simulated/groups.py) stand in for it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

__all__ = ["functions"]


def _device(index: int | None) -> torch.device:
    if index is not None and index < 0:
        return torch.device("cpu")
    return torch.device("sim", torch.accelerator.current_device_index() if index is None else index)


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    return [tensor.to(_device(d)) for d in devices]


def _broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    return [[t.to(_device(d)) for t in tensors] for d in devices]


def _broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [o.copy_(tensor) for o in out]


def _scatter(
    tensor: torch.Tensor, devices: Sequence[int], sizes: Any, dim: int, streams: Any
) -> list[torch.Tensor]:
    parts = torch.split(tensor, sizes, dim) if sizes else tensor.chunk(len(devices), dim)
    return [part.to(_device(d)) for part, d in zip(parts, devices, strict=False)]


def _scatter_out(
    tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int, streams: Any
) -> list[torch.Tensor]:
    parts = torch.split(tensor, [o.size(dim) for o in out], dim)
    return [o.copy_(part) for o, part in zip(out, parts, strict=True)]


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
    there = _device(destination)
    return torch.cat([t.to(there) for t in tensors], dim)


def _gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    return out.copy_(_gather(tensors, dim, -1 if out.is_cpu else out.get_device()))


def functions() -> Iterator[tuple[Any, str, Callable[..., Any], Callable[..., Any]]]:
    """Owner and name of each function, the function, and the one for simulated devices."""
    for ours in (
        _broadcast, _broadcast_coalesced, _broadcast_out, _gather, _gather_out, _scatter,
        _scatter_out,
    ):  # fmt: skip
        name = ours.__name__
        yield torch._C, name, getattr(torch._C, name, None) or _missing(name), ours
    nccl: Any = torch.cuda.nccl
    yield nccl, "is_available", nccl.is_available, lambda tensors: False
    parallel: Any = sys.modules[torch.nn.DataParallel.__module__]
    kind = "_get_available_device_type"  # of the device that a module has to be on
    yield parallel, kind, getattr(parallel, kind), lambda: "sim"
    yield from _distributed()


def _distributed() -> Iterator[tuple[Any, str, Callable[..., Any], Callable[..., Any]]]:
    distributed: Any = torch.distributed
    if not (distributed.is_available() and distributed.is_gloo_available()):
        return
    c10d, mesh = distributed.distributed_c10d, distributed.device_mesh
    init, new, named = c10d.init_process_group, c10d.new_group, c10d.get_backend
    available = c10d.is_backend_available

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return init(_without_cuda(backend), *args, **kwargs)

    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        return new(ranks, timeout, _without_cuda(backend), *args, **kwargs)

    def get_backend(group: Any = None) -> str:
        found: str = named(group)
        return "nccl" if found in ("undefined", "sim") else found

    def is_backend_available(backend: str) -> Any:
        return _without_cuda(backend) == "sim" or available(backend)

    ddp: Any = torch.nn.parallel.DistributedDataParallel
    check = ddp._check_comm_hook

    def _check_comm_hook(self: Any, hook: Any) -> None:
        if callable(hook):

            @functools.wraps(hook)
            def renamed(*args: Any) -> Any:
                return hook(*args)

            renamed.__name__ = "hook"  # for names with "bf16" torch wants a build with CUDA
            check(self, renamed)
        else:
            check(self, hook)  # which says what is wrong

    yield ddp, check.__name__, check, _check_comm_hook
    # Torch's own code, which asks in its module, would go on to names that a CPU build has not.
    yield distributed, "is_nccl_available", distributed.is_nccl_available, lambda: True
    replaced: dict[Any, Callable[..., Any]] = {
        init: init_process_group,
        new: new_group,
        named: get_backend,
        available: is_backend_available,
    }
    for theirs, ours in replaced.items():
        for owner in (c10d, distributed, mesh):
            if vars(owner).get(theirs.__name__) is theirs:
                yield owner, theirs.__name__, theirs, ours
    yield torch.cuda.nccl, "version", torch.cuda.nccl.version, lambda: _NCCL
    # These are torch's own, and get the device that is meant.
    for owner in (mesh, distributed):
        yield owner, "init_device_mesh", owner.init_device_mesh, owner.init_device_mesh
    yield mesh.DeviceMesh, "__init__", mesh.DeviceMesh.__init__, mesh.DeviceMesh.__init__


_NCCL = (2, 21, 5)  #: code that asks takes the paths of a version that has all operations


def _without_cuda(backend: str | None) -> str | None:
    """The name of simulated devices' groups, if one of CUDA's devices is asked for."""
    asked = (backend or "").lower()
    return "sim" if "nccl" in asked or "cuda:" in asked or "sim:" in asked else backend


def _missing(name: str) -> Callable[..., Any]:
    """What a build without CUDA says of such a function."""

    def missing(*args: Any) -> Any:
        raise AttributeError(f"module 'torch._C' has no attribute {name!r}")

    return missing
