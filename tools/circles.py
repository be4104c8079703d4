"""Prints the circles of calls between source files of a tree of csrc; exits with 1 for any.

In a circle each file needs, directly or through others, a function or a variable that another one
defines. Each file is compiled alone and without optimisation, and `nm` tells what its object
defines and needs; so an inline function counts for the files that use it. Torch's headers are
compiled once a tree. `python tools/circles.py [tree ...]`: by default all whose headers are
installed. Objects lie in build/circles.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ninja_build import ROOT, TORCH, Options, rules, write_if_changed

File = TypeVar("File", str, Path)
OUT = ROOT / "build/circles"
CUDA = [f"-isystem{d}" for d in sorted(TORCH.parent.glob("nvidia/*/include"))]
PUBLIC = f"-isystem{ROOT / 'managed/include'}"
TREES = ["core", "clock", "torch", "sim", "python", *(["cuda", "virtual_gpu"] if CUDA else [])]


def compile_alone(source: Path, target: Path, *flags: str | Path) -> Path:
    """Compiles as the default build does, but without ccache, optimisation and warnings."""
    rule = f"rule {'cc' if source.suffix == '.c' else 'cxx'}\n"
    command = next(r for r in rules(Options(), OUT) if r.startswith(rule)).split(" = ", 1)[1]
    words = [w for w in command.split(" $extra")[0].split() if not w.endswith("ccache")]
    words += ["-O0", "-g0", "-w", "-D_GNU_SOURCE", PUBLIC, *CUDA]
    subprocess.run([*words, *flags, source, "-o", target], check=True)
    return target


def symbols(source: Path) -> tuple[set[str], set[str]]:
    """What the object of a source defines for others, and what it needs."""
    folder = OUT / source.relative_to(ROOT / "csrc").parts[0]
    header: list[str | Path] = [] if source.suffix == ".c" else ["-include", folder / "headers.h"]
    extra = ["-DMANAGED_VIRTUAL_GPU"] if folder.name == "virtual_gpu" else []
    built = compile_alone(source, folder / f"{source.name}.o", *header, *extra, "-c")
    lines = subprocess.run(["nm", "-P", built], check=True, capture_output=True, text=True).stdout
    found = [line.split()[:2] for line in lines.splitlines()]
    return {n for n, kind in found if kind in "TDBRSC"}, {n for n, kind in found if kind == "U"}


def uses_of(tree: str) -> dict[str, set[str]]:
    """For each source file of a tree: the others there that define what it needs."""
    paths = sorted(p for p in (ROOT / "csrc" / tree).rglob("*") if p.is_file())
    (OUT / tree).mkdir(parents=True, exist_ok=True)
    if any(p.suffix == ".cpp" for p in paths):
        text = "\n".join(p.read_text() for p in paths if p.suffix in (".cpp", ".h"))
        lines = [
            f"#if __has_include({h})\n#include {h}\n#endif\n"
            for h in sorted(set(re.findall(r"^#include (<.*?>)", text, re.M)))
        ]
        header = OUT / tree / "headers.h"
        write_if_changed(header, "".join(lines))
        compile_alone(header, header.with_suffix(".h.gch"), "-xc++-header")
    sources = [p for p in paths if p.suffix in (".c", ".cpp")]
    with ThreadPoolExecutor(int(os.environ.get("MAX_JOBS", os.cpu_count() or 1))) as pool:
        found = dict(zip((p.name for p in sources), pool.map(symbols, sources), strict=True))
    owner = {symbol: name for name, (defined, _) in found.items() for symbol in defined}
    return {n: {owner[s] for s in needed if s in owner} - {n} for n, (_, needed) in found.items()}


def circles(uses: dict[File, set[File]]) -> set[tuple[File, ...]]:
    """The sets of files that use each other, directly or through others; sorted."""
    reached = {name: set(there) for name, there in uses.items()}
    for middle in uses:
        for name in uses:
            if middle in reached[name]:
                reached[name] |= reached[middle]
    return {tuple(sorted(m for m in reached[n] if n in reached[m])) for n in uses} - {()}


if __name__ == "__main__":
    found = [(tree, ring) for tree in sys.argv[1:] or TREES for ring in circles(uses_of(tree))]
    for tree, ring in found:
        print(f"csrc/{tree}: {len(ring)} files in one circle: {' '.join(ring)}")
    sys.exit(bool(found))
