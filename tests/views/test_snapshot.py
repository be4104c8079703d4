"""managed.snapshot(): a file that torch's memory_viz reads, with the memory of all holders."""

import pickle

import pytest
import torch
from support.devices import D0, ON_CUDA
from support.keeper import Keeper, closes_keepers, raw_alloc, raw_free  # noqa: F401
from support.pressure import MiB, nothing_left, on  # noqa: F401
from torch.cuda import _memory_viz

import managed
from managed import holders


@pytest.fixture
def keeper():
    held = Keeper().keep(8 * MiB, 2)
    holders.add(held, name="frames")
    yield held
    holders.remove(held)
    held.close()


def read(path):
    managed.snapshot(path)
    return pickle.loads(path.read_bytes())


@pytest.mark.not_under_torture("it compares two readings")
def test_its_sums_are_those_of_the_report(keeper, tmp_path):
    there = on(torch.ones(4 * MiB // 4))
    live, strange = keeper.alloc(2 * MiB), raw_alloc(6 * MiB)
    data, report = read(tmp_path / "memory.pickle"), holders.report(D0)
    here = [s for s in data["segments"] if s["device"] == 0]
    assert sum(s["allocated_size"] for s in here) == sum(row.live for row in report.values())
    whole = sum(row.live + row.cached for row in report.values())
    assert sum(s["total_size"] for s in here) == whole
    by_name = {s["frames"][0]["name"]: s for s in here if s["frames"]}
    frames = by_name["frames"]
    assert (frames["allocated_size"], frames["total_size"]) == (2 * MiB, 10 * MiB)
    assert by_name["others"]["total_size"] >= 6 * MiB
    assert ("torch" in by_name) is not ON_CUDA  # torch's own segments have no such frame
    keeper.free(live)
    raw_free(strange)
    del there


def test_torchs_memory_viz_reads_it(keeper, tmp_path):
    there = on(torch.ones(4 * MiB // 4))
    data = read(tmp_path / "memory.pickle")
    text = _memory_viz.segsum(data)
    assert f"segments: {len(data['segments'])}" in text
    for draw in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "snapshot.pickle" in draw(data)
    assert "8.0MiB" in _memory_viz.trace(data)
    del there


def test_blocks_of_a_segment_do_not_overlap(keeper, tmp_path):
    live = keeper.alloc(2 * MiB)
    ends = 0
    for segment in sorted(read(tmp_path / "x")["segments"], key=lambda s: s["address"]):
        assert segment["address"] >= ends
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
        ends = segment["address"] + segment["total_size"]
        assert at == ends
    keeper.free(live)


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        managed.snapshot(tmp_path / "nothing" / "memory.pickle")


def test_pictures_show_holders(keeper):
    figure = managed.plot_memory()
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert "frames" in labels
