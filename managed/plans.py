"""Files of what devices have learned from steps that repeat."""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from managed._backend import INERT, C

__all__ = ["load_plans", "save_plans"]

# A line that says what it is, a line of JSON, the devices' bytes in its order, and a digest.
_MAGIC = b"managed plans\n"
_FORMAT = 1
_DIGEST = 32


def _writer() -> dict[str, Any]:
    """What a file holds for: anybody else's numbers mean something else."""
    from managed import __version__

    return {
        "format": _FORMAT,
        "managed": __version__,
        "torch": torch.__version__,
        "byteorder": sys.byteorder,
    }


def save_plans(path: str | os.PathLike[str]) -> int:
    """Writes the steps that the devices have learned into a file; returns how many there are.

    The file holds shapes, operators and times, no values of tensors. It appears whole or not at
    all, and replaces one that is there.

    Args:
        path: the file to write, in a folder that is there.

    Raises:
        OSError: it cannot be written.
    """
    devices = {} if INERT else {str(d): C.save_steps(d) for d in C.get_manager().cuda_devices}
    told = _writer() | {"devices": {d: len(saved) for d, (saved, _) in devices.items()}}
    content = _MAGIC + json.dumps(told).encode() + b"\n"
    content += b"".join(saved for saved, _ in devices.values())
    _write(Path(path), content + blake2b(content, digest_size=_DIGEST).digest())
    return sum(steps for _, steps in devices.values())


def _write(path: Path, content: bytes) -> None:
    """To a file beside it, which then takes its name."""
    new = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with open(new, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def load_plans(path: str | os.PathLike[str]) -> int:
    """Takes up the steps of a file that save_plans() wrote; returns how many.

    Call it when the devices are there and their budgets are set, before the first step. A step is
    planned for the room that there is now, and followed when the program comes to it; a program
    that does something else loses no value by it, and learns its own.

    0 if there is no file. A file that is damaged, or from other versions of managed or torch,
    changes nothing but for a UserWarning that says why; so does a device that is not here. The
    next save_plans() replaces it.

    Args:
        path: the file to read.

    Raises:
        OSError: there is a file, and it cannot be read.
    """
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        return 0
    if INERT:
        return 0
    try:
        devices = _read(content)
    except ValueError as why:
        _warn(f"{os.fspath(path)} is not used: {why}. Steps are learned anew")
        return 0
    here = {str(d): d for d in C.get_manager().cuda_devices}
    taken = 0
    for name, saved in devices.items():
        if not saved:
            continue
        steps, problem = (
            C.load_steps(here[name], saved) if name in here else (0, "there is no such device")
        )
        taken += steps
        if problem:
            _warn(f"{os.fspath(path)} has steps of {name} that are not used: {problem}")
    return taken


def _warn(text: str) -> None:
    warnings.warn(f"managed: {text}", stacklevel=3)


def _read(content: bytes) -> dict[str, bytes]:
    """The bytes of each device. ValueError says why the file cannot be used."""
    if not content.startswith(_MAGIC):
        raise ValueError("it is no file of managed.save_plans(), or its beginning is damaged")
    body, digest = content[:-_DIGEST], content[-_DIGEST:]
    if blake2b(body, digest_size=_DIGEST).digest() != digest:
        raise ValueError("it is damaged or cut short")
    line, _, saved = body[len(_MAGIC) :].partition(b"\n")
    told = json.loads(line)
    sizes = told.get("devices") if isinstance(told, dict) else None
    if not isinstance(sizes, dict) or not all(type(n) is int and n >= 0 for n in sizes.values()):
        raise ValueError("it does not say whose steps it has")
    for what, value in _writer().items():
        if told.get(what) != value:
            raise ValueError(f"it is for {what} {told.get(what)}, and here is {value}")
    if sum(sizes.values()) != len(saved):
        raise ValueError("it is shorter or longer than it says")
    found, at = {}, 0
    for name, size in sizes.items():
        found[name] = saved[at : at + size]
        at += size
    return found
