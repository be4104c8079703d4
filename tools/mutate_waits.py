"""Leaves out the waits of the product, one at a time, and says which of them no test misses.

A wait orders what streams, events and the host do, or tells what has to come first: an allocator
of a stream, a copy of the one before it, a block of the copy that still reads it. CALLS and PARTS
name the waits, in the .cpp files of FILES. In a copy of the tree each is put behind a question, so
one build serves for all; WAIT_LEFT_OUT says which one a process does without. A first run notes
which tests reach which wait, and then each wait has to be missed by one of the tests that reach it.
The tree itself stays as it is; the copy is kept in build/mutate-waits.

    python tools/mutate_waits.py [--list] [--only PATTERN] [--sample N] [--seed N] [--jobs N]
                                 [--tests FILE ...]

The interpreter is one whose torch has CUDA. The table says which test missed the wait, or SURVIVED.
The exit status is 1 when a wait survived. --sample takes so many of the waits at random.
"""

import argparse
import fnmatch
import os
import random
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
TREE = ROOT / "build" / "mutate-waits"
FILES = (
    "csrc/cuda/*.cpp",
    "csrc/torch/*/*.cpp",
    "csrc/sim/device/moves.cpp",
    "csrc/sim/group/work.cpp",
)
TESTS = [
    "tests/virtual_gpu/test_virtual_copies.py",
    "tests/virtual_gpu/test_virtual_crossing.py",
    "tests/virtual_gpu/test_virtual_runtime.py",
    "tests/virtual_gpu/test_virtual_gpu.py",
    "tests/steps/test_steps.py",
    "tests/residency/test_spill.py",
    "tests/residency/test_spill_crossing.py",
    "tests/torch_patches/test_saving.py",
    "tests/sim/test_sim_clock.py",
    "tests/sim/test_sim_memory.py",
    "tests/align/test_operands_beside.py",
    "tests/sim/test_sim_moves.py",
    "tests/sim/test_groups.py",
    "tests/residency/test_leaving_early.py",
]
# The same again, with virtual GPUs for devices.
TESTS_ON_CUDA = [
    "tests/steps/test_steps.py",
    "tests/residency/test_spill.py",
    "tests/residency/test_arena.py",
]
SECONDS = 900  # for the tests of one wait; one that hangs is caught
SECONDS_FOR_ALL = 3600  # for all tests, with every wait in its place

# Calls that wait, and what stands for a call that is left out. "file:name" is that name there only.
CALLS = {
    # CUDA's own
    "cudaStreamSynchronize": "cudaSuccess",
    "cudaEventSynchronize": "cudaSuccess",
    "cudaStreamWaitEvent": "cudaSuccess",
    "cudaEventRecord": "cudaSuccess",
    "synchronize": "void()",
    "synchronizeDevice": "void()",
    "recordStream": "void()",
    "record_stream": "void()",
    # csrc/cuda: copies
    "record": "void()",
    "lead": "void()",
    "lead_streams": "void()",
    "order_streams": "void()",
    "follow_source": "void()",
    "give_up": "void()",
    "follow_copies": "void()",
    "begun": "void()",
    "has_ended": "true",
    # csrc/cuda: streams
    "wait_for_streams": "void()",
    "wait_for_foreign": "void()",
    "mark_foreign": "void()",
    "know_stream": "void()",
    "come_after_copies": "void()",
    "note_stream": "void()",
    "streams.cpp:add": "true",
    # csrc/torch
    "order": "void()",
    "wait": "void()",
    "wait_for": "void()",
    "write_after_copy": "void()",
    "retire": "void()",
    "note_points": "void()",
    "use": "false",
    "record_stream_use": "false",
    "record_streams": "void()",
    # csrc/sim
    "stream_wait": "void()",
    "note_use": "void()",
    "hand_over": "void()",
    "host_wait": "void()",
    "wait_for_source": "void()",
    "stay_until": "void()",
}
# Names that mean something else elsewhere: tree and file.
ONLY_IN = {
    "record": "cuda/cop*.cpp",
    "wait_for": "torch/[ehs][aox]*.cpp",
    "wait": "[ct]*/[cemw]*.cpp",
    "order": "[tc]*/[!m]*.cpp",
    "give_up": "cuda/moves.cpp",
    "has_ended": "[tc]*/[!l]*.cpp",  # by which leaving.cpp only chooses
}

# What is no call of its own: an expression (the group) and what stands for it, or a statement,
# which is left out whole where nothing stands for it.
NO_COPY = "CopyPtr()"
PARTS = [
    # what a copy comes after
    (
        "csrc/torch/residency/executor.cpp",
        r"h->block\.get\(\), h->size\(\), urgency, (h->last),",
        NO_COPY,
    ),
    (
        "csrc/torch/residency/executor.cpp",
        r"after\[\] = \{(last_copy\(target\)), h->last\}",
        NO_COPY,
    ),
    (
        "csrc/torch/residency/executor.cpp",
        r"after\[\] = \{last_copy\(target\), (h->last)\}",
        NO_COPY,
    ),
    ("csrc/torch/residency/executor.cpp", r"const CopyPtr after = ([^;]+);", NO_COPY),
    # where the copy is remembered
    ("csrc/torch/residency/executor.cpp", r"(last_copy\(\w+\) = \*?copy);", None),
    (
        "csrc/torch/residency/executor.cpp",
        r"(\(memory \? last_copy\(memory\) : h\.last\) = copy);",
        None,
    ),
    ("csrc/torch/residency/executor.cpp", r"(h->last = (?:copy|std::move\(copy\)));", None),
    ("csrc/torch/residency/side_copies.cpp", r"(h\.last = copy);", None),
    ("csrc/torch/residency/side_copies.cpp", r"(alone\.lock\(\));", None),
    ("csrc/cuda/copy_streams.cpp", r"(copies_of\(from\)\.writes \|= [^;]+);", None),
    ("csrc/torch/tensor/adopt.cpp", r"(owned->last = std::exchange\(\*coming, nullptr\));", None),
    (
        "csrc/torch/residency/executor.cpp",
        r"exchange\(h->last, (to == MGD_HOST \? nullptr : copy)\)",
        NO_COPY,
    ),
    # what nothing orders, so that a wait or another way is taken
    ("csrc/torch/residency/side_copies.cpp", r"return (h\.was_lent\.load\(\)) \|\|", "false"),
    ("csrc/torch/residency/side_copies.cpp", r"(Hold::is_written\(&h\))", "false"),
    ("csrc/torch/residency/side_copies.cpp", r"(mgd_handle_is_pinned\(machine\(\), &h\))", "false"),
    # a block that is freed behind a copy, and behind streams
    ("csrc/torch/residency/executor.cpp", r"\(old, (copy \? copy : before), ", NO_COPY),
    ("csrc/torch/residency/executor.cpp", r"\((copied) \? free_idle_block", "true"),
    ("csrc/torch/*/*.cpp", r"free_(?:idle_)?block\([^(),]+, ((?:h->)?last|copy)[,)]", NO_COPY),
    ("csrc/torch/tensor/storage.cpp", r"if \((copy && block\.get_context\(\))\)", "false"),
    ("csrc/torch/tensor/storage.cpp", r"free_with\(block, (copy), ", NO_COPY),
    ("csrc/sim/device/moves.cpp", r"if \((copy)\) \{", NO_COPY),
    ("csrc/cuda/leaving.cpp", r"l\.serves = (last \|\| l\.users);", "true"),
    ("csrc/cuda/leaving.cpp", r"(\*users = last\.users);", None),
]

_NAMES = sorted({name.split(":")[-1] for name in CALLS}, key=len, reverse=True)
NAME = re.compile(rf"\b({'|'.join(_NAMES)})(?=\()")
DECLARED = re.compile(r"\b(?!return\b|else\b)\w+\s+$")  # a type stands before it: no call

# Stands before each file that has waits; files that are compiled together have it once.
QUESTION = """\
#ifndef LEFT_OUT
#define LEFT_OUT
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <utility>
namespace {
[[maybe_unused]] bool left_out(int n) {
  static const char *chosen = std::getenv("WAIT_LEFT_OUT"), *notes = std::getenv("WAITS_REACHED");
  if (notes) {
    static auto* mutex = new std::mutex;
    static auto* noted = new std::set<std::pair<int, std::string>>;
    const std::lock_guard<std::mutex> lock(*mutex);
    const char* test = std::getenv("PYTEST_CURRENT_TEST");
    if (test && noted->emplace(n, test).second)
      if (std::FILE* file = std::fopen(notes, "a")) {
        std::fprintf(file, "%d\\t%s\\n", n, test);
        std::fclose(file);
      }
  }
  return chosen && std::atoi(chosen) == n;
}
}
#endif
#line 1
"""


@dataclass
class Wait:
    number: int
    path: Path
    start: int  # of the expression, its object included
    end: int
    instead: str | None
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.text}"


def without_comments(source: str) -> str:
    """Comments and strings become spaces, so that places stay."""
    unsaid = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
    return re.sub(unsaid, lambda m: re.sub(r"[^\n]", " ", m[0]), source, flags=re.DOTALL)


def object_before(code: str, at: int) -> int:
    """Where `b->` or `f(x).` or `f<T>(x).` or `a::b::` before a name begins."""
    while at:
        if code[at - 1] == ")" and re.match(r"->|\.", code[at:]):
            depth = 0
            while True:
                at -= 1
                depth += {")": 1, "(": -1}.get(code[at], 0)
                if not depth:
                    break
            if code[at - 1] == ">":
                at = code.rindex("<", 0, at)
        elif code[at - 1].isalnum() or code[at - 1] in "_.:" or code[at - 2 : at] == "->":
            at -= 2 if code[at - 2 : at] == "->" else 1
        else:
            break
    return at


def end_of_call(code: str, at: int) -> int:
    """Behind the parenthesis that closes the one at `at`."""
    depth = 0
    for i in range(at, len(code)):
        depth += {"(": 1, ")": -1}.get(code[i], 0)
        if not depth:
            return i + 1
    raise SystemExit("mutate_waits: a parenthesis is not closed")


def places(path: Path, code: str, met: set[object]) -> Iterator[tuple[int, int, str | None]]:
    name = str(path.relative_to(ROOT))
    short = f"{path.relative_to(ROOT).parts[1]}/{path.name}"
    for m in NAME.finditer(code):
        here = f"{path.name}:{m[1]}"
        key = here if here in CALLS else m[1]
        start = object_before(code, m.start())
        if key not in CALLS or not fnmatch.fnmatch(short, ONLY_IN.get(m[1], "*")):
            continue
        if DECLARED.search(code[:start]):
            continue
        met.add(key)
        yield start, end_of_call(code, m.end()), CALLS[key]
    for part in PARTS:
        pattern, text, instead = part
        for m in re.finditer(text, code) if fnmatch.fnmatch(name, pattern) else ():
            met.add(part)
            yield m.start(1), m.end(1), instead


def waits() -> list[Wait]:
    """All of them; a name that is nowhere is an error."""
    found: list[Wait] = []
    met: set[object] = set()
    for path in sorted(p for pattern in FILES for p in ROOT.glob(pattern)):
        source = path.read_text()
        lines = source.split("\n")
        for start, end, instead in sorted(places(path, without_comments(source), met)):
            line = source.count("\n", 0, start) + 1
            text = lines[line - 1].strip()
            found.append(Wait(len(found) + 1, path, start, end, instead, line, text))
    gone = [name for name in (*CALLS, *PARTS) if name not in met]
    if gone:
        raise SystemExit(f"mutate_waits names what is nowhere in the sources: {gone}")
    return found


def asked(source: str, here: list[Wait]) -> str:
    """The source with a question before each of its waits."""
    added: list[tuple[int, int, str]] = []
    for w in here:
        if w.instead is None:
            added.append((w.start, -w.end, f"if (!left_out({w.number})) "))
        else:
            added.append((w.start, -w.end, f"(left_out({w.number}) ? {w.instead} : "))
            added.append((w.end, -w.start, ")"))
    for at, _, text in sorted(added, reverse=True):
        source = source[:at] + text + source[at:]
    return QUESTION + source


def copy_of_tree(found: list[Wait]) -> None:
    """Writes what is new, so that only that is built."""
    by_path: dict[Path, list[Wait]] = defaultdict(list)
    for w in found:
        by_path[w.path].append(w)
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    kept = {TREE / name for name in filter(None, names.split("\0")) if (ROOT / name).is_file()}
    for old in TREE.glob("csrc/**/*.[ch]*"):
        if old not in kept:
            old.unlink()
    for target in kept:
        path = ROOT / target.relative_to(TREE)
        data = path.read_bytes()
        if path in by_path:
            data = asked(data.decode(), by_path[path]).encode()
        if not target.exists() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            shutil.copymode(path, target)


def build() -> None:
    settings = {
        "CCACHE_BASEDIR": str(TREE),
        "CCACHE_NOHASHDIR": "1",
        "MANAGED_REQUIRE_CUDA": "1",
        "MANAGED_WERROR": "0",
    }
    command = [sys.executable, "-W", "ignore", "setup.py", "--quiet", "build_ext", "--inplace"]
    done = subprocess.run(
        command, cwd=TREE, env=os.environ | settings, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}\nmutate_waits: the copy was not built")


# ---- tests

ON_CUDA = "cuda/"  # before the name of a test that has virtual GPUs for devices


def pytest(
    tests: list[str], jobs: int, cuda: bool, *flags: str, **settings: str
) -> tuple[int, str]:
    """The status and what was printed."""
    seconds = SECONDS if "WAIT_LEFT_OUT" in settings else SECONDS_FOR_ALL
    command = [sys.executable, "-m"]
    folder, environment = TREE, os.environ | {"PYTHONPATH": str(TREE)}
    if cuda:
        command += ["managed.virtual_gpu", "--devices", "4x320MiB", "-m"]
        environment["MANAGED_TEST_DEVICES"] = "cuda"
        environment["PYTHONPATH"] = f"{TREE / 'tests'}:{TREE}"
    command += ["pytest", "-q", "-n", str(jobs), "--tb=no", "-p", "no:cacheprovider", *flags]
    # C programs, which know nothing of the product
    command += ["-k", "not test_the_runtime_alone", *tests]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment | settings,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, f"FAILED ::nothing-ended-within-{seconds}-s"
    return done.returncode, done.stdout + done.stderr


def tried(tests: list[str], jobs: int, cuda: bool) -> tuple[dict[int, set[str]], dict[str, float]]:
    """Runs all tests with every wait in its place: which reach which wait; how long each takes."""
    notes, times = TREE / "reached.txt", TREE / "times.xml"
    notes.write_text("")
    status, said = pytest(tests, jobs, cuda, f"--junitxml={times}", WAITS_REACHED=str(notes))
    if status:
        raise SystemExit(f"{said}\nmutate_waits: the tests fail with every wait in its place")
    before = ON_CUDA if cuda else ""
    took = {}
    files: dict[str, set[str]] = defaultdict(set)
    for case in ElementTree.parse(times).iter("testcase"):
        file = f"{case.attrib['classname'].replace('.', '/')}.py"
        test = f"{before}{file}::{case.attrib['name']}"
        took[test] = float(case.attrib["time"])
        files[file].add(test)
    reached: dict[int, set[str]] = defaultdict(set)
    for line in notes.read_text().splitlines():
        number, test = line.split("\t")
        name, _, phase = test.rpartition(" ")
        reached[int(number)].add(before + name)
        if phase == "(setup)":  # of a fixture, which may serve all tests of the file
            reached[int(number)] |= files[name.partition("::")[0]]
    return reached, took


def missed_by(wait: Wait, tests: list[str], jobs: int) -> str:
    """The first test that fails, or "" when none does."""
    for cuda in (False, True):
        chosen = [t.removeprefix(ON_CUDA) for t in tests if t.startswith(ON_CUDA) is cuda]
        if not chosen:
            continue
        status, said = pytest(chosen, jobs, cuda, "-x", WAIT_LEFT_OUT=str(wait.number))
        if status:
            failed = re.search(r"^(?:FAILED|ERROR) \S*?::(\S+)", said, re.MULTILINE)
            return failed[1] if failed else f"pytest, which ended with {status}:\n{said[-2000:]}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="only say which waits there are")
    parser.add_argument("--only", default="", metavar="PATTERN", help="those that match it")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of them, at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time (2)")
    parser.add_argument("--tests", nargs="+", metavar="FILE", help="these tests, and none on CUDA")
    options = parser.parse_args()
    found = waits()
    chosen = [w for w in found if re.search(options.only, str(w))]
    if options.sample is not None and options.sample < len(chosen):
        chosen = random.Random(options.seed).sample(chosen, options.sample)
    if options.list:
        print(*chosen, sep="\n")
        return 0
    copy_of_tree(found)
    build()
    reached, took = tried(options.tests or TESTS, options.jobs, False)
    if not options.tests:
        more, longer = tried(TESTS_ON_CUDA, options.jobs, True)
        took |= longer
        for number, tests in more.items():
            reached[number] |= tests
    survivors = 0
    for wait in chosen:
        tests = sorted(reached[wait.number], key=lambda t: took.get(t, 0.0))
        missed = missed_by(wait, tests, options.jobs)
        survivors += not missed
        print(f"{'caught' if missed else 'SURVIVED':8}  {wait}", flush=True)
        print(
            f"          by {missed}" if missed else f"          {len(tests)} tests reach it",
            flush=True,
        )
    print(f"{len(chosen) - survivors} of {len(chosen)} caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
