"""Saving and loading under pressure: what serialisers do with storages, and where states arrive.

A storage that a serialiser got from a managed tensor may leave, and is copied from where it is. Any
other use of it makes it the program's, which keeps it on its device. Which callers are serialisers
is listed in csrc/python/frames.c.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import UntypedStorage

from managed._backend import C
from managed._modules import walk
from managed.errors import OutOfMemoryError

__all__: list[str] = []

#: Methods of a storage that read, write or resize its bytes in place.
_USES = ("__getitem__", "__setitem__", "fill_", "resize_", "_byteswap")
_LOADS = ("to", "cuda")
_HINT = (
    ' What is being loaded finds room with map_location="cpu": load_state_dict() brings it to its'
    " place, from which it may leave."
)


def install() -> None:
    for name in _USES:
        _replace(name, _kept)
    for name in _LOADS:
        _replace(name, functools.partial(_explained, hint=_HINT))
    _replace("copy_", _copied)
    _replace("clone", _explained)
    _replace("clone", _cloned)
    _replace("data_ptr", _compared)
    _replace("_write_file", _written)
    _replace("_set_from_file", _read)
    torch.serialization._open_zipfile_writer = _begun_anew(torch.serialization._open_zipfile_writer)
    torch.serialization.register_package(19, _no_tag, _restore)  # before torch's, 20
    _keep_states_managed()


def _replace(name: str, wrap: Callable[[Any], Any]) -> None:
    original = getattr(UntypedStorage, name)
    setattr(UntypedStorage, name, functools.wraps(original)(wrap(original)))


# ---- what is done with a storage


def _kept(original: Any) -> Any:
    def use(self: UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        C.keep_storage(self)
        return original(self, *args, **kwargs)

    return use


def _copied(original: Any) -> Any:
    def copy_(self: UntypedStorage, source: Any, *args: Any, **kwargs: Any) -> Any:
        C.keep_storage(self)
        if not C.is_saved(source):
            return original(self, source, *args, **kwargs)
        if self.device.type == "cpu" and self.nbytes() == source.nbytes():
            C.copy_saved(self, source)
            return self
        C.keep_storage(source)
        return original(self, source, *args, **kwargs)

    return copy_


def _cloned(original: Any) -> Any:
    """A copy that deepcopy holds until it is done may leave as well."""

    def clone(self: UntypedStorage) -> Any:
        if not C.is_saved(self):
            return original(self)
        made = _explained(type(self))(self.nbytes(), device=self.device)
        C.copy_saved(made, self)
        C.save_made(made)
        return made

    return clone


def _compared(original: Any) -> Any:
    def data_ptr(self: UntypedStorage) -> int:
        compared = C.compared_address(self)
        if compared:
            return compared
        C.keep_storage(self)
        return int(original(self))

    return data_ptr


def _written(original: Any) -> Any:
    def write_file(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self.cpu() if C.is_saved(self) else self, *args, **kwargs)

    return write_file


def _begun_anew(original: Any) -> Any:
    """A file that is the host's copy of tensors is not written: a new one takes its name."""

    @functools.wraps(original)
    def open_writer(name_or_buffer: Any) -> Any:
        is_path = isinstance(name_or_buffer, (str, os.PathLike))
        if is_path and C.needs_file(os.fspath(name_or_buffer)):
            with contextlib.suppress(OSError):
                os.unlink(os.path.realpath(name_or_buffer))
        return original(name_or_buffer)

    return open_writer


# ---- loading


def _explained(original: Any, hint: str = "") -> Any:
    """Makes the error of a storage that finds no room say what holds the memory."""

    def load(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except OutOfMemoryError:
            raise
        except torch.OutOfMemoryError as error:
            text = C.explained(str(error))
        raise OutOfMemoryError(text + hint)

    return load


def _no_tag(storage: Any) -> None:
    """What is saved is tagged by torch."""


def _restore(storage: Any, location: str) -> Any:
    """A storage that may leave, where its device runs short; else what torch makes of it.

    Tensors over it are managed, see tensor.c.
    """
    kind, _, number = location.partition(":")
    if kind == "sim" and not hasattr(torch, "sim"):
        raise RuntimeError(
            f"managed: the file has tensors on {location}, and this process simulates no devices:"
            ' load it with map_location="cpu", or call managed.simulate() first'
        )
    if kind not in ("cuda", "sim") or storage.device.type != "cpu":
        return None
    module = torch.get_device_module(kind)
    index = int(number or module.current_device()) if module.is_available() else 0
    if index >= module.device_count() or not _runs_short(module, kind, index, storage.nbytes()):
        return None
    made = _explained(UntypedStorage, _HINT)(storage.nbytes(), device=f"{kind}:{index}")
    made.copy_(storage)
    C.save_made(made)
    return made


def _runs_short(module: Any, kind: str, index: int, size: int) -> bool:
    """Whether the device has a budget, or no room left."""
    free, total = module.mem_get_info(index)
    return bool(size > free or C.capacity(f"{kind}:{index}") < total)


def _read(original: Any) -> Any:
    """Old files are read into storages that tensors have already."""

    def set_from_file(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not C.is_saved(self):
            return original(self, *args, **kwargs)
        values = UntypedStorage(self.nbytes())  # type: ignore[no-untyped-call]
        original(values, *args, **kwargs)
        C.write_saved(self, values)
        return self

    return set_from_file


def _keep_states_managed() -> None:
    """A state that an optimizer loads may leave as one that it made itself."""
    original = torch.optim.Optimizer._process_value_according_to_param_policy

    @functools.wraps(original)
    def process(param: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not C.is_managed(param) or C.is_managed(value) or not walk.markable(value):
            return original(param, value, *args, **kwargs)
        arriving = C.mark(value.detach())
        loaded = original(param, arriving, *args, **kwargs)
        stays_as_it_is = loaded is arriving and value.dim() == 0  # such as `step`
        return value if stays_as_it_is else loaded

    torch.optim.Optimizer._process_value_according_to_param_policy = staticmethod(process)  # type: ignore[method-assign]
