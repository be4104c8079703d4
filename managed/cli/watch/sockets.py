"""Where processes that can be looked at have their sockets, and how to ask one.

A directory of the user's own, which no other user may enter. It is opened once and then used by its
descriptor, so that no other one can take its place in between.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Found", "directories", "find", "is_own", "listen", "open_directory"]

#: A process's number, and what tells it from one with the same number in another container.
_NAME = re.compile(r"(\d+)-[0-9a-f]{8}\.sock")


def directories() -> list[Path]:
    """Where sockets may be; the first that can be used gets those of new processes.

    A process that was started from a service or over ssh may lack what a desktop has set.
    """
    found = []
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and _owner(runtime) == os.geteuid():  # sudo may keep another user's
        found.append(Path(runtime, "managed"))
    return [*found, Path(tempfile.gettempdir(), f"managed-{os.geteuid()}")]


def _owner(path: str) -> int | None:
    try:
        return os.stat(path).st_uid
    except OSError:
        return None


@contextlib.contextmanager
def open_directory(path: Path, create: bool = False) -> Iterator[int]:
    """A descriptor of the directory. FileNotFoundError where there is none, PermissionError where
    it is no directory of this user's alone: a link, or another user's."""
    if create:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    try:
        there = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        raise PermissionError(f"managed: {path} is not a directory; remove it") from None
    try:
        found = os.fstat(there)
        if found.st_uid != os.geteuid():
            raise PermissionError(
                f"managed: {path} belongs to another user (number {found.st_uid}); set "
                "XDG_RUNTIME_DIR or TMPDIR to a directory of your own"
            )
        if stat.S_IMODE(found.st_mode) != 0o700:
            os.fchmod(there, 0o700)
        yield there
    finally:
        os.close(there)


def _address(directory: int, name: str) -> str:
    """Of a socket: short, whatever the directory's path, and in this directory for sure."""
    return f"/proc/self/fd/{directory}/{name}"


def listen(directory: int, name: str) -> socket.socket:
    """A socket under that name. It gets the name once it listens: what refuses is dead."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    early = f".{name}"
    try:
        server.bind(_address(directory, early))
        server.listen(8)
        os.rename(early, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        server.close()
        _remove(directory, early)
        raise
    return server


def is_own(peer: socket.socket) -> bool:
    """Whether this user is at the other end."""
    told = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", told)
    return bool(user == os.geteuid())


class Found(NamedTuple):
    """A process that can be asked, or a reason why it cannot."""

    pid: int
    snapshot: dict[str, Any]
    error: str = ""


def find(timeout: float = 2.0) -> list[Found]:
    """Every process of this user that serves, this one excepted, by number.

    Removes the sockets of those that have died. PermissionError if there is none and a
    directory is not this user's alone.
    """
    found: list[Found] = []
    refused: list[PermissionError] = []
    for path in directories():
        found += _in_directory(path, timeout, refused)
    if refused and not found:
        raise refused[0]
    return sorted(found, key=lambda f: f.pid)


def _in_directory(path: Path, timeout: float, refused: list[PermissionError]) -> list[Found]:
    """Notes a directory that is not the user's own: it must not hide what is in another."""
    found = []
    try:
        with open_directory(path) as directory:
            for name in sorted(os.listdir(directory)):
                match = _NAME.fullmatch(name.lstrip("."))
                if match and int(match[1]) != os.getpid():
                    found += _ask(directory, name, int(match[1]), timeout)
    except FileNotFoundError:
        pass
    except PermissionError as error:
        refused.append(error)
    return found


def _ask(directory: int, name: str, pid: int, timeout: float) -> list[Found]:
    """One process's answer; nothing, and its socket is gone, where it has died."""
    if name.startswith("."):  # it is being made, unless its maker has died meanwhile
        if not os.path.exists(f"/proc/{pid}"):
            _remove(directory, name)
        return []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout)
        try:
            client.connect(_address(directory, name))
            if not is_own(client):
                return []
            answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
            return [_told(pid, json.loads(answer))]
        except ConnectionRefusedError:
            _remove(directory, name)
        except FileNotFoundError:  # it has ended meanwhile
            pass
        except TimeoutError:
            return [Found(pid, {}, f"does not answer within {timeout:g} s")]
        except (OSError, ValueError) as error:
            return [Found(pid, {}, f"does not answer: {error}")]
    return []


def _remove(directory: int, name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=directory)


def _told(pid: int, answer: Any) -> Found:
    if not isinstance(answer, dict) or "error" in answer:
        return Found(pid, {}, f"answers: {answer['error'] if isinstance(answer, dict) else answer}")
    return Found(pid, answer)
