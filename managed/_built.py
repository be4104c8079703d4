"""Whether what is compiled here belongs to this Python and this torch; asked before it is loaded.

The build leaves a record beside the compiled module (tools/ninja_build.py writes it). Without a
record there is nothing to compare, and the loader's own error is explained instead.
"""

from __future__ import annotations

import json
import re
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch

__all__ = ["again", "check", "explained", "minor", "record"]

_HERE = Path(__file__).parent


def minor(version: str) -> str:
    """ "2.13" of "2.13.0+cu130"."""
    return ".".join(version.split(".")[:2])


def record() -> dict[str, Any]:
    """What the build wrote down: `managed`, `torch`, `cuda`, `cxx11_abi`; {} without a record."""
    try:
        text = (_HERE / f"_C{EXTENSION_SUFFIXES[0]}").with_suffix(".json").read_bytes()
        found = dict(json.loads(text))
    except (OSError, ValueError, TypeError):  # ValueError: not JSON; TypeError: no pairs
        return {}
    return found if found.keys() >= {"managed", "torch", "cuda", "cxx11_abi"} else {}


def check() -> None:
    """Raises ImportError where nothing is compiled for this Python, or it is for another torch."""
    if not any((_HERE / f"_C{suffix}").exists() for suffix in EXTENSION_SUFFIXES):
        raise ImportError(_nothing_compiled(), name="managed._C")
    built = record()
    if not built:
        return
    abi = torch.compiled_with_cxx11_abi()
    if minor(built["torch"]) != minor(torch.__version__) or built["cxx11_abi"] != abi:
        raise ImportError(_another(built), name="managed._C")
    # What was built with CUDA works with a torch that has none; the other way a part is missing.
    cuda, here = (_major(v) for v in (built["cuda"], torch.version.cuda))
    if here is not None and cuda != here:
        raise ImportError(_another(built), name="managed._C")


def explained(error: ImportError) -> ImportError:
    """The loader's error with what it most often means."""
    if told := re.search(r"version `([\w.]+)' not found", str(error)):
        why = f"It was built on a newer system: {told[1]} is in a library that is older here"
    else:
        here = _words(torch.__version__, torch.version.cuda)
        why = f"It was most likely built for another torch than this one, {here}"
    return ImportError(
        f"The compiled part of managed cannot be loaded: {error}. {why}.\n{again()}",
        name=error.name,
        path=error.path,
    )


def _another(built: dict[str, Any]) -> str:
    wanted, here = minor(built["torch"]), minor(torch.__version__)
    abi = "" if built["cxx11_abi"] == torch.compiled_with_cxx11_abi() else ", of another C++ ABI"
    cure = f"\nOr the torch that it was built for: pip install 'torch=={wanted}.*'"
    return (
        f"managed was built for {_words(wanted, built['cuda'])}, and this is "
        f"{_words(torch.__version__, torch.version.cuda)}{abi}.\n{again(built['managed'])}"
        f"{cure if wanted != here else ''}"
    )


def _nothing_compiled() -> str:
    others = sorted({p.name.split(".")[1] for p in _HERE.glob("_C.*.so")})
    if others:
        here = EXTENSION_SUFFIXES[0].split(".")[1]
        return f"managed is compiled for {', '.join(others)}, and this Python is {here}.\n{again()}"
    return (
        f"Nothing of managed is compiled in {_HERE}: it is a source tree that was not built.\n"
        "In the folder above: python setup.py build_ext --inplace"
    )


def again(version: str = "") -> str:
    """How to get one for this Python and this torch: its wheel, of a version that has one, and
    from source; one way a line."""
    force = "pip install --force-reinstall --no-deps"
    build = f"Build it for what is here, in its source: {force} --no-build-isolation ."
    if not version:
        return build
    cuda = (torch.version.cuda or "").replace(".", "")
    tag = f"pt{minor(torch.__version__).replace('.', '')}{f'cu{cuda}' if cuda else 'cpu'}"
    return f"Install its wheel for this torch: {force} 'managed=={version}+{tag}'\n{build}"


def _major(version: str | None) -> str | None:
    return version and version.split(".")[0]


def _words(version: str, cuda: str | None) -> str:
    return f"torch {version} {f'with CUDA {cuda}' if cuda else 'without CUDA'}"
