"""A GPU made of software: `python -m managed.virtual_gpu --devices 4x8GiB script.py ...`.

Runs anybody's CUDA program on a machine without a card: torch's own CUDA build, over a runtime that
computes on the host. `x.is_cuda` is true and torch.cuda answers. Compiled kernels (Triton, NCCL,
other libraries') cannot run there; a launch is an error that says so.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import torch

from managed._budgets import parse_bytes

__all__ = ["environment", "main"]

HERE = Path(__file__).resolve().parent
SITE = HERE / "site"  # what interpreters find first
MAX_DEVICES = 8
LEAST = 128 * 2**20  # a context and a segment of torch's allocator
_FORM = re.compile(r"\s*(\d+)\s*[xX]\s*(\S.*)")


def sizes(text: str) -> list[int]:
    """Bytes of each device of "4x8GiB" or "8GiB,8GiB,4GiB". ValueError for anything else."""
    match = _FORM.fullmatch(text)
    each = [match[2]] * int(match[1]) if match else text.split(",")
    found = [parse_bytes(size) for size in each]
    if not 1 <= len(found) <= MAX_DEVICES:
        raise ValueError(f"managed: there can be 1 to {MAX_DEVICES} virtual GPUs, not {len(found)}")
    if min(found) < LEAST:
        raise ValueError(
            f"managed: a virtual GPU has at least {LEAST >> 20} MiB; its context takes a part of it"
        )
    return found


def _part(pattern: str) -> Path:
    """A compiled part of the package, or SystemExit with what to install."""
    if torch.version.cuda is None:
        raise SystemExit(
            f"managed.virtual_gpu: this torch ({torch.__version__}) is built without CUDA, so it "
            "has nothing to run on a GPU, virtual or not. Install a build with CUDA (on Linux the "
            "torch of the package index is one; it needs no card and no driver here), and then "
            "managed again, so that it is built for it."
        )
    found = sorted(HERE.glob(pattern))
    if not found:
        raise SystemExit(
            f"managed.virtual_gpu: {pattern} was not built, since CUDA's runtime headers were not "
            f"found. Install them (pip install 'nvidia-cuda-crt=={torch.version.cuda}.*'), or set "
            "CUDA_HOME, and then install managed again."
        )
    return found[-1]


def before(name: str, first: object) -> str:
    """A list of paths in the environment, with one more in front."""
    return os.pathsep.join(filter(None, [str(first), os.environ.get(name, "")]))


def start(program: list[str], added: dict[str, str]) -> NoReturn:
    """Becomes the interpreter that runs the program, with more in its environment."""
    sys.stdout.flush()
    sys.stderr.flush()
    flags: Any = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    os.execve(sys.executable, [sys.executable, *flags, *program], os.environ | added)


def environment(devices: str) -> dict[str, str]:
    """What a process has in its environment that finds virtual GPUs, its children included."""
    runtime = _part("libvirtual_gpu.so")
    _part("_virtual_gpu.*.so")

    return {
        "LD_PRELOAD": before("LD_PRELOAD", runtime),
        "PYTHONPATH": before("PYTHONPATH", SITE),
        "VIRTUAL_GPU_DEVICES": ",".join(map(str, sizes(devices))),
    }


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    # Options come first; what follows is the interpreter's, whatever it looks like.
    own = 0
    while words[own : own + 1] and words[own].startswith(("--", "-h")):
        own += 2 if words[own] == "--devices" else 1
    parser = argparse.ArgumentParser(
        prog="python -m managed.virtual_gpu",
        description="Runs a Python program on GPUs made of software.",
        usage="%(prog)s [--devices 4x8GiB] (script.py | -m module | -c code) [arguments ...]",
    )
    parser.add_argument("--devices", default="1x8GiB", help="4x8GiB, or 8GiB,4GiB (1x8GiB)")
    given = parser.parse_args(words[:own])
    program = words[own:]
    if not program:
        parser.error("there is no program to run")
    try:
        added = environment(given.devices)
    except (TypeError, ValueError) as error:
        parser.error(str(error).removeprefix("managed: "))
    start(program, added)


if __name__ == "__main__":
    main()
