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
    """A tensor with the key is an instance, whatever its type."""

    __instancecheck__ = staticmethod(C.is_managed)


class ManagedTensor(torch.Tensor, metaclass=_Name):
    """The class that managed tensors say they have; nothing is an instance of it by type.

    `isinstance(x, ManagedTensor)` asks whether `x` is managed. `ManagedTensor(tensor)` and
    `tensor.as_subclass(ManagedTensor)` give a managed alias: a view that shares the tensor's memory
    and is recorded by autograd. So wrap first and call `requires_grad_()` then, or gradients arrive
    at the tensor that was wrapped. `ManagedTensor(data)` takes what `torch.Tensor(data)` takes.

    Raises:
        TypeError: for quantized, nested and meta tensors, which cannot be managed, and when it is
            subclassed: being managed is a property of a tensor.
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
        def pinned(self) -> bool:
            """Whether it is pinned."""

        def pin(self) -> ManagedTensor:
            """Keeps it on its device: it neither moves nor leaves. Returns the tensor."""

        def unpin(self) -> ManagedTensor:
            """Lets it move again. Returns the tensor."""

        @property
        def placed(self) -> bool:
            """Whether `cuda`, `to` or `send` put it where it is, so that it stays there."""

        def unplace(self) -> ManagedTensor:
            """Lets it move by itself although the program put it there. Returns the tensor."""

        def cuda(
            self,
            device: torch.device | int | str | None = None,
            non_blocking: bool = False,
            memory_format: torch.memory_format = torch.preserve_format,
            *,
            disperse: bool = False,
        ) -> ManagedTensor:
            """A managed tensor on an accelerator; `to` takes an accelerator in the same way.

            A tensor that is on one of the manager's devices stays there, unless a device is named.
            One for which no device has room stays where it is.

            Args:
                device: there. Without, or with `"cuda"`, the manager picks: the fullest device that
                    still fits.
                non_blocking: as torch.
                memory_format: as torch.
                disperse: the manager picks the device that has the least in use for its speed.

            Raises:
                ValueError: for a device that does not exist or is no accelerator, and for a device
                    beside `disperse`.
                OutOfMemoryError: when no room appeared on the device that was named.
            """


if INERT and not TYPE_CHECKING:
    ManagedTensor = torch.Tensor
