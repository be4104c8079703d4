"""ManagedTensor: a class that is only a name.

A managed tensor is an ordinary torch.Tensor (or Parameter) whose dispatch key set carries one
more key. `x.__class__` and isinstance say ManagedTensor, `type(x)` says what torch made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch

from managed._backend import INERT, C

__all__ = ["ManagedTensor"]


class _Name(torch._C._TensorMeta):
    """Whoever carries the key is an instance, whatever its type."""

    __instancecheck__ = staticmethod(C.is_managed)


class ManagedTensor(torch.Tensor, metaclass=_Name):
    """The class that managed tensors say they have; nothing is an instance of it by type.

    `ManagedTensor(tensor)` and `tensor.as_subclass(ManagedTensor)` give a managed alias that shares
    the tensor's memory and is recorded by autograd. `ManagedTensor(data)` takes what
    `torch.Tensor(data)` takes. It cannot be subclassed: being managed is a property of a tensor.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> ManagedTensor:
        if len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor):
            return args[0].as_subclass(ManagedTensor)
        return torch.Tensor(*args, **kwargs).as_subclass(ManagedTensor)

    def __init_subclass__(cls, **kwargs: Any) -> NoReturn:
        raise TypeError(
            "managed: ManagedTensor cannot be subclassed, because it is a property of a tensor and "
            "not a type. Subclass torch.Tensor and use as_subclass(ManagedTensor) on its instances"
        )

    if TYPE_CHECKING:  # what importing managed adds to torch.Tensor, for managed tensors

        @property
        def pinned(self) -> bool: ...
        def pin(self) -> ManagedTensor: ...
        def unpin(self) -> ManagedTensor: ...
        @property
        def placed(self) -> bool: ...
        def unplace(self) -> ManagedTensor: ...
        def cuda(
            self,
            device: torch.device | int | str | None = None,
            non_blocking: bool = False,
            memory_format: torch.memory_format = torch.preserve_format,
            *,
            disperse: bool = False,
        ) -> ManagedTensor: ...


if INERT and not TYPE_CHECKING:
    ManagedTensor = torch.Tensor
