"""Where the tree is, its package if none is installed, and its core for programs in C."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["ROOT", "build_on_core"]

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # at the end: an installed package wins


def build_on_core(name: str, folder: Path, *flags: str) -> Path:
    """The program of benchmarks/<name>.c, compiled with the core into the folder."""
    program = folder / name
    sources = [ROOT / "benchmarks" / f"{name}.c", *sorted((ROOT / "csrc/core").rglob("*.c"))]
    options = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O2", "-Wall", "-Wextra", "-Werror"]
    command = ["cc", f"-iquote{ROOT / 'csrc'}", *options, *sources, *flags, "-o", program]
    subprocess.run([*command, "-lm", "-pthread"], check=True)
    return program
