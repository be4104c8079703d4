"""What is shown at a prompt and in a notebook: forms, figures, and that showing moves nothing."""

import html
import json
import re
import types
import weakref
from typing import ClassVar

import pytest
import torch
from support.apart import rand
from support.devices import D0, D1
from support.html_pages import read
from torch import nn

import managed
from managed import _C as C
from managed import ManagedModule, ManagedTensor
from managed._modules import progress as _progress
from managed._views import cells
from managed._views import html as _html
from managed._views import words as _words
from managed._views.stats import Stats
from managed.explain import History, whereabouts


def counted():
    """Everything that a move, a wait or an operator would change; the clock of the thread too."""
    figures = dict(managed.stats())
    figures.pop("devices")
    return figures


@pytest.fixture
def showing_moves_nothing():
    yield
    sim = getattr(torch, "sim", None)
    before = counted(), sim and sim.elapsed(), sim and sim.virtual_time("cpu")
    for shown in SHOWN:
        shown()
    assert (counted(), sim and sim.elapsed(), sim and sim.virtual_time("cpu")) == before
    SHOWN.clear()


SHOWN = []


# ---- words


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (1536 * 2**20, "1.5 GiB"),
        (2**70, "1048576.0 PiB"),
    ],
)
def test_sizes(n, text):
    assert _words.size(n) == text


@pytest.mark.parametrize(
    ("ns", "text"), [(0, ""), (999, "999 ns"), (25_000, "25.0 us"), (2_500_000_000, "2.5 s")]
)
def test_times(ns, text):
    assert _words.took(ns) == text


def test_columns_leave_out_what_is_empty():
    assert _words.columns([("a", "", "1"), ("bb", "", "22")], right=[2]) == ["a    1", "bb  22"]
    assert _words.counted(1, "copy"), _words.counted(2, "copy") == ("1 copy", "2 copies")


def test_every_text_is_escaped():
    evil = "<script>alert('&')</script>"
    for page in (
        _html.page(evil, _html.note(evil), _html.preformatted(evil)),
        _html.page("", _html.table((evil,), [(evil,)]), _html.fold(evil, "")),
        _html.page("", _html.bar({evil: 1.0}, {}, 2.0)),
    ):
        read(page)
        assert html.escape(evil) in page


def test_a_bar_is_never_longer_than_the_whole():
    widths = re.findall(r"width:([\d.]+)%", _html.bar({"a": 60, "b": 70}, {}, 100))
    assert [float(w) for w in widths] == [60.0, 40.0]
    assert "width:" not in _html.bar({"a": 60}, {}, 0)


# ---- tensors


@pytest.mark.not_under_torture("it asks where bytes are")
def test_a_tensor_tells_where_it_is_and_shows_no_values(showing_moves_nothing):
    x = rand(D1, 512, 512)
    text = read(x)
    assert f"ManagedTensor (512, 512) of float32 on {D1}" in text
    assert "size 1.0 MiB" in text
    assert "print() shows the values" in text
    assert read(nn.Parameter(rand(D1, 3)))
    SHOWN.extend([x._repr_html_, lambda: x._repr_mimebundle_(include=None, exclude=None)])


def test_a_tensor_on_the_host_shows_its_values():
    x = torch.tensor([1.0, 2.5]).as_subclass(ManagedTensor)
    assert "tensor([1.0000, 2.5000])" in read(x)


def test_its_state(showing_moves_nothing):
    x = rand(D0, 4).requires_grad_()
    x.pin()
    assert "pinned: it does not move; placed by the program; requires a gradient" in read(x)
    SHOWN.append(x._repr_html_)


@pytest.mark.not_under_torture("it asks where bytes are")
def test_a_tensor_whose_bytes_have_left_stays_away(not_learning, showing_moves_nothing):
    x, y = rand(D0, 2**20), rand(D0, 2**20)
    y.sum()
    used = C.residency(D0)["idle"]
    managed.budget(D0, "5MiB")
    try:
        away = x if C.is_spilled(x) else y
        assert used >= 2**23
        assert C.is_spilled(away)
        assert whereabouts(away) != D0
        assert f"bytes are on {whereabouts(away)}" in read(away)
        assert C.is_spilled(away), "it came home to be shown"
        SHOWN.append(away._repr_html_)
    finally:
        managed.budget(D0, None)


def test_plain_tensors_have_nothing_of_it():
    plain = torch.rand(3)
    for tensor in (plain, nn.Parameter(plain)):
        assert not hasattr(tensor, "_repr_html_")
        assert "_repr_html_" not in dir(tensor)
        with pytest.raises(AttributeError, match="no attribute '_repr_mimebundle_'"):
            tensor._repr_mimebundle_()
    plain._repr_html_ = "mine"
    assert plain._repr_html_ == "mine"


def test_a_subclass_keeps_its_own():
    class Own(torch.Tensor):
        def _repr_html_(self):
            return "own"

    assert torch.rand(2).as_subclass(Own)._repr_html_() == "own"


@pytest.mark.parametrize("layout", ["coo", "csr", "zero", "scalar", "complex"])
def test_odd_tensors(layout):
    x = {
        "coo": torch.eye(3).to_sparse(),
        "csr": torch.zeros(0, 3),
        "zero": torch.zeros(0),
        "scalar": torch.tensor(3),
        "complex": torch.zeros(2, dtype=torch.complex64).conj(),
    }[layout].as_subclass(ManagedTensor)
    assert "ManagedTensor (" in read(x)


def notebook(monkeypatch, files):
    """As if a kernel ran: IPython's shell with a kernel and names of cells."""
    compile_ = types.SimpleNamespace(_filename_map=files)
    shell = types.SimpleNamespace(kernel=object(), compile=compile_)
    module = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(__import__("sys").modules, "IPython", module)


def test_a_notebook_is_given_both_forms(monkeypatch, showing_moves_nothing):
    x = rand(D1, 8)
    assert x._repr_mimebundle_() is None, "a terminal prints values as before"
    notebook(monkeypatch, {})
    both = x._repr_mimebundle_(include=None, exclude=None)
    assert set(both) == {"text/plain", "text/html"}
    assert both["text/plain"].startswith(f"ManagedTensor (8,) of float32 on {D1}: 32 bytes")
    SHOWN.append(x._repr_mimebundle_)


# ---- modules, managers, errors


def test_a_module_is_shown_by_its_summary(showing_moves_nothing):
    net = ManagedModule.from_module(nn.Sequential(nn.Linear(8, 4), nn.ReLU())).cuda(1)
    text = read(net)
    assert "Sequential: 36 parameters, 144 bytes" in text
    assert f"144 bytes on {D1}" in text
    SHOWN.append(net._repr_html_)


def test_a_module_with_a_picture_of_its_own():
    class Own(nn.Linear):
        def _repr_html_(self):
            return "own"

    assert ManagedModule.from_module(Own(2, 2))._repr_html_() == "own"


def test_the_manager_shows_each_device(showing_moves_nothing):
    x = rand(D1, 2**18)
    text = read(managed.device_manager)
    assert text.startswith(repr(managed.device_manager))
    assert re.search(rf"{D1} .*1\.0 MiB", text)
    assert x.nbytes == 2**20
    SHOWN.append(managed.device_manager._repr_html_)


def test_an_error_shows_its_table():
    words = "managed: sim:0 out of memory. It needs <much>."
    error = managed.OutOfMemoryError(f"{words}\n  sim:0: 1 MiB free\n  host: 0 bytes\nTry less.")
    text = read(error)
    assert "OutOfMemoryError: managed: sim:0 out of memory. It needs <much>." in text
    assert "sim:0 1 MiB free host 0 bytes Try less." in text
    assert read(managed.OutOfMemoryError()) == "OutOfMemoryError:"


@pytest.mark.only_simulated("the sizes are theirs")
def test_a_real_error_shows_its_table():
    with pytest.raises(managed.OutOfMemoryError) as caught, managed.budget(D0, "4KiB"):
        rand("cpu", 2**20).to(D0)
    assert D0 in read(caught.value)


# ---- stats and histories


@pytest.mark.not_under_torture("it counts moves")
def test_stats_are_a_dict_and_show_groups(showing_moves_nothing):
    managed.stats(reset=True)
    a, b = rand(D0, 2**18), rand(D1, 256)
    a[:256] + b
    figures = managed.stats()
    assert isinstance(figures, dict)
    assert figures["move"] == 2
    assert json.loads(json.dumps(figures)) == dict(figures) == figures
    shown = {line.split()[0]: line.split() for line in str(figures).splitlines() if line}
    assert shown["move"][1:4] == ["2", "1.0", "MiB"]
    assert shown["copy"][1:4] == ["1", "1.0", "KiB"]
    assert shown[f"cpu->{D0}"][1:] == ["1.0", "MiB"]
    assert "spill" not in shown, "what is zero is left out"
    assert repr(figures) == str(figures)
    text = read(figures)
    assert "move 2 1.0 MiB" in text
    SHOWN.extend([figures._repr_html_, lambda: repr(managed.stats())])


def test_nothing_counted():
    assert repr(Stats()) == "nothing has been counted"
    assert "nothing has been counted" in read(Stats())


@pytest.mark.not_under_torture("its history tells of what leaves and comes back, too")
def test_a_history_is_a_table_at_a_prompt(showing_moves_nothing):
    x = rand(D0, 2**18)
    x.pin()
    history = History(managed.explain(x))  # as if the ring had lost nothing before it
    head, columns, moved, pinned = repr(history).splitlines()
    assert head == "2 events, 1.0 MiB from one device to another"
    assert columns.split()[:2] == ["ms", "what"]
    assert f"cpu -> {D0}  1.0 MiB" in moved
    assert moved.endswith("the program asked for it")
    assert "pin " in pinned
    assert "2 events, 1.0 MiB" in read(history)
    assert str(history).splitlines()[0].count(f"move cpu -> {D0} 1048576 bytes") == 1
    told = repr(History(history, dropped=7)).splitlines()[-1]
    assert "7 older events of any tensor are no longer held" in told
    SHOWN.extend([history._repr_html_, lambda: repr(managed.explain(x))])


def test_an_empty_history():
    assert repr(managed.explain(torch.ones(1))) == "nothing has been recorded"
    assert "nothing has been recorded" in read(managed.explain(torch.ones(1)))


@pytest.mark.not_under_torture("its history tells of what leaves and comes back, too")
def test_a_long_history_shows_its_end():
    x = rand(D0, 4)
    for _ in range(30):
        x.pin()
        x.unpin()
    history = managed.explain(x)
    assert len(history) == 61
    assert "11 earlier events not shown: print() shows all" in repr(history)
    assert len([line for line in repr(history).splitlines() if "pin" in line]) == 50
    part = history[-2:]
    assert type(part) is type(history)
    assert [e.kind for e in part] == ["pin", "unpin"]
    assert history[-1].kind == "unpin"


@pytest.mark.parametrize(
    ("site", "text"),
    [
        ("123.py:4 in <cell line: 1>", "cell 7, line 4"),
        ("123.py:4 in <module>", "cell 7, line 4"),
        ("123.py:4 in step", "cell 7, line 4 in step"),
        ("train.py:4 in step", "train.py:4 in step"),
        ("backward of MmBackward0", "backward of MmBackward0"),
        (None, None),
    ],
)
def test_sites_in_a_notebook(site, text):
    assert cells.named(site, {"123.py": 7}) == text
    assert cells.named(site, {}) == site


def test_explain_names_the_cell(monkeypatch):
    space = {}
    exec(compile("\n\ndef go(x):\n    x.pin()\n", "/tmp/ipykernel_1/99.py", "exec"), space)
    x = rand(D0, 4)
    space["go"](x)
    assert managed.explain(x)[-1].site == "99.py:4 in go"
    notebook(monkeypatch, {"/tmp/ipykernel_1/99.py": 3})
    assert managed.explain(x)[-1].site == "cell 3, line 4 in go"


# ---- pictures


def test_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    with managed.profile() as p:
        x = rand(D0, 2**18)
        rand(D0, 4).to(D1)
    managed.plot_memory(path=tmp_path / "now.png")
    managed.plot_memory(p, tmp_path / "then.png")
    managed.plot_moves(p, tmp_path / "moves.png")
    managed.plot_moves(x, tmp_path / "tensor.svg")
    for written in ("now.png", "then.png", "moves.png", "tensor.svg"):
        assert (tmp_path / written).stat().st_size > 1000
    figure = managed.plot_moves(managed.explain(x))
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == [f"cpu -> {D0}"]
    assert [t.get_text().strip() for t in figure.axes[1].texts] == ["1.0 MiB"]
    assert figure._repr_png_()[:4] == b"\x89PNG"
    empty = managed.plot_moves(torch.ones(1))
    assert empty.axes[0].texts[0].get_text() == "nothing has moved"


def test_pictures_of_what_is_none():
    pytest.importorskip("matplotlib")
    with pytest.raises(TypeError):
        managed.plot_moves("x")
    for draw in (managed.plot_memory, managed.plot_timeline):
        with pytest.raises(TypeError, match=r"not 'x\.png'; path= is the file"):
            draw("x.png")
    with managed.profile() as nothing:
        pass
    assert managed.plot_memory(nothing)._repr_png_()[:4] == b"\x89PNG"
    assert managed.plot_moves(nothing).axes[0].texts[0].get_text() == "nothing has moved"


# ---- bars


class Bar:
    made: ClassVar[list] = []

    def __init__(self, **options):
        self.options, self.done = options, options["initial"]
        Bar.made.append(weakref.ref(self))

    def update(self, n):
        self.done += n

    def close(self):
        Bar.closed = self.done


@pytest.fixture
def clock(monkeypatch):
    """A clock that is told how late it is, and a library that draws nothing."""
    now = types.SimpleNamespace(time=0.0)
    pytest.importorskip("tqdm")
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now.time)
    monkeypatch.setattr("tqdm.auto.tqdm", Bar)
    monkeypatch.setattr(_progress, "_watched", lambda: True)
    Bar.made, Bar.closed = [], None
    return now


def test_a_bar_appears_after_a_second(clock):
    with _progress.Progress("moving", 100) as progress:
        progress.advance(10)
        clock.time = 0.9
        progress.advance(10)
        assert not Bar.made
        clock.time = 1.1
        progress.advance(10)
        (made,) = Bar.made
        assert made().options["total"] == 100
        assert made().options["initial"] == 30
        progress.advance(70)
    assert Bar.closed == 100


def test_no_bar_for_what_is_done_or_not_watched(clock, monkeypatch):
    with _progress.Progress("moving", 10) as progress:
        clock.time = 5.0
        progress.advance(10)
    monkeypatch.setattr(_progress, "_watched", lambda: False)
    with _progress.Progress("moving", 10) as progress:
        clock.time = 9.0
        progress.advance(5)
        progress.advance(2)
    assert not Bar.made


def test_a_bar_ends_with_its_move_even_when_that_fails(clock):
    def fails():
        with _progress.Progress("moving", 10) as progress:
            clock.time = 2.0
            progress.advance(5)
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fails()
    assert Bar.closed == 5


def test_a_module_that_takes_long_has_a_bar(clock, monkeypatch):
    net = ManagedModule.from_module(nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]))
    sizes = iter(range(1, 100))
    monkeypatch.setattr(_progress.time, "monotonic", lambda: float(next(sizes)))
    net.cuda(1)
    assert len(Bar.made) == 1
    assert Bar.closed == sum(p.nbytes for p in net.parameters())


def test_without_tqdm_there_is_no_bar(clock, monkeypatch):
    monkeypatch.setattr(_progress.importlib.util, "find_spec", lambda name: None)
    with _progress.Progress("moving", 10) as progress:
        clock.time = 2.0
        progress.advance(5)
    assert not Bar.made


def test_nobody_watches_a_pipe(run_python):
    program = """
        import sys
        import torch, managed
        from managed._modules import progress as _progress
        _progress.PATIENCE = -1.0
        managed.simulate(1, "64MiB")
        net = managed.ManagedModule.from_module(torch.nn.Sequential(*[torch.nn.Linear(9, 9)] * 3))
        net.cuda(0)
        assert "tqdm.auto" not in sys.modules
        sys.stderr = None
        net.cpu()
    """
    assert run_python(program) == ""


def test_showing_starts_no_driver(run_python):
    program = """
        import sys
        import torch, managed
        x = torch.ones(3).as_subclass(managed.ManagedTensor)
        net = managed.ManagedModule.from_module(torch.nn.Linear(2, 2))
        error = managed.OutOfMemoryError("none")
        for shown in (x, net, managed.device_manager, managed.stats(), managed.explain(), error):
            assert "<div" in shown._repr_html_(), shown
        repr(managed.stats()), repr(managed.explain()), repr(managed.summary(net))
        assert not torch.cuda.is_initialized()
        assert "matplotlib" not in sys.modules and "IPython" not in sys.modules
    """
    assert run_python(program) == ""


def test_inert_things_are_shown_too(run_python):
    program = """
        import torch, managed
        x = torch.ones(3).as_subclass(managed.ManagedTensor)
        assert not hasattr(x, "_repr_html_")
        net = managed.ManagedModule.from_module(torch.nn.Linear(2, 2))
        assert repr(managed.stats()) == "nothing has been counted"
        assert "6" in repr(managed.summary(net))
        net._repr_html_()
    """
    assert run_python(program, NO_MANAGED=1) == ""
