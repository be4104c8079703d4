"""Programs in processes of their own, without the two seconds that each import of torch takes.

`run` is `subprocess.run` for Python: a server process, one for each set of interpreter options,
imports torch once and forks a child for each program. It forks before it has a thread or a device,
and its environment holds no MANAGED variable when it imports. The child takes over the program's
environment, folder, arguments and standard streams, runs it as `__main__` and ends as an
interpreter ends, atexit functions and finalisation included.

What differs from an interpreter of its own: torch and torch._dynamo are imported already,
variables that are read when the interpreter starts or torch is imported have no effect, and /proc
shows the server's command line. `own=True` starts an interpreter.
"""

import atexit
import gc
import json
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from support.paths import TESTS

__all__ = ["WARNINGS", "environment", "run"]

# Warnings are errors in programs too.
WARNINGS = ("-W", "error")
# What torch 2.11 says of its own sparse constructors and its own compiler, and of any gradient from
# another device.
for message in (
    "Sparse invariant checks are implicitly disabled:UserWarning",
    "The AccumulateGrad node's stream does not match:UserWarning",
    "`torch.jit.script_method` is deprecated:DeprecationWarning",
):
    WARNINGS += ("-W", f"ignore:{message}")

HERE = str(TESTS)
BOOT = (
    f"import sys; sys.path.append({HERE!r}); from support.interpreters import serve; exec(serve())"
)
# The interpreter or torch reads these at its start; a program that is given others is not forked.
READ_AT_START = ("LD_", "PYTHON", "OMP_", "MKL_", "TORCH_", "PYTORCH_")


def run(words, *, options=WARNINGS, env=None, cwd=None, input="", timeout=120, own=False):
    """Runs `python *options *words`; the words begin with "-c", "-m" or a file.

    Returns a CompletedProcess with texts. TimeoutExpired after so many seconds: the program is
    killed.
    """
    env = dict(os.environ if env is None else env)
    words = [str(w) for w in words]
    if own or _read_at_start(env) != _read_at_start(os.environ):
        return subprocess.run(
            [sys.executable, *options, *words],
            env=env,
            cwd=cwd,
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    return _server(tuple(options)).run(words, env, str(cwd or Path.cwd()), input, timeout)


def environment(**added):
    """This process's environment less every MANAGED variable, with more."""
    kept = {k: v for k, v in os.environ.items() if "MANAGED" not in k}
    return kept | {k: str(v) for k, v in added.items()}


def _read_at_start(env):
    return {k: v for k, v in env.items() if k.startswith(READ_AT_START) and k != "PYTHONPATH"}


# ---- the side of the tests

_servers = {}


def _server(options):
    if options not in _servers or _servers[options].process.poll() is not None:
        _servers[options] = _Server(options)
    return _servers[options]


# Triton 3.9 counts its objects when an interpreter ends, and a child has those of the server. The
# last line has no end, so a program that forks has the first one of its parent behind it.
_COUNTED = re.compile(
    r"^nanobind: .*(\n - .*)*\n|^See https://nanobind\.\S*?\.html(nanobind: .*(\n - .*)*\n)?",
    re.MULTILINE,
)


class _Server:
    def __init__(self, options):
        self.one_at_a_time = threading.Lock()
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, *options, "-c", BOOT], stdin=theirs, env=environment(), cwd=HERE
            )
        atexit.register(self.end)

    def end(self):
        self.socket.close()
        self.process.wait()

    def run(self, words, env, cwd, input, timeout):
        with (
            self.one_at_a_time,
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            given.write(input.encode())
            given.seek(0)
            request = json.dumps([words, env, cwd, timeout]).encode()
            self.socket.sendall(len(request).to_bytes(8, "little"))
            socket.send_fds(self.socket, [b"."], [f.fileno() for f in (given, out, err)])
            self.socket.sendall(request)
            answer = _receive(self.socket, 8)
            out.seek(0)
            err.seek(0)
            texts = out.read().decode(), _COUNTED.sub("", err.read().decode())
        assert answer, f"the server of programs has died: {self.process.wait()}"
        status = int.from_bytes(answer, "little", signed=True)
        command = [sys.executable, *words]
        if status == TIMED_OUT:
            raise subprocess.TimeoutExpired(command, timeout, *texts)
        return subprocess.CompletedProcess(command, status, *texts)


def _receive(connection, count):
    """So many bytes, or none when the other side has ended."""
    got = b""
    while len(got) < count:
        part = connection.recv(count - len(got))
        if not part:
            return b""
        got += part
    return got


# ---- the side of the server

TIMED_OUT = 1 << 20  # no exit status


def serve():
    """Forks a child for each request. Returns in the child only, with the code that it runs."""
    import torch._dynamo  # noqa: F401 # every optimizer imports it, which takes 1.5 s

    connection = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    gc.collect()
    gc.freeze()  # the child's collections leave the pages of the server shared
    while size := _receive(connection, 8):
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        words, env, cwd, timeout = json.loads(_receive(connection, int.from_bytes(size, "little")))
        child = os.fork()
        if child == 0:
            connection.close()
            return _begin(words, env, cwd, streams)
        for stream in streams:
            os.close(stream)
        connection.sendall(_wait(child, timeout).to_bytes(8, "little", signed=True))
    os._exit(0)  # the tests have ended


def _wait(child, timeout):
    """The child's exit status, negative for a signal as in subprocess."""
    handle = os.pidfd_open(child)
    ended, _, _ = select.select([handle], [], [], timeout)
    os.close(handle)
    if not ended:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if ended else TIMED_OUT


def _python_path(env):
    return [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p]


def _begin(words, env, cwd, streams):
    """Makes this process what `python *words` is when it begins, and returns its code."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    path = [p for p in sys.path[1:] if p != HERE and p not in _python_path(os.environ)]
    sys.path[1:] = _python_path(env) + path
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    main = sys.modules["__main__"].__dict__
    for name in [n for n in main if not n.startswith("__")]:
        del main[name]
    for name in [n for n in sys.modules if n.split(".")[0] == "support"]:
        del sys.modules[name]
    sys.orig_argv = [*sys.orig_argv[: sys.orig_argv.index("-c")], *words]
    first, *arguments = words
    if first == "-c":
        sys.argv = ["-c", *arguments[1:]]
        return compile(arguments[0], "<string>", "exec")
    if first == "-m":
        sys.argv = ["-m", *arguments[1:]]
        sys.path[0] = cwd
        runpy._run_module_as_main(arguments[0])
        return compile("", "<string>", "exec")
    sys.argv = words
    sys.path[0] = str(Path(first).resolve().parent)
    main["__file__"] = first
    return compile(Path(first).read_text(), first, "exec")
