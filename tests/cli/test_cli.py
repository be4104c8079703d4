"""What the command `managed` prints, in each kind of terminal; who may look at a process, and when.

The files in tests/golden are what the commands print of tests/support/cli_samples.py, a file for
each kind of terminal. After a change that is meant, UPDATE_GOLDEN=1 writes them anew: read the
difference.
"""

import contextlib
import fcntl
import importlib
import io
import json
import os
import pty
import struct
import sys
import termios
import threading

import pytest
from support import cli_samples as samples
from support.paths import TESTS

from managed import cli
from managed.cli import _machine, _problems, _waits, top
from managed.cli._screen import Piece, Screen, fitted, printable, text_of
from managed.cli.watch import sockets
from managed.cli.watch.asked import Watch
from managed.cli.watch.live import follow
from managed.cli.watch.snapshot import owners, rates

GOLDEN = TESTS / "golden"

# Columns (0: a pipe), encoding, whether rich is there, and the environment.
TERMINALS = {
    "color": (100, "utf-8", True, {"TERM": "xterm-256color", "LANG": "en_US.UTF-8"}),
    "no_color": (100, "utf-8", True, {"TERM": "xterm-256color", "NO_COLOR": "1"}),
    "pipe": (0, "utf-8", True, {"TERM": "xterm-256color"}),
    "forced": (0, "utf-8", True, {"FORCE_COLOR": "1"}),
    "narrow": (40, "utf-8", True, {"TERM": "dumb"}),
    "no_unicode": (80, "iso-8859-1", True, {"TERM": "vt100", "LC_ALL": "C"}),
    "without_rich": (100, "utf-8", False, {"TERM": "xterm-256color"}),
}
VARIABLES = ("TERM", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LC_ALL", "LC_CTYPE", "LANG")


@contextlib.contextmanager
def terminal(columns, encoding, monkeypatch, lines=50):
    """Standard output is a terminal of that many columns, or a pipe; yields what was written."""
    written = []
    there, here = pty.openpty() if columns else os.pipe()[::-1]
    here, there = (there, here) if columns else (here, there)
    if columns:
        fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))

    def collect():
        with contextlib.suppress(OSError):  # a terminal whose other end is closed
            while chunk := os.read(here, 1 << 16):
                written.append(chunk)

    reader = threading.Thread(target=collect)
    reader.start()
    with open(there, "w", encoding=encoding) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        yield written
        monkeypatch.undo()
    reader.join()
    os.close(here)


@pytest.fixture
def prints(monkeypatch, tmp_path):
    """A function that runs a command in a kind of terminal and returns what it printed."""
    trace = tmp_path / "profile.json"
    trace.write_text(json.dumps(samples.profile()))

    def run(
        arguments, columns=0, encoding="utf-8", rich=True, environment=(), status=0, found=None
    ):
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in dict(environment).items():
            monkeypatch.setenv(name, value)
        if not rich:
            monkeypatch.setitem(sys.modules, "rich.console", None)
        if found is None:
            stuck = sockets.Found(99, {}, "does not answer within 2 s")
            newcomer, trainer = samples.newcomer(), samples.trainer()
            found = [sockets.Found(77, newcomer), stuck, sockets.Found(4242, trainer)]
        monkeypatch.setattr(sockets, "find", lambda timeout=2.0: found)
        facts = samples.machine()
        monkeypatch.setattr(_machine, "collect", lambda: facts)
        monkeypatch.setattr(_problems, "conflicts", lambda: facts["conflicts"])
        monkeypatch.setattr("socket.gethostname", lambda: "box")
        for module in ("top", "status"):
            there = importlib.import_module(f"managed.cli.{module}")
            monkeypatch.setattr(there, "now", lambda: "Wed Nov 25 01:20:33 2026")
        arguments = [str(trace) if a == "FILE" else a for a in arguments]
        with terminal(columns, encoding, monkeypatch) as written:
            assert cli.main(arguments) == status
        return b"".join(written).decode(encoding).replace("\r\n", "\n")

    return run


COMMANDS = (["doctor"], ["status"], ["top", "--once"], ["trace", "FILE"])


@pytest.mark.parametrize("kind", TERMINALS)
def test_what_each_kind_of_terminal_shows(kind, prints):
    columns, *rest = TERMINALS[kind]
    parts = [f"$ managed {' '.join(c)}\n{prints(c, columns, *rest)}" for c in COMMANDS]
    shown = "\n".join(parts)
    path = GOLDEN / f"{kind}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")


def test_what_the_kinds_of_terminals_have_in_common():
    """Colours alone tell the coloured ones from the others; without rich nothing is missing."""
    text = {kind: (GOLDEN / f"{kind}.txt").read_text(encoding="utf-8") for kind in TERMINALS}
    escapes = {kind for kind in TERMINALS if "\x1b" in text[kind]}
    assert escapes == {"color", "forced", "no_unicode"}
    assert text["no_color"] == text["without_rich"] == text["pipe"]
    assert without_colors(text["color"]) == text["no_color"]
    assert text["forced"] == text["color"]
    assert text["no_unicode"].isascii()
    assert {ord(c) for c in text["no_color"] if not c.isascii()} <= set(map(ord, "█▓▒░▚▞·"))


def without_colors(text):
    return "".join(
        part.partition("m")[2] if i else part for i, part in enumerate(text.split("\x1b["))
    )


@pytest.mark.parametrize("columns", [20, 24, 40, 60, 71, 72, 100, 200])
def test_no_line_is_longer_than_the_terminal_is_wide(columns, prints):
    for command in COMMANDS:
        printed = prints(command, columns, environment={"TERM": "dumb"})
        assert printed
        least = max(columns, 24)  # wrapped text has at least so many
        long = [line for line in printed.splitlines() if len(line) > least]
        assert not long, (command, long)


# ---- screens


class Stream(io.StringIO):
    encoding = "utf-8"


def test_width_and_colors_are_found_out():
    def screen(**environment):
        return Screen(stream=Stream(), environment=environment)

    assert screen().width == 100
    assert screen(COLUMNS="33").width == 33
    assert screen(COLUMNS="none").width == 100
    assert not screen(TERM="xterm").colored
    assert screen(FORCE_COLOR="1").colored
    assert not screen(FORCE_COLOR="1", NO_COLOR="1").colored
    assert Screen(stream=Stream(), color=True, environment={"NO_COLOR": "1"}).colored
    assert screen().unicode
    assert not screen(LC_ALL="C", LANG="en_US.UTF-8").unicode
    assert not screen(LANG="POSIX").unicode
    assert screen(LC_CTYPE="en_US.UTF-8", LANG="C").unicode
    assert not Screen(stream=Stream(), ascii=True, environment={}).unicode


def test_bars_and_legends():
    screen = Screen(stream=Stream(), ascii=True, environment={"COLUMNS": "40"})
    parts = {"managed": 30, "other": 20, "guest": 0, "free": 50}
    assert text_of(screen.bar(10, parts)) == "###==....."
    assert [piece.style for piece in screen.bar(10, parts)] == ["managed", "other", "free"]
    assert text_of(screen.bar(3, {"managed": 1, "free": 10**12})) == "..."
    assert text_of(screen.bar(3, {"managed": 0, "free": 0})) == ""
    for width in range(50):  # rounding loses and gains nothing
        assert len(text_of(screen.bar(width, {"managed": 7, "replica": 5, "free": 11}))) == width
    legend = [text_of(line) for line in screen.legend(["managed", "free", "other"])]
    assert legend == [
        "# tensors that may leave  . free  ", "= plain tensors, room to work in  ",
    ]  # fmt: skip


def test_lines_are_cut_and_nothing_in_them_is_obeyed():
    long, short = [Piece("abc"), Piece("def")], [Piece("ab")]
    assert fitted(6, long, short) == long
    assert fitted(5, long, short) == short
    assert text_of(fitted(4, long)) == "abcd"
    assert printable("a\x1b[2J\n\u202eb") == "a?[2J??b"
    stream = Stream()
    stream.encoding = "ascii"
    assert Screen(stream=stream, environment={}).render([[Piece("größe ")]]) == "gr??e\n"


# ---- top


def test_top_draws_the_bars_as_it_is_asked(prints):
    once = ["top", "-1"]
    environment = {"TERM": "xterm"}
    colorful = prints([*once, "--colorful", "--force-color", "-p", "4242"])
    assert "\x1b[92m" in colorful  # bright green, yellow, red
    assert "\x1b[93m" in colorful
    assert "\x1b[91m" in colorful
    assert without_colors(colorful) == prints([*once, "-p", "4242"])
    assert prints([*once, "--ascii"], 100, environment=environment).isascii()
    compact = prints([*once, "-m", "compact"])
    assert "largest" in prints(once)
    assert "largest" not in compact
    assert "cuda:0" not in prints([*once, "--only", "1"]).split("what moved")[0]


def test_top_shows_what_was_counted_since_the_last_look(monkeypatch):
    from managed.cli.watch.panels import Look, panel

    screen = Screen(stream=Stream(), environment={})
    options = cli.argparse.Namespace(pid=None, only=None, only_visible=False)
    watch = Watch(options)
    found = [sockets.Found(4242, samples.trainer(100))]
    monkeypatch.setattr(sockets, "find", lambda: found)
    (first,) = watch.look()
    assert first.rates == {}
    found[:] = [sockets.Found(4242, samples.trainer(104, factor=3))]
    (second,) = watch.look()
    assert second.rates["spill_bytes"] == 500 * samples.MIB
    assert second.rates["link cpu->cuda:0"] == 550 * samples.MIB
    assert second.rates["host_waits"] == 3.5
    text = "\n".join(map(text_of, panel(second, Look(screen, False, (80, 95)), 0)))
    assert "500.0 MiB/s" in text
    assert "3.5/s" in text
    found[:] = [sockets.Found(4242, samples.trainer(106))]  # the program has reset its counters
    (third,) = watch.look()
    assert third.rates["spill_bytes"] == 500 * samples.MIB
    (fourth,) = watch.look()  # no time has passed
    assert fourth.rates == {}


def test_only_visible_cards_are_shown(monkeypatch):
    options = cli.argparse.Namespace(pid=None, only=None, only_visible=True)
    told = samples.trainer()
    monkeypatch.setattr(sockets, "find", lambda: [sockets.Found(4242, told)])

    def names(here, there):
        told["process"]["visible"] = there
        if here is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", here)
        return [d["name"] for d in Watch(options).look()[0].snapshot["devices"]]

    assert names(None, None) == ["cuda:0", "cuda:1"]
    assert names("1", None) == ["cuda:1"]
    assert names("3, 5", "5,3") == ["cuda:0", "cuda:1"]
    assert names("3", "5,3") == ["cuda:1"]
    told["devices"][0]["name"] = "sim:0"
    assert names("7", None) == ["sim:0"]


def test_keys_and_the_end_of_top(monkeypatch, prints):
    """h shows the keys, c the short form, q ends; the terminal is as it was before."""
    keyboard, stdin = pty.openpty()
    keys = [b"h", b"\x1b[A", b"q"]  # an arrow does nothing

    def now():
        """The time that a frame shows; the next key is pressed meanwhile."""
        os.write(keyboard, keys.pop(0))
        return "now"

    monkeypatch.setattr(top, "now", now)
    monkeypatch.setattr(sockets, "find", lambda timeout=2.0: [])
    before = termios.tcgetattr(stdin)
    with terminal(90, "utf-8", monkeypatch) as written, open(stdin) as stream:
        monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setattr(sys, "stdin", stream)
        assert cli.main(["top", "--interval", "100"]) == 0
        assert termios.tcgetattr(stdin) == before
    os.close(keyboard)
    shown = b"".join(written).decode()
    assert shown.startswith("\x1b[?1049h\x1b[?25l")
    assert shown.endswith("\x1b[?25h\x1b[?1049l")
    assert "no process of this user can be looked at" in shown
    assert "quit; so do Q, Esc and Ctrl-C" in shown


def test_frames_in_a_pipe_come_below_each_other(monkeypatch):
    frames = iter([[[Piece("one")]], [[Piece("two")]]])

    def frame():
        try:
            return next(frames)
        except StopIteration:
            raise KeyboardInterrupt from None

    stream = Stream()
    follow(Screen(stream=stream, environment={}), frame, 0.001)
    assert stream.getvalue() == "one\ntwo\n"


def test_where_there_is_nobody(prints, monkeypatch, tmp_path, capsys):
    for command in (["status"], ["top", "-1"]):
        assert "MANAGED_TOP=1" in prints(command, found=[], status=1)
    assert json.loads(prints(["status", "--json"], found=[], status=1))["processes"] == []
    with pytest.raises(SystemExit, match="2"):
        cli.main(["top", "--interval", "0.1"])
    assert "at least 0.25 seconds" in capsys.readouterr().err


# ---- status


def test_the_schema_of_status(prints):
    told = json.loads(prints(["status", "--json"]))
    assert {k: type(v) for k, v in told.items()} == {
        "schema": int, "host": str, "time": float, "processes": list,
    }  # fmt: skip
    assert told["schema"] == 2
    newcomer, stuck, trainer = told["processes"]
    assert stuck == {"pid": 99, "error": "does not answer within 2 s"}
    assert newcomer["devices"] == []
    assert trainer == {"pid": 4242, **samples.trainer(), "rates": {}}
    held = trainer["devices"][0]
    assert sum(held["owners"].values()) == held["capacity"]


def test_owners_add_up():
    held = {"capacity": 100, "used": 60, "managed": 50, "replica": 4, "reserved": 1, "foreign": 5}
    storages = {"idle": 20, "in_use": 3, "pinned": 2, "held": 1, "spilled": 90, "guests": 10}
    told = owners(held, storages)
    assert told == {
        "managed": 26, "other": 14, "guest": 10, "replica": 4, "reserved": 1, "foreign": 5,
        "free": 40,
    }  # fmt: skip
    late = owners(held, storages | {"idle": 70, "guests": 60})  # read when more had come
    assert sum(late.values()) == 100
    assert min(late.values()) >= 0
    full = owners(held | {"capacity": 50}, storages)  # a budget that was lowered
    assert full["free"] == 0


# ---- trace


def test_what_a_profile_says(tmp_path):
    path = tmp_path / "p.json"
    path.write_text(json.dumps(samples.profile()))
    p = _waits.read(path)
    assert p.elapsed == 600
    assert p.simulated
    up, down = p.links
    assert (up.name, up.bytes, up.copies, up.busy) == ("cpu -> sim:0", 6096, 3, 320.5)
    assert up.kinds == {"copy": 4096, "restore": 2000}
    assert (down.bytes, down.kinds) == (8, {"plain": 8})
    told = [(w.who, w.what, w.kind, round(w.total, 3), w.times, w.line) for w in p.waits]
    assert told == [
        ("thread 0", "aten::copy_", "asked", 250.0, 1, "t.py:3 in <module>"),
        ("sim:0 stream 0", "aten::mm", "restore", 150.5, 2, "t.py:9 in f"),
        ("thread 0", "aten::copy_", "read", 59.0, 1, ""),
        ("sim:0 stream 0", "aten::add", "room", 20.0, 1, ""),
        ("thread 0", "synchronize", "run", 5.0, 1, ""),
    ]
    assert p.waits[1].longest == 100
    assert "asked for" in p.waits[0].cause
    assert ["earlier work" in w.cause for w in p.waits] == [False, False, True, False, False]
    assert all(_waits.cure(w.kind) for w in p.waits)
    known = {_waits.cure(kind) for kind in ("restore", "asked", "read", "copy", "run", "stream")}
    assert len(known | {_waits.cure("")}) == 7


def test_a_thread_that_is_far_ahead_waits_for_nothing_that_can_be_cured(run_python, tmp_path):
    """As on a card, whose queue of launches is full then."""
    path = tmp_path / "p.json"
    run_python(
        """
        import sys, torch, managed
        managed.simulate(devices=1, preset="t4")
        x = torch.zeros(2**20, device="sim:0")
        with managed.profile(sys.argv[1]):
            for _ in range(1600):
                x += 1
            torch.accelerator.synchronize()
        """,
        path,
    )
    waits = {w.what: w for w in _waits.read(path).waits}
    assert set(waits) == {"full queue", "synchronize"}
    full = waits["full queue"]
    assert (full.times, full.kind) == (2, "queue")  # at the 1,024th and at the 1,536th operation
    assert "1,024" in full.cause
    assert "no loss" in _waits.cure(full.kind)


def test_trace_as_json_and_what_it_cannot_read(prints, tmp_path, capsys):
    told = json.loads(prints(["trace", "FILE", "--json"]))
    assert told["schema"] == 1
    assert told["elapsed_ns"] == 600_000
    assert told["links"][0]["busy_ns"] == 320_500
    assert told["waits"][1]["total"] == 150_500
    for text in ("", "[]", '{"traceEvents": []}', '{"otherData": {"stats": 3}, "traceEvents": []}'):
        bad = tmp_path / "bad.json"
        bad.write_text(text)
        assert cli.main(["trace", str(bad)]) == 1
        assert f"{bad} is no file of managed.profile()" in capsys.readouterr().err
    assert cli.main(["trace", str(tmp_path / "none.json")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_a_profile_of_real_devices_has_no_waits(tmp_path, capsys):
    told = samples.profile()
    told["traceEvents"] = [e for e in told["traceEvents"] if e.get("cat") in (None, "copy")]
    path = tmp_path / "real.json"
    path.write_text(json.dumps(told))
    assert cli.main(["trace", str(path)]) == 0
    assert "copies of managed's alone" in " ".join(capsys.readouterr().out.split())


def test_rates_need_time():
    first, later = samples.trainer(0), samples.trainer(2, factor=2)
    assert rates(first, first) == {}
    assert rates(later, first) == {}
    assert rates(first, later)["copy"] == 1.5
