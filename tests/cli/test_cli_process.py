"""Who may look at a process, what it costs, and what is left when it ends; doctor where much is
missing."""

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from support import cli_samples as samples
from support import interpreters
from support.devices import ON_CUDA
from support.paths import ROOT

from managed import _built, cli
from managed.cli import _machine, _problems
from managed.cli.watch import serve, sockets

MIB = 2**20
PATIENT = 60.0  # seconds; a busy machine is slow to answer

# A process that does what its standard input says, line by line.
PROGRAM = """
    import os, sys, threading
    import torch
    import managed
    from managed import ManagedModule, ManagedTensor
    managed.simulate(devices=2, memory="8MiB", repeatable=True)
    managed.LEARN_STEPS = False

    def steps(n):
        for _ in range(n):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    for line in sys.stdin:
        exec(line)
        print("done", flush=True)
"""
MAKE = [
    "model = ManagedModule.from_module(torch.nn.Sequential("
    "*[torch.nn.Linear(256, 256) for _ in range(20)])).to('sim:0')",
    "optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)",
    "x = torch.randn(64, 256).as_subclass(ManagedTensor).to('sim:0')",
]
STEPS = ["steps(2); print(torch.sim.elapsed())"]


class Process:
    """The program above, which can be looked at, and told what to do."""

    def __init__(self, run_time):
        self.it = subprocess.Popen(
            [sys.executable, "-c", "\n".join(s[4:] for s in PROGRAM.splitlines())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=interpreters.environment(MANAGED_TOP=1, XDG_RUNTIME_DIR=run_time),
        )  # fmt: skip
        self.pid = self.it.pid

    def do(self, *lines):
        told = []
        for line in lines:
            self.it.stdin.write(line + "\n")
            self.it.stdin.flush()
            while (answer := self.it.stdout.readline()) != "done\n":
                assert answer, "the process has ended"
                told.append(answer.strip())
        return told


@pytest.fixture(scope="module")
def run_time():
    """A directory that others may enter, so that what is in it has to keep them out."""
    path = Path(tempfile.mkdtemp(prefix="managed-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def here(run_time, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run_time))
    monkeypatch.setattr(tempfile, "tempdir", str(run_time / "none"))
    return run_time / "managed"


@pytest.fixture(scope="module")
def process(run_time):
    started = Process(run_time)
    started.do(*MAKE)
    started.elapsed = started.do(*STEPS)
    yield started
    started.it.kill()
    started.it.communicate()


def only(found):
    (one,) = found
    assert not one.error, one.error
    return one.snapshot


def asked_anew(process):
    """What the process answers now; an answer is kept for three hundred times what it cost."""
    process.do("from managed.cli.watch import serve; serve._server.good_until = 0.0")
    return sockets.find(PATIENT)


def cost(process):
    """ns that the thread which answers has run."""
    (thread,) = process.do(
        "print(*[t.native_id for t in threading.enumerate() if t.name == 'managed-top'])"
    )
    return int(Path(f"/proc/{process.pid}/task/{thread}/schedstat").read_text().split()[0])


def cost_at_rest(process):
    """The same once the thread waits again: it has work left when its answer has arrived."""
    found = cost(process)
    while True:
        time.sleep(0.1)
        now = cost(process)
        if now == found:
            return now
        found = now


# ---- what a process tells


def test_a_process_tells_what_it_has(process, here):
    process.do("steps(1)")
    told = only(asked_anew(process))
    assert told["schema"] == 2
    assert told["process"]["pid"] == process.pid
    assert told["process"]["command"][0] == sys.executable
    stats = json.loads(process.do("import json; print(json.dumps(managed.stats()))")[0])
    assert told["links"] == stats["links"]
    assert told["counters"]["spill_bytes"] == stats["spill_bytes"] > 0
    first, second = told["devices"]
    assert (first["name"], first["model"], first["capacity"]) == ("sim:0", "simulated", 8 * MIB)
    assert first["used"] == stats["devices"]["sim:0"]["used"] > 4 * MIB
    assert sum(first["owners"].values()) == 8 * MIB
    assert first["owners"]["guest"] == 0
    away = first["storages"]["spilled"]
    assert away <= told["host"]["used"] + second["owners"]["guest"]  # some may have copies there
    assert second["owners"]["managed"] == 0
    assert away > 2 * MIB


def test_the_largest_tensors_have_names(process, here):
    process.do(
        "big = torch.zeros(300, 256).as_subclass(ManagedTensor).to('sim:0')",
        "linear = ManagedModule.from_module(torch.nn.Linear(300, 250)).to('sim:0')",
        "linear.weight.pin()",
    )
    (first, _) = only(asked_anew(process))["devices"]
    anonymous, pinned, *rest = first["largest"]
    assert (anonymous["bytes"], anonymous["name"]) == (300 * 256 * 4, None)
    assert (pinned["bytes"], pinned["name"]) == (300 * 250 * 4, "weight")
    assert (pinned["stays"], pinned["where"]) == ("pinned", "sim:0")
    names = {t["name"] for t in rest}
    assert any(name and name.startswith("momentum_buffer of ") for name in names), names
    last = [t["last"] for t in first["largest"] if t["last"]]
    assert {event["kind"] for event in last} & {"spill", "restore", "drop", "move", "pin"}
    process.do("del big, linear")


def test_virtual_time_is_as_without_anybody_looking(process, run_time):
    """A second process does the same as the first did, while somebody asks all the time."""
    code = (
        "import glob, socket, sys\nwhile True:\n  s = socket.socket(socket.AF_UNIX)\n"
        "  s.connect(glob.glob(sys.argv[1])[0])\n  while s.recv(65536): pass"
    )
    watched = Process(run_time)
    watched.do(*MAKE)
    pattern = f"{run_time}/managed/{watched.pid}-*.sock"
    with subprocess.Popen([sys.executable, "-S", "-c", code, pattern]) as asking:
        elapsed = watched.do(*STEPS)
        asking.kill()
    assert cost(watched) > 0
    watched.it.kill()
    watched.it.communicate()
    assert elapsed == process.elapsed


def test_nobody_asks_and_nothing_happens(process, here):
    before = cost_at_rest(process)
    process.do("steps(2)")
    time.sleep(0.2)
    assert cost(process) == before


def test_being_looked_at_costs_less_than_a_hundredth(process, here):
    process.do("steps(1)")
    sockets.find(PATIENT)
    before, begin = cost(process), time.monotonic_ns()
    for _ in range(8):
        process.do("steps(1)")
        assert only(sockets.find(PATIENT))
        time.sleep(0.25)
    spent = cost(process) - before
    assert spent < 0.01 * (time.monotonic_ns() - begin), spent


# ---- who may look


def test_the_socket_is_the_user_s_alone(process, here):
    assert stat.S_IMODE(here.stat().st_mode) == 0o700
    (path,) = here.glob(f"{process.pid}-*.sock")
    assert path.is_socket()
    if os.geteuid() != 0:
        pytest.skip("only root can try it as another user")
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setuid(65534)
        try:
            socket.socket(socket.AF_UNIX).connect(str(path))
        except PermissionError:
            os._exit(3)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_a_peer_that_is_another_user_gets_nothing(process, here, monkeypatch):
    """Also where it has come to a socket by other ways."""
    ours, theirs = socket.socketpair()
    assert sockets.is_own(ours)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert not sockets.is_own(ours)
    ours.close()
    theirs.close()


def test_a_directory_that_is_not_ours_is_not_used(run_time, monkeypatch, tmp_path):
    link = tmp_path / "managed"
    link.symlink_to(run_time)
    for create in (False, True):
        with (
            pytest.raises(PermissionError, match="not a directory"),
            sockets.open_directory(link, create),
        ):
            pass
    own = tmp_path / "own"
    own.mkdir(mode=0o777)
    own.chmod(0o777)
    with sockets.open_directory(own):
        assert stat.S_IMODE(own.stat().st_mode) == 0o700
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(PermissionError, match="another user"), sockets.open_directory(own):
        pass
    with pytest.raises(FileNotFoundError), sockets.open_directory(tmp_path / "none"):
        pass


def test_another_user_s_run_time_directory_is_passed_over(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", "/somewhere")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    fallback = Path(f"/somewhere/managed-{os.geteuid()}")
    assert sockets.directories() == [tmp_path / "managed", fallback]
    for path in ("", "relative", str(tmp_path / "none")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", path)
        assert sockets.directories() == [fallback]
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert sockets.directories() == [Path("/somewhere/managed-12345")]


def test_serving_is_refused_without_a_word_on_the_terminal(monkeypatch, tmp_path, caplog):
    """A link where the directory should be, and no other place: the program goes on."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"managed-{os.geteuid()}").symlink_to("/etc")
    assert serve.serve() is None
    assert "cannot look at this" in caplog.text
    with pytest.raises(PermissionError):
        sockets.find(PATIENT)


# ---- what is left


def test_a_dead_process_s_socket_goes_with_the_next_reader(process, here):
    left = here / "1234567-0badcafe.sock"
    half = here / ".1234567-0badcafe.sock"  # it died before it listened
    with sockets.open_directory(here) as directory:
        for path in (left, half):
            sockets.listen(directory, path.name).close()
    other = here / "notes.txt"
    other.write_text("not ours")
    assert left.is_socket()
    assert [found.pid for found in sockets.find(PATIENT)] == [process.pid]
    assert not left.exists()
    assert not half.exists()
    assert other.exists()
    other.unlink()


def test_a_process_that_stands_still_is_told_of(process, here):
    os.kill(process.pid, signal.SIGSTOP)
    tasks = [path / "stat" for path in Path(f"/proc/{process.pid}/task").iterdir()]
    try:
        while any(t.read_text().rsplit(")", 1)[1].split()[0] != "T" for t in tasks):
            time.sleep(0.01)  # a thread that runs stops when it is looked at next
        (found,) = sockets.find(timeout=0.3)
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert found.error == "does not answer within 0.3 s"
    assert only(sockets.find(PATIENT))


@pytest.fixture
def served(here):
    """This process can be looked at."""
    path = serve.serve()
    assert path is not None
    yield path
    serve.stop()
    assert not path.exists()


def answer(path):
    """What this process tells: find() leaves it out."""
    with sockets.open_directory(path.parent) as directory:
        return only(sockets._ask(directory, path.name, os.getpid(), 5.0))


def test_serving_twice_is_serving_once(served):
    assert serve.serve() == served
    assert answer(served)["process"]["pid"] == os.getpid()


def test_a_failing_question_is_no_failing_program(served, monkeypatch):
    def fails(self):
        raise RuntimeError("no numbers today")

    monkeypatch.setattr("managed.cli.watch.snapshot.Teller.snapshot", fails)
    with sockets.open_directory(served.parent) as directory:
        (found,) = sockets._ask(directory, served.name, os.getpid(), 5.0)
    assert found.error == "answers: RuntimeError: no numbers today"
    monkeypatch.undo()
    assert serve._server.is_alive()


@pytest.mark.skipif(ON_CUDA, reason="CUDA does not survive a fork")
def test_a_forked_child_is_not_looked_at(served):
    """It leaves the socket alone, neither answers nor keeps others from an answer."""
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            serve.stop()  # as its end would do
            os.write(ready[1], b"x" if serve._server is None else b"y")
            os.read(go[0], 1)
            code = 0
        os._exit(code)
    assert os.read(ready[0], 1) == b"x"
    assert answer(served)["process"]["pid"] == os.getpid()
    serve.stop()
    assert not served.exists()
    os.write(go[1], b"x")
    assert os.waitpid(child, 0)[1] == 0
    for end in (*ready, *go):
        os.close(end)


# ---- doctor


def test_doctor_here(capsys):
    assert cli.main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == 1
    assert told["versions"]["extensions"]["_C"] == "works"
    assert told["memory"]["machine"] > 0
    if not ON_CUDA:
        assert told["cards"]["simulated"][0] == {"name": "sim:0", "memory": 256 * MIB}
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert os.path.expanduser("~") not in text or os.path.expanduser("~") == "/"


def test_doctor_where_the_extension_cannot_be_imported(tmp_path):
    """And where nobody asks doctor, the import fails as it should."""
    package = tmp_path / "managed"
    shutil.copytree(ROOT / "managed", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (package / f"_C{EXTENSION_SUFFIXES[0]}").write_bytes(b"")
    env = interpreters.environment(PYTHONPATH=tmp_path)

    def run(*arguments):
        return interpreters.run(["-m", "managed", *arguments], options=(), env=env, cwd=tmp_path)

    done = run("doctor", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 0
    (why,) = told["versions"]["extensions"].values()
    broken = package / f"_C{EXTENSION_SUFFIXES[0]}"
    assert why == str(_built.explained(ImportError(f"{broken}: file too short")))
    assert told["problems"][0]["what"] == "Nothing works: managed cannot be imported"
    problem = told["problems"][0]
    assert f"{problem['why']}\n{problem['cure']}" == why
    printed = run("doctor").stdout
    assert "    cure: Build it for what is here" in printed
    assert "?" not in printed, "doctor printed a character that is no text"
    failed = run("status")
    assert failed.returncode == 1
    assert "file too short" in failed.stderr


def test_doctor_where_managed_is_inert(run_python):
    printed = run_python("from managed import cli; cli.main(['doctor', '--json'])", NO_MANAGED="1")
    told = json.loads(printed)
    assert told["problems"][0]["what"] == "Nothing is managed"
    assert told["environment"]["NO_MANAGED"] == "1"


def problems_with(monkeypatch, **changed):
    """What doctor says of the sample machine when some of its sections have other values."""
    facts = samples.machine() | {"conflicts": {}}
    for section, values in changed.items():
        facts[section] = {**facts[section], **values}
    return {p.what: p for p in _problems.find(facts)}


def test_every_problem_is_found(monkeypatch):
    monkeypatch.setattr(_problems, "INERT", False)
    extensions = {"_C": "works", "_sim": "works", "_cuda": "works"}
    good = {"built for torch": "2.14", "extensions": extensions}
    peers = {"peers": [[1], [0]]}
    fine = {"versions": good, "cards": peers, "memory": {"control group": None}}
    assert problems_with(monkeypatch, **fine) == {}

    def also(**changed):
        (found,) = problems_with(monkeypatch, **{**fine, **changed}).values()
        return found

    assert "torch 2.13" in also(versions={**good, "built for torch": "2.13"}).why
    lacks = {"extensions": {**extensions, "_sim": "gone"}}
    assert also(versions={**good, **lacks}).why == "gone"
    assert "simulate" in also(versions={**good, **lacks}).what
    lacks = {"extensions": {**extensions, "_cuda": "gone"}}
    assert "Nothing leaves" in also(versions={**good, **lacks}).what
    assert "lock" in also(versions={**good, "python": "3.14.0 (CPython, without GIL)"}).why
    assert "over the host" in also(cards={"peers": [[], [0]]}).what
    none = {"found": [], "peers": [], "why_none": "this torch is built without CUDA"}
    monkeypatch.setattr("torch.version.cuda", None)
    assert "its own index" in also(cards=none).cure
    assert "simulate" in also(cards=none, versions={**good, "driver": None}).cure
    monkeypatch.setattr("torch.version.cuda", "13.0")
    assert "nvidia-smi" in also(cards=none).cure
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    assert "caching allocator is off" in also(environment=conf).why
    assert "caching allocator" in also(environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}).why
    assert "control group" in also(memory={"control group": 4 * samples.GIB}).why
    assert "torchdistx" in also(conflicts={"torchdistx": "why"}).what
    monkeypatch.setattr("torch._C._get_privateuse1_backend_name", lambda: "npu")
    assert "'npu'" in also().why


def test_conflicting_libraries_are_found(monkeypatch):
    monkeypatch.setattr(_problems, "installed", lambda name: "1.0" * (name == "tensor-managed"))
    assert _problems.conflicts()["tensor-managed"].startswith("it is imported by the same name")


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/a/b\n", {"sys/fs/cgroup/a/memory.max": "5000", "sys/fs/cgroup/a/b/memory.max": "max"},
         5000),
        ("0::/a/b\n", {"sys/fs/cgroup/memory.max": "7"}, 7),
        ("4:cpu,memory:/x\n2:cpu:/y\n",
         {"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "9223372036854771712",
          "sys/fs/cgroup/memory/memory.limit_in_bytes": "300"}, 300),
        ("2:cpu:/y\n", {"sys/fs/cgroup/y/memory.max": "1"}, None),
        ("", {}, None),
    ],
)  # fmt: skip
def test_limits_of_control_groups(tmp_path, groups, files, limit):
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert _machine._group_limit(str(tmp_path)) == limit
