"""The benchmarks run, and what they compare with is right: bounds on hand-made traces."""

import importlib
import itertools
import json
import os
import random
import re
import sys

import pytest
from support import interpreters
from support.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
sys.path.append(str(BENCHMARKS))  # scripts import each other by their names
MODULE = importlib.import_module("furthest")
parse, furthest, Infeasible = MODULE.parse, MODULE.furthest, MODULE.Infeasible
least = importlib.import_module("least").least
bound = importlib.import_module("bound")
MADE, READ, WRITTEN, DROPPED = range(4)


def program(text, sizes):
    """Operators with spaces between: letters are read, capitals written, "+a" is made, "-a" drops.

    "+ab" is the operator that reads b and makes a.
    """
    events, ticks, names = [], itertools.count(), {}

    def event(name, kind, tick):
        number = names.setdefault(name, len(names))
        events.append((number, sizes[name], tick, kind))

    for operator in text.split():
        if operator[0] == "-":
            for name in operator[1:]:
                event(name, DROPPED, next(ticks))
            continue
        made = operator[1] if operator[0] == "+" else ""
        tick = next(ticks)
        for name in operator[2:] if made else operator:
            event(name.lower(), WRITTEN if name.isupper() else READ, tick)
        if made:
            event(made, MADE, next(ticks))
    return parse(events)


# ---- traces


def test_results_belong_to_the_operator_that_made_them():
    p = program("ab +cB -c a", {"a": 1, "b": 2, "c": 4})
    assert p.moments == [{0: False, 1: False}, {1: True, 2: True}, {0: False}]
    assert p.sizes == {0: 1, 1: 2, 2: 4}
    assert p.lasting == {0, 1}
    assert p.largest() == 6


def test_what_was_made_before_or_stays_is_not_lasting():
    p = program("-a +b +cb -b", {"a": 1, "b": 2, "c": 4})
    assert p.moments == [{1: True}, {1: False, 2: True}]
    assert p.lasting == set()


def test_an_operator_that_reads_and_writes_a_storage_writes_it():
    p = program("aA", {"a": 3})
    assert p.moments == [{0: True}]


# ---- optima that are known


@pytest.mark.parametrize(
    ("text", "sizes", "room", "out", "back"),
    [
        ("a b a", {"a": 10, "b": 10}, 20, 0, 0),  # everything fits
        ("a b", {"a": 10, "b": 10}, 10, 0, 20),  # never written: only comes back
        ("A b", {"a": 10, "b": 10}, 10, 10, 20),  # one of them is written in each step
        ("A a b", {"a": 10, "b": 10}, 10, 10, 20),  # and read afterwards
        ("+a +b -b a -a", {"a": 10, "b": 10}, 10, 10, 10),  # an activation
        ("+a +b -b +c -a -c", dict.fromkeys("abc", 10), 10, 0, 0),  # nobody needs it again
        ("+a +b a -b +c a -c -a", dict.fromkeys("abc", 10), 10, 10, 20),  # copied once
        ("+a +b A -b +c a -c -a", dict.fromkeys("abc", 10), 10, 20, 20),  # written between
    ],
)
def test_both_find_it(text, sizes, room, out, back):
    p = program(text, sizes)
    copied = furthest(p, room)
    assert least(p, room) <= copied.out
    assert (copied.out, copied.back) == (out, back)
    assert least(p, room) == pytest.approx(out)
    assert least(p, room, both_ways=True) == pytest.approx(out + back)


def test_equal_clean_pages_in_turns():
    """Three in a room for two: all miss by LRU, half of them at best."""
    p = program("a b c", dict.fromkeys("abc", 10))
    two_steps = furthest(p, 20, steps=5).back + furthest(p, 20, steps=6).back
    assert two_steps == 30
    assert least(p, 20, both_ways=True) == pytest.approx(15)
    assert least(p, 20) == 0


def test_a_part_of_a_storage_may_be_away_in_the_bound_only():
    p = program("+a +b -b a -a", {"a": 10, "b": 8})
    assert furthest(p, 15) == (10, 10)
    assert least(p, 15) == pytest.approx(3)


def test_of_two_that_are_used_together_the_clean_one_leaves():
    p = program("w +a +z -z +c -c wa -a", {"w": 10, "a": 10, "z": 0, "c": 10})
    assert furthest(p, 20) == (0, 10)


def test_what_is_held_and_not_used_again_is_lost_by_an_oracle_only():
    p = program("+a a +z -z +b -b -a", {"a": 10, "z": 0, "b": 10})
    assert p.ends == {0: 3, 1: 2, 2: 3}
    for room, out in ((20, 0), (10, 10)):
        assert furthest(p, room) == (0, 0)
        assert least(p, room) == 0
        assert furthest(p, room, oracle=False) == (out, 0)
        for both in (False, True):
            bound = least(p, room, both_ways=both, oracle=False)
            assert bound == pytest.approx(out)


def test_what_is_dropped_soon_does_not_leave_first():
    p = program("+a +b +z -z a +z -z +c -c -a b -b", {"a": 10, "b": 10, "z": 0, "c": 10})
    assert furthest(p, 20, oracle=False) == (10, 10)
    p = program("x +a a +z -z +c -c +d -d -a +e x -e", dict.fromkeys("xacde", 10) | {"z": 0})
    assert furthest(p, 20, oracle=False).out == 0  # x was not written


def test_what_is_held_at_the_end_goes_there():
    p = program("x +g +z -z x +b -b", {"x": 1, "g": 10, "z": 0, "b": 10})
    assert furthest(p, 11, oracle=False) == (10, 0)
    assert least(p, 11, oracle=False) == pytest.approx(10)


def test_an_operator_that_does_not_fit():
    p = program("ab c", {"a": 10, "b": 10, "c": 1})
    for find in (furthest, least):
        with pytest.raises(Infeasible, match="needs 20"):
            find(p, 19)


def test_an_empty_trace_copies_nothing():
    assert furthest(parse([]), 0) == (0, 0)
    assert least(parse([]), 0) == 0


def best(p, room, price):
    """The cheapest step that ends as it began, by trying everything."""
    lasting = sorted(p.lasting)

    def total(storages):
        return sum(p.sizes[s] for s in storages)

    def subsets(of):
        return itertools.chain.from_iterable(
            itertools.combinations(of, n) for n in range(len(of) + 1)
        )

    def step(start):
        """(there, dirty) -> least cost, over all that may happen."""
        states = {start: 0}
        for t, moment in enumerate(p.moments):
            after = {}
            later = set().union(*p.moments[t + 1 :])
            dead = p.sizes.keys() - p.lasting - later
            known = p.lasting.union(*p.moments[:t])
            written = {s for s, is_written in moment.items() if is_written}
            for (there, dirty), cost in states.items():
                for gone in map(frozenset, subsets(there - moment.keys())):
                    now = (there - gone) | moment.keys()
                    if total(now) > room:
                        continue
                    back = total((moment.keys() - there) & known) if price == "both" else 0
                    state = frozenset(now - dead), frozenset(((dirty - gone) | written) - dead)
                    spent = cost + total(gone & dirty) + back
                    after[state] = min(spent, after.get(state, spent))
            states = after
        return states

    starts = [
        (frozenset(there), frozenset(dirty))
        for there in subsets(lasting)
        for dirty in subsets(there)
        if total(there) <= room
    ]
    return min(step(s).get(s, float("inf")) for s in starts)


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_is_below_what_can_be_and_furthest_is_not(seed):
    """Programs of a few operators, all schedules tried."""
    draw = random.Random(seed)
    sizes = {name: draw.randint(1, 9) for name in "abcdx"}
    operators = []
    for _ in range(5):
        names = draw.sample("abcd", draw.randint(1, 2))
        operators.append("".join(n.upper() if draw.random() < 0.4 else n for n in names))
    operators.insert(draw.randrange(3), "+x" + draw.choice("abcd"))
    operators += ["x" + draw.choice("abcd"), "-x"]
    p = program(" ".join(operators), sizes)
    for room in (p.largest(), p.largest() + 3, sum(p.sizes.values())):
        copied = [furthest(p, room, steps) for steps in range(20, 30)]  # it need not be periodic
        for price, both in (("out", False), ("both", True)):
            bound, optimum = least(p, room, both_ways=both), best(p, room, price)
            assert bound <= optimum + 1e-6
            mean = sum(c.out + (c.back if both else 0) for c in copied) / len(copied)
            assert bound <= mean + 1e-6


# ---- times


def test_a_trace_says_when_the_device_came_to_each_moment():
    """Storage 0 is read by the first operator, which makes 1; 2 is made from nothing; 1 is read."""
    events = [
        (0, 8, 1, READ, 100.0),
        (1, 8, 2, MADE, 130.0),
        (1, 8, 3, DROPPED, 130.0),
        (2, 8, 4, MADE, 150.0),
        (2, 8, 5, READ, 150.0),
    ]
    p = parse(events)
    assert p.moments == [{0: False, 1: True}, {2: True}, {2: False}]
    assert p.begins == [100.0, 130.0, 150.0]
    ran = [(150, 175), (100, 120), (120, 130), (130, 150)]  # the first operator ran two kernels
    assert bound.durations(p, ran) == [30, 20, 25]


LINK = bound.Link(1.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("text", "sizes", "room", "expected"),
    [
        ("a b", {"a": 10, "b": 10}, 20, 2),  # only the operators
        ("a b", {"a": 10, "b": 10}, 10, 22),  # both come back, each when the other has run
        ("a b", {"a": 10, "b": 10}, 15, 12),  # 15 a step would do for parts of storages
        ("A b", {"a": 10, "b": 10}, 10, 22),  # out beside in
        ("+a +b -b a -a", {"a": 10, "b": 10}, 10, 23),  # out, then back
        ("+a +b -b +c -a -c", dict.fromkeys("abc", 10), 10, 3),  # nobody needs it again
    ],
)
def test_times_that_are_known(text, sizes, room, expected):
    p = program(text, sizes)
    took = [1] * len(p.moments)
    assert bound.least_time(p, took, room, LINK) == pytest.approx(expected)


def test_each_copy_takes_its_latency():
    p = program("a b", {"a": 10**6, "b": 10**6})
    slow = bound.Link(1.0, 2.0, 7.0)
    assert bound.least_time(p, [1, 1], 10**6, slow) == pytest.approx(2 * (1 + 10**6 + 7))


def test_the_direction_that_takes_longer_counts():
    p = program("A b", {"a": 10, "b": 10})
    assert bound.least_time(p, [1, 1], 10, bound.Link(10.0, 1.0, 0.0)) == pytest.approx(13)


def test_no_time_for_what_does_not_fit_or_is_not_there():
    with pytest.raises(Infeasible, match="needs 20"):
        bound.least_time(program("ab c", {"a": 10, "b": 10, "c": 1}), [1, 1], 19, LINK)
    assert bound.least_time(parse([]), [], 0, LINK) == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_time_is_below_that_of_a_schedule(seed):
    """One copy after the other, none beside an operator; runs of operators make it no larger."""
    draw = random.Random(seed)
    sizes = {name: draw.randint(1, 9) for name in "abcdefx"}
    operators = []
    for _ in range(20):
        names = draw.sample("abcdef", draw.randint(1, 3))
        operators.append("".join(n.upper() if draw.random() < 0.4 else n for n in names))
    operators.insert(draw.randrange(3), "+x" + draw.choice("abcd"))
    operators += ["x" + draw.choice("abcd"), "-x"]
    p = program(" ".join(operators), sizes)
    took = [draw.randint(0, 5) for _ in p.moments]
    before, most = float("inf"), sum(p.sizes.values())
    for room in (*range(p.largest(), most, 3), most):
        found = bound.least_time(p, took, room, LINK)
        copied = [furthest(p, room, steps) for steps in range(20, 30)]  # it need not be periodic
        serial = sum(took) + sum(c.out + c.back for c in copied) / len(copied)
        assert sum(took) <= found <= min(before, serial) + 1e-6, f"seed {seed}, room {room}"
        assert bound.least_time(p, took, room, LINK, cuts=5) <= found + 1e-6
        before = found
    assert before == sum(took)


# ---- scripts


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory):
    """Runs a script and returns what it printed and wrote."""
    out = tmp_path_factory.mktemp("reports") / "report.json"

    def run(script, *arguments):
        done = interpreters.run(
            [BENCHMARKS / script, *arguments, "--out", out],
            env=interpreters.environment(PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
            timeout=300,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout, json.loads(out.read_text())

    return run


@pytest.fixture(scope="module")
def memory(benchmark):
    return benchmark("memory.py", "--quick", "--model", "mlp", "--fractions", "1.0,0.5,0.05")


@pytest.fixture(scope="module")
def peers(benchmark):
    return benchmark("peers.py", "--quick", "--model", "mlp")


@pytest.mark.slow
def test_memory_of_a_perceptron(memory):
    text, report = memory
    found = report["budgets"]["MLP"]["fractions"]
    assert "peak 30." in text
    for policy, row in found["1.0"]["policies"].items():
        assert set(row["moved"].values()) == {0}, policy
    bounds = found["0.5"]["bounds"]
    for policy, row in found["0.5"]["policies"].items():
        assert row["peak"] <= 1
        for known in bounds.values():
            out = row["moved"]["spill"] + row["moved"]["spare"]
            assert out >= known["least_out"] > 0, policy
            copied = out + row["moved"]["restore"]
            assert copied >= known["least_both"] > known["least_out"], policy
    assert bounds["kept"]["least_out"] > bounds["oracle"]["least_out"]  # gradients are held
    assert "out of memory" in found["0.05"]["why"]
    inference = report["inference"]
    for row in inference["policies"].values():
        assert row["spill"] == 0
        assert 0.8 * inference["used"] < row["restore"] <= inference["used"]
    assert 1.0 <= report["feasible"]["MLP"]["budget"] / report["feasible"]["MLP"]["operator"] < 1.3
    assert set(report["throughput"]) >= {"spill, 1 x 256 MiB", "restore, 1 x 256 MiB"}


@pytest.mark.slow
def test_peers_of_a_perceptron(peers):
    _, report = peers
    training, inference = (report[kind]["MLP"] for kind in ("training", "inference"))
    assert all(row["equal"] for row in (*training.values(), *inference.values()))
    for rows, names in ((training, ("save_on_cpu", "checkpoint")), (inference, ("cpu_offload",))):
        for name in names:
            assert rows[f"managed, as much as {name}"]["peak"] <= rows[name]["peak"]
    assert inference["cpu_offload"]["peak"] < inference["plain"]["peak"] / 2


@pytest.mark.slow
def test_training_beside_the_bound(benchmark):
    text, report = benchmark(
        "ideal.py", "--models", "bert-large", "--machines", "A100-40", "--over", "2"
    )
    assert "S1 A100-40 bert-large 70, 2x" in text
    (group,) = report["groups"]
    (cell,) = group["cells"]
    free = group["free"]
    assert group["work_s"] == pytest.approx(free["step_s"] * (1 - free["idle"]), rel=1e-6)
    assert free["idle"] < 0.001
    assert free["spill"] == free["restore"] == 0
    assert cell["budget"] == free["peak"] // 2
    assert cell["bound"] == pytest.approx(cell["cell"]["bound"], abs=0.02)  # that of the study
    assert {"lru", "greedy_dual"} <= set(cell["policies"])
    for policy, row in cell["policies"].items():
        assert 0.2 < row["part"] <= cell["bound"], policy
        assert row["peak"] <= cell["budget"], policy
        assert row["restore"] > 0, policy


@pytest.mark.slow
def test_steps_that_change(benchmark):
    _, report = benchmark("changing.py", "--loops", "some", "--parts", "0.75")
    (loop,) = report["loops"]
    (cell,) = loop["cells"]
    for policy, row in cell["policies"].items():
        assert row["moved"] > 0, policy
        assert row["peak"] <= cell["budget"], policy
        assert row["seconds"] > loop["free"]["seconds"], policy
    assert cell["over"] <= 1.03


@pytest.mark.slow
def test_a_model_that_streams(benchmark):
    text, report = benchmark("stream.py", "--models", "mlp", "--fractions", "1,0.5")
    assert "64 layers of 8192 x 8192" in text
    (model,) = report["models"]
    whole, half = model["cells"]
    assert whole["missing"] == 0
    assert half["missing"] == model["held"] - half["budget"] + model["twice"]
    assert half["least_s"] == pytest.approx(half["missing"] / 31.5e9)
    for policy, row in whole["policies"].items():
        assert row["over"] == pytest.approx(1), policy
    for policy, row in half["policies"].items():
        assert 1 <= row["over"] < 2.5, policy
        assert row["spill"] == 0, policy


@pytest.mark.slow
def test_models_side_by_side(benchmark):
    text, report = benchmark("parallel.py", "--quick", "--cases", "models")
    found = report["cases"]["models"]
    assert set(found) == {"1", "8"}
    for row in found.values():
        assert sum(row["parts"].values()) == pytest.approx(1)
        assert min(row["parts"].values()) >= -1e-9
    assert found["1"]["parts"]["early"] == pytest.approx(0, abs=0.01)
    assert 5 < found["1"]["elapsed_s"] / found["8"]["elapsed_s"] <= 8
    assert "speed-up" in text
    assert not report["missed"]


@pytest.mark.slow
def test_tiles_beside_a_task_runtime(benchmark):
    text, report = benchmark("runtimes.py", "--quick")
    assert "StarPU dmdas" in text
    bounds = report["bounds"]
    chain = 40 * 8251.0 + 39 * (2020.1 + 374.7)  # us
    assert bounds["cholesky"]["chain"] == pytest.approx(chain * 1e-6)
    (cholesky,) = report["programs"]["cholesky"]["1.0"].values()
    (gemm,) = report["programs"]["gemm"]["0.4"].values()
    for found, least in ((cholesky, bounds["cholesky"]), (gemm, bounds["gemm"])):
        assert found["seconds"] >= max(least.values())
        work = sum(1 - idle for idle in found["idle"]) * found["seconds"] / 4
        assert work == pytest.approx(least["work"], rel=1e-3)
    assert cholesky["moved"]["move"] == 820 * 960 * 960 * 4  # each tile once
    assert cholesky["moved"]["spill"] == 0
    assert cholesky["tflops"] > 0.95 * 6.88  # StarPU's best
    assert gemm["moved"]["spill"] > 0
    assert gemm["tflops"] > 7.5  # StarPU's own schedulers reach 3.2 to 9.8


# ---- the page


def generator():
    return importlib.import_module("memory_page")


@pytest.mark.slow
def test_the_section_holds_what_was_measured(memory, peers):
    text = generator().section(memory[1], peers[1])
    assert "| MLP, 50% of 30.7 | " in text
    assert "| MLP, 5% of 30.7 | one operator needs 3.0 | " in text
    assert "100%" not in text.split("###")[1]
    for name in ("`lru`", "checkpoint", "restore, 1 x 256 MiB", "MLP, inference: cpu_offload"):
        assert f"{name} |" in text, name
    rows = [line.count("|") for line in text.splitlines() if line.startswith("| MLP, 5")]
    assert rows == [11, 11]


@pytest.mark.parametrize("after", ["", "## Next\n\nmore\n"])
def test_the_section_is_replaced_and_nothing_else(after):
    title = generator().TITLE
    put = generator().replace_section
    page = put("# Page\n\nwords\n" + after, title + "\none\n")
    assert page.count(title) == 1
    again = put(page, title + "\ntwo\n")
    assert again == page.replace("one", "two")
    assert put(again, title + "\none\n") == page
    if after:
        middle = f"# Page\n\n{title}\nold\n\n{after}"
        assert put(middle, title + "\nnew\n") == middle.replace("old", "new")


def test_the_documentation_has_the_words_of_its_generator():
    page = (ROOT / "docs" / "memory.md").read_text()
    made = generator()
    for words in (made.HEAD, made.BUDGETS, made.FEASIBLE, made.THROUGHPUT, made.PEERS, made.LINES):
        pattern = re.sub(r"\\\{\w+\\\}", ".+", re.escape(words))
        assert re.search(pattern, page), f"run benchmarks/memory_page.py: {words}"


@pytest.mark.slow
def test_programs_in_c_run_on_the_core(benchmark):
    text, report = benchmark("following.py")
    assert "followed" in text
    assert len(report["found"]) == 3
    done = interpreters.run([BENCHMARKS / "scale.py", "--sizes", "1000"], timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "misses of 5,000 uses" in done.stdout
