"""What a script writes goes to a folder that is thrown away; it reads back what it wrote.

Python's ways to open, make, rename and remove files are redirected: each path has a second place,
below the folder, that comes first. Where the kernel has Landlock, it refuses every other write of
this process and of those that it starts (see landlock.py).
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

__all__ = ["Discard", "written"]

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_open, _os_open, _lstat, _listdir, _scandir = open, os.open, os.lstat, os.listdir, os.scandir
_mkdir, _rmdir, _readlink, _rmtree = os.mkdir, os.rmdir, os.readlink, shutil.rmtree
_READING = ("stat", "lstat", "access", "readlink", "listxattr", "getxattr")
_CHANGING = ("chmod", "chown", "utime", "truncate", "setxattr", "removexattr")


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)  # FileNotFoundError and the like, by number


def _is_there(path: str) -> bool:
    try:
        _lstat(path)
    except OSError:
        return False
    return True


def _merged(entries: dict[str, Any]) -> Any:
    """What os.scandir returns, of these entries."""

    class Entries:
        def __init__(self) -> None:
            self.close = lambda: None
            self._left = iter(entries.values())

        def __iter__(self) -> Iterator[Any]:
            return self

        def __next__(self) -> Any:
            return next(self._left)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *exception: object) -> None: ...

    return Entries()


class Discard:
    """`root`: where things are written instead. `kept`: folders that are written as they are."""

    def __init__(self, root: str, kept: Sequence[str]) -> None:
        self.root = root
        folders = [*kept, root]
        self.kept = tuple(f"{f}{os.sep}" for f in {*map(os.path.abspath, folders), *folders})
        self.gone: set[str] = set()  # what the script has removed of what is really there

    # ---- where things are

    def _full(self, path: Any, dir_fd: int | None) -> str | None:
        """The absolute path, or None for what is not redirected: open files, and folders kept."""
        if isinstance(path, int):
            return None
        name = os.fsdecode(path)
        if not os.path.isabs(name):
            base = os.getcwd() if dir_fd is None else _readlink(f"/proc/self/fd/{dir_fd}")
            name = os.path.join(base, name)
        full = os.path.normpath(name)
        return None if f"{full}{os.sep}".startswith(self.kept) else full

    def _is_gone(self, full: str) -> bool:
        while full not in self.gone:
            above = os.path.dirname(full)
            if above == full:
                return False
            full = above
        return True

    def _is_seen(self, full: str) -> bool:
        return _is_there(self.root + full) or (not self._is_gone(full) and _is_there(full))

    def seen(self, path: Any, dir_fd: int | None = None) -> Any:
        """Where to read it. FileNotFoundError when the script has removed it."""
        full = self._full(path, dir_fd)
        if full is None:
            return path
        if _is_there(self.root + full):
            return self.root + full
        if self._is_gone(full):
            raise _error(errno.ENOENT, full)
        return path

    def place(self, path: Any, dir_fd: int | None = None, copied: bool = False) -> Any:
        """Where to write it, with what is there now if `copied`; its folder must exist."""
        full = self._full(path, dir_fd)
        if full is None:
            return path
        target, above = self.root + full, os.path.dirname(full)
        if not self._is_seen(above):
            raise _error(errno.ENOENT, full)
        os.makedirs(self.root + above, exist_ok=True)
        if copied and not _is_there(target) and self._is_seen(full):
            (shutil.copytree if os.path.isdir(full) else shutil.copy2)(full, target)
        return target

    # ---- what replaces Python's functions

    def open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not set(mode) & set("wax+"):
            return _open(self.seen(file), mode, *args, **kwargs)
        full = self._full(file, None)
        if full is not None and "x" in mode and self._is_seen(full):
            raise _error(errno.EEXIST, full)
        return _open(self.place(file, None, not set(mode) & set("wx")), mode, *args, **kwargs)

    def os_open(
        self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> int:
        full = self._full(path, dir_fd)
        if full is None:
            return _os_open(path, flags, mode, dir_fd=dir_fd)
        if not flags & _WRITES:
            found = self.seen(path, dir_fd)
            return _os_open(found, flags, mode, dir_fd=dir_fd if found is path else None)
        if flags & os.O_EXCL and self._is_seen(full):
            raise _error(errno.EEXIST, full)
        return _os_open(self.place(path, dir_fd, not flags & os.O_TRUNC), flags, mode)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        full = self._full(path, dir_fd)
        if full is None:
            _mkdir(path, mode, dir_fd=dir_fd)
        elif self._is_seen(full):
            raise _error(errno.EEXIST, full)
        else:
            _mkdir(self.place(path, dir_fd), mode)

    def _removing(self, original: Any) -> Any:
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            full = self._full(path, dir_fd)
            if full is None:
                original(path, dir_fd=dir_fd)
            elif not self._is_seen(full):
                raise _error(errno.ENOENT, full)
            elif original is _rmdir and self.listdir(full):
                raise _error(errno.ENOTEMPTY, full)
            else:
                if _is_there(self.root + full):
                    original(self.root + full)
                if _is_there(full):
                    self.gone.add(full)

        return remove

    def rmtree(self, path: Any, *args: Any, **kwargs: Any) -> None:
        full = self._full(path, kwargs.get("dir_fd"))
        if full is None or not self._is_seen(full):
            _rmtree(path, *args, **kwargs)
            return
        if _is_there(self.root + full):
            _rmtree(self.root + full)
        if _is_there(full):
            self.gone.add(full)

    def _renaming(self, original: Any) -> Any:
        def rename(src: Any, dst: Any, **fds: int | None) -> None:
            full = self._full(src, fds.get("src_dir_fd"))
            if full is not None and not self._is_seen(full):
                raise _error(errno.ENOENT, full)
            source = self.place(src, fds.get("src_dir_fd"), copied=True)
            original(source, self.place(dst, fds.get("dst_dir_fd")))
            if full is not None:
                self.gone.add(full)

        return rename

    def _entries(self, path: Any, read: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        full = self._full(path, None)
        if full is None:
            return read(path)
        ours = read(self.root + full) if os.path.isdir(self.root + full) else {}
        if self._is_gone(full) and not _is_there(self.root + full):
            raise _error(errno.ENOENT, full)
        if self._is_gone(full) or (_is_there(self.root + full) and not _is_there(full)):
            return ours
        found = {n: e for n, e in read(path).items() if not self._is_gone(os.path.join(full, n))}
        return found | ours

    def listdir(self, path: Any = ".") -> list[str]:
        return [*self._entries(path, lambda p: dict.fromkeys(_listdir(p)))]

    def scandir(self, path: Any = ".") -> Any:
        def read(place: Any) -> dict[str, Any]:
            with _scandir(place) as entries:
                return {e.name: e for e in entries}

        return _merged(self._entries(path, read))

    def _calling(self, original: Any, where: Callable[..., Any]) -> Any:
        """The function, of the path where it is read, or written."""

        def call(path: Any = ".", *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
            found = where(path, dir_fd)
            given = {"dir_fd": dir_fd} if dir_fd is not None and found is path else {}
            return original(found, *args, **given, **kwargs)

        return call

    def install(self) -> None:
        """Replaces them for the rest of this process."""
        functions: dict[str, Any] = {"open": self.os_open, "mkdir": self.mkdir}
        functions |= {"listdir": self.listdir, "scandir": self.scandir}
        functions |= {n: self._removing(getattr(os, n)) for n in ("remove", "unlink", "rmdir")}
        functions |= {n: self._renaming(getattr(os, n)) for n in ("rename", "replace")}
        functions |= {n: self._calling(getattr(os, n), self.seen) for n in _READING}
        changed = functools.partial(self.place, copied=True)
        functions |= {n: self._calling(getattr(os, n), changed) for n in _CHANGING}
        link = os.symlink
        functions["symlink"] = lambda src, dst, *a, dir_fd=None: link(src, self.place(dst, dir_fd))
        for name, function in functions.items():
            setattr(os, name, function)
        builtins.open = io.open = self.open
        shutil.rmtree = self.rmtree  # type: ignore[assignment]
        accessor = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10 keeps what it found
        for name, function in {**functions, "open": self.open}.items() if accessor else ():
            if hasattr(accessor, name):
                setattr(accessor, name, staticmethod(function))


def written(root: str) -> list[tuple[str, int]]:
    """(path that was meant, bytes) of each file below the folder, sorted."""
    found = []
    for folder, _, names in os.walk(root):
        paths = [os.path.join(folder, n) for n in names]
        found += [(path[len(root) :], _lstat(path).st_size) for path in paths]
    return sorted(found)
