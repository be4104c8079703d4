"""Random programs with a fixed seed; `make fuzz SECONDS=600` runs more of them. See fuzz.py."""

import fuzz
import pytest
from support.devices import ON_CUDA
from support.paths import TESTS
from support.slices import slice_of

import managed

FIRST = 7_000_000  # the seed of the first program; the others follow
COUNT = 20


@pytest.mark.parametrize("part", slice_of(range(16), 5))
def test_random_programs_have_the_bits_of_plain_tensors(part):
    first = FIRST + COUNT * part
    print(f"programs of the seeds from {first} on")
    counts, failures = fuzz.fuzz(first, count=COUNT)
    assert not failures, "\n".join(failures)
    assert counts["ok"] > COUNT // 2, counts


FOUND = [
    [("new", 1907184535), ("leaf_of_what_was_computed", 366726807), ("inference", 993338586),
     ("view", 1907824180), ("write_unseen", 83864629), ("write_unseen", 52434989)],
    [("new", 523157855), ("inside_of_on", 1704459070), ("leaf", 218043346),
     ("deep_copy", 1663605716), ("bring", 1606958266), ("leaf", 2006471326),
     ("binary", 1046100917), ("write", 114599127), ("inference", 563359499),
     ("write_unseen", 883149385)],
    [("new", 426276791), ("leaf_of_what_was_computed", 1488275669), ("unary", 1576341198),
     ("bring", 1362620814), ("grad", 1214865667)],
    [("new", 509023552), ("leaf_of_what_was_computed", 1538336118), ("binary", 1677738579),
     ("inference", 538824173), ("copied_to", 1331518099), ("binary", 97990215)],
    [("new", 622975146), ("leaf", 636814645), ("inference", 374574220), ("copied_to", 274895487),
     ("lists", 430156711)],
    [("leaf", 390441624), ("backward", 1500774294), ("leaf", 647598653),
     ("unary", 2060992505), ("unary", 549176847), ("write_unseen", 343405424),
     ("bring", 1277787881)],
]  # fmt: skip


@pytest.mark.parametrize("program", FOUND)
@pytest.mark.parametrize("torture", [None, {"odds": 1}])
def test_a_program_that_once_failed(program, torture):
    result = fuzz.run(program, torture)
    assert not result.is_wrong, result


def test_another_value_is_found_and_the_program_shortened(monkeypatch):
    program = [("new", 3), ("leaf", 4), ("new", 5), ("collect", 6), ("view", 7), ("step", 8)]

    def with_a_fault(w, r):
        if w.is_managed:
            w.get(next(iter(w.tensors))).data.add_(1)

    monkeypatch.setitem(fuzz.INSTRUCTIONS, "step", (1, with_a_fault))
    result = fuzz.run(program)
    assert result.kind == "another value"
    told = fuzz.tell(0, program, None, result)
    assert "collect" not in told
    assert "step" in told


def test_another_error_is_found(monkeypatch):
    def with_a_fault(w, r):
        if w.is_managed:
            raise managed.OutOfMemoryError("none left")

    monkeypatch.setitem(fuzz.INSTRUCTIONS, "step", (1, with_a_fault))
    result = fuzz.run([("new", 3), ("step", 8)])
    assert result.kind == "another error"
    assert "none left" in result.told


@pytest.mark.skipif(ON_CUDA, reason="a program of its own simulates devices")
def test_the_program_of_make_fuzz(run_python):
    told = run_python(
        "import runpy, sys; sys.path.insert(0, sys.argv[1]); sys.argv = ['fuzz.py', '0.1', '3'];"
        "runpy.run_path(sys.path[0] + '/fuzz.py', run_name='__main__')",
        TESTS,
    )
    assert "10 programs" in told
