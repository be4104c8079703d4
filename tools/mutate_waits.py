"""Takes the waits out of the product, one at a time, and says which of them no test misses.

A wait is a call in csrc/cuda or csrc/torch that orders what streams, events and the host do, or
that tells the allocator of a stream: WAITS names them. Each is taken out in a copy of the tree,
which is then built and given to the tests of virtual GPUs, until one fails. The tree itself stays.

    python tools/mutate_waits.py [--list] [--only PATTERN] [--jobs N] [--tests FILE ...]

The interpreter is one whose torch has CUDA. The table says which test missed the wait, or SURVIVED.
The exit status is 1 when a wait survived.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ["tests/test_virtual_runtime.py", "tests/test_virtual_gpu.py"]
SECONDS = 900  # for the tests of one mutant; one that hangs is caught

# What takes a call's place and does nothing; its arguments stay, so that nothing becomes unused.
NOTHING = "[](const auto&...) {}"
SUCCESS = "[](const auto&...) { return cudaSuccess; }"
FALSE = "[](const auto&...) { return false; }"
WAITS = {
    "cudaDeviceSynchronize": SUCCESS,
    "cudaStreamSynchronize": SUCCESS,
    "cudaEventSynchronize": SUCCESS,
    "cudaStreamWaitEvent": SUCCESS,
    "cudaEventRecord": SUCCESS,
    "synchronize": NOTHING,
    "recordStream": NOTHING,
    "record_stream": NOTHING,
    "wait_for_streams": NOTHING,
    "wait_for_foreign": NOTHING,
    "mark_foreign": NOTHING,
    "retire_block": NOTHING,
    "retire": NOTHING,
    "use_stream": FALSE,
    "use": FALSE,
    "record_stream_use": FALSE,
    "record_streams": NOTHING,
}
FILE_LOCAL = {"wait_for_foreign", "mark_foreign"}  # without a use they would be a warning

NAME = re.compile(rf"\b({'|'.join(sorted(WAITS, key=len, reverse=True))})(?=\()")
DECLARED = re.compile(r"\b(?!return\b|else\b)\w+\s+$")  # a type stands before it: no call


@dataclass
class Wait:
    path: Path
    start: int  # of the expression that is called, its object included
    end: int
    line: int
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.text}"

    def mutant(self, source: str) -> str:
        instead = WAITS[self.name]
        if self.name in FILE_LOCAL:
            instead = f"(static_cast<void>({self.name}), {instead})"
        return source[: self.start] + instead + source[self.end :]


def without_comments(source: str) -> str:
    """Comments and strings become spaces, so that places stay."""
    unsaid = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
    return re.sub(unsaid, lambda m: re.sub(r"[^\n]", " ", m[0]), source, flags=re.DOTALL)


def object_before(code: str, at: int) -> int:
    """Where `b->` or `f(x).` or `a::b::` before a name begins."""
    while at:
        if code[at - 1] == ")" and re.match(r"->|\.", code[at:]):
            depth = 0
            while True:
                at -= 1
                depth += {")": 1, "(": -1}.get(code[at], 0)
                if not depth:
                    break
        elif code[at - 1].isalnum() or code[at - 1] in "_.:" or code[at - 2 : at] == "->":
            at -= 2 if code[at - 2 : at] == "->" else 1
        else:
            break
    return at


def waits() -> Iterator[Wait]:
    for path in sorted(p for d in ("cuda", "torch") for p in (ROOT / "csrc" / d).glob("*.[ch]*")):
        source = path.read_text()
        code, lines = without_comments(source), source.split("\n")
        for m in NAME.finditer(code):
            start = object_before(code, m.start())
            if DECLARED.search(code[:start]):
                continue
            line = source.count("\n", 0, start) + 1
            yield Wait(path, start, m.end(), line, m[1], lines[line - 1].strip())


def copy_of_tree(folder: Path) -> None:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)


def build(tree: Path) -> str:
    """What the compiler said when it failed."""
    settings = {"CCACHE_BASEDIR": str(tree), "CCACHE_NOHASHDIR": "1", "MANAGED_REQUIRE_CUDA": "1"}
    command = [sys.executable, "-W", "ignore", "setup.py", "--quiet", "build_ext", "--inplace"]
    done = subprocess.run(
        command, cwd=tree, env=os.environ | settings, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr if done.returncode else ""


def missed_by(tree: Path, tests: list[str], jobs: int) -> str:
    """The first test that fails, or "" when none does."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", str(jobs), "--tb=no", *tests]
    command += ["-k", "not test_the_runtime_alone"]  # C programs, which know nothing of the product
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"nothing ended within {SECONDS} s"
    if done.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) \S*?::(\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}"


def examine(wait: Wait, tree: Path, tests: list[str], jobs: int) -> str:
    path = tree / wait.path.relative_to(ROOT)
    source = path.read_text()
    path.write_text(wait.mutant(source))
    try:
        words = build(tree)
        if words:
            raise SystemExit(f"{wait}\n{words}\nmutate_waits: this mutant was not built: see WAITS")
        return missed_by(tree, tests, jobs)
    finally:
        path.write_text(source)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="only say which waits there are")
    parser.add_argument("--only", default="", metavar="PATTERN", help="those that match it")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time (2)")
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="FILE", help="these tests")
    options = parser.parse_args()
    chosen = [w for w in waits() if re.search(options.only, str(w))]
    if options.list:
        print(*chosen, sep="\n")
        return 0
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="mutate-waits-") as folder:
        tree = Path(folder)
        copy_of_tree(tree)
        words = build(tree) or missed_by(tree, options.tests, options.jobs)
        if words:
            raise SystemExit(f"mutate_waits: the tree fails as it is: {words}")
        for wait in chosen:
            missed = examine(wait, tree, options.tests, options.jobs)
            survivors += not missed
            print(f"{'caught' if missed else 'SURVIVED':8}  {wait}", flush=True)
            if missed:
                print(f"          by {missed}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
