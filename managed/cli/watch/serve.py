"""Lets other terminals look at this process: `managed top` and `managed status` ask it.

One thread waits for connections; nothing happens without one. It answers with numbers
that the process has anyway, and makes a new answer no more often than a three hundredth of a
processor allows: a client that comes again too early gets the same one. With what it takes to
connect and to send, that is less than a hundredth.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import secrets
import socket
import threading
import time
from pathlib import Path
from typing import Any

from managed._backend import INERT
from managed.cli.watch import sockets

__all__ = ["serve", "stop"]

#: An answer that cost some time is kept for so many times as long.
_REST = 300

_server: _Server | None = None


class _Server(threading.Thread):
    def __init__(self, path: Path) -> None:
        super().__init__(name="managed-top", daemon=True)
        from managed.cli.watch.snapshot import Teller

        name = f"{os.getpid()}-{secrets.token_hex(4)}.sock"
        with sockets.open_directory(path, create=True) as directory:
            self.socket = sockets.listen(directory, name)
        self.path = path / name
        self.peer: socket.socket | None = None
        self.ended = threading.Event()
        self.teller = Teller()
        self.answer, self.good_until = b"", 0.0

    def run(self) -> None:
        while not self.ended.is_set():
            try:
                self.peer, _ = self.socket.accept()
            except OSError:  # it was shut, or the process may open no more files for now
                self.ended.wait(1)
                continue
            with self.peer, contextlib.suppress(OSError):
                self.peer.settimeout(1)
                if sockets.is_own(self.peer):
                    self.peer.sendall(self._answer())
            self.peer = None

    def _answer(self) -> bytes:
        if time.monotonic() >= self.good_until:
            began = time.thread_time()
            self.answer = self._told()
            self.good_until = time.monotonic() + _REST * (time.thread_time() - began)
        return self.answer

    def _told(self) -> bytes:
        try:
            told: dict[str, Any] = self.teller.snapshot()
        except Exception as error:  # of any kind: the program goes on as before
            told = {"error": f"{type(error).__name__}: {error}"}
        return json.dumps(told).encode()

    def close(self) -> None:
        """Ends the thread: none may be amid a question when the interpreter goes."""
        self.ended.set()
        with contextlib.suppress(OSError):
            self.path.unlink()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.join(timeout=2)
        self.socket.close()

    def forget(self) -> None:
        """In a child of fork(), which has no such thread: the socket is the parent's."""
        self.socket.close()
        if self.peer is not None:
            self.peer.close()


def serve() -> Path | None:
    """Lets `managed top` and `managed status` of this user look at this process from now on.

    Returns the path of its socket, or None where there can be none (the logger says why), or where
    managed is inert. Again does nothing. A child of fork() is not looked at.
    """
    global _server
    if _server is not None or INERT:
        return None if _server is None else _server.path
    for path in sockets.directories():
        try:
            _server = _Server(path)
        except OSError as error:
            logging.getLogger("managed").warning("managed top cannot look at this: %s", error)
            continue
        _server.start()
        atexit.register(stop)
        return _server.path
    return None


def stop() -> None:
    """Ends serve(), if there was one: no tool can look at this process any more."""
    global _server
    server, _server = _server, None
    if server is not None:
        atexit.unregister(stop)
        server.close()


def _forget() -> None:
    global _server
    server, _server = _server, None
    if server is not None:
        server.forget()


os.register_at_fork(after_in_child=_forget)
