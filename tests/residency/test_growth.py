"""What waits on the host and grows step by step is said once, with the line; all else is silent."""

import json
import re

import pytest
from support.paths import PROGRAMS

PROGRAM = PROGRAMS / "growing_host.py"
MiB = 2**20


def found(run_python, name):
    result = json.loads(run_python(PROGRAM, name))
    assert result["spilled"] > 0
    return result


def line_of(name):
    """The number of the line that ends with "# the line", of this function of the program."""
    lines = PROGRAM.read_text().splitlines()
    start = lines.index(f"def {name}():")
    return next(i for i in range(start, len(lines)) if lines[i].endswith("# the line")) + 1


@pytest.mark.parametrize(
    ("name", "ends", "a_step"),
    [
        ("sum_of_losses", "call of a module", 128),
        ("evaluation_after_training", "call of a module", 128),
        ("backward_without_an_optimizer", "backward pass", 128),
        ("list_of_graphs_in_training", "step of an optimizer", 128),
    ],
)
def test_growth_is_said_once_before_the_host_is_half_full(run_python, name, ends, a_step):
    result = found(run_python, name)
    [(file, line, text, done, used)] = result["said"]
    assert result["logged"] == [text]
    assert (file, line) == (str(PROGRAM), line_of(name))
    assert f"({PROGRAM}:{line})" in text
    assert "have grown in 50 steps in a row" in text
    assert f"each a {ends}:" in text
    assert "of at most 16 MiB" in text
    assert used < 8 * MiB
    assert 50 <= done <= 64
    each = re.search(r"by ([\d.]+) KiB a step", text)
    assert abs(float(each[1]) - a_step) < 4


@pytest.mark.parametrize(
    "name",
    [
        "accumulated_gradients",
        "long_forward_passes",
        "results_in_a_list_of_constant_size",
        "a_cache_that_stops_growing",
        "a_cache_that_is_used",
        "inference_of_a_model_that_does_not_fit",
    ],
)
def test_what_does_not_grow_for_ever_is_silent(run_python, name):
    result = found(run_python, name)
    assert (result["said"], result["logged"]) == ([], [])
