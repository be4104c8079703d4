"""Builds and tests the conda recipe where no conda channel can be reached.

    python tools/conda_rehearsal.py FOLDER        for the Python and the torch that run this

A channel is made in FOLDER: its packages have the names for which the recipe asks, and the files of
this Python, this torch and the system's compiler. What conda itself does is real: the recipe is
rendered, its requirements solved, the package built, and its tests run in an environment that has
the package and what it requires. What is not shown: that the packages of a real channel are alike.
Needs py-rattler-build.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path

import rattler_build
import torch
from installed import needed_by

ROOT = Path(__file__).resolve().parents[1]
MINOR = ".".join(torch.__version__.split(".")[:2])
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
CUDA = torch.version.cuda
TARGET = "targets/x86_64-linux"  # where conda's packages of CUDA have their headers


def variants() -> dict[str, list[str]]:
    """Those of variants.yaml, with this Python, torch and CUDA alone."""
    told = rattler_build.VariantConfig.from_file(ROOT / "conda/variants.yaml").to_dict()
    here = {"python": PYTHON, "pytorch": MINOR, "cuda_compiler_version": CUDA or "None"}
    return told | {name: [value] for name, value in here.items()}


class Channel:
    """A folder that a solver can read, of packages made of files that are here."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.records = folder, {}
        (folder / "noarch").mkdir(parents=True)
        (folder / "linux-64").mkdir()

    def add(
        self, name: str, version: str, files: dict[str, Path] | None = None,
        build: str = "0", depends: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        entries = [
            rattler_build.FileEntry.from_paths(source, to) for to, source in (files or {}).items()
        ]
        made = rattler_build.assemble_package(
            name, version, "linux-64", build, self.folder / "linux-64", files=entries,
            depends=depends, compression_level=0, detect_prefix=False,
        )  # fmt: skip
        with made.path.open("rb") as package:
            digest = hashlib.file_digest(package, "sha256").hexdigest()
        self.records[made.path.name] = {
            "name": name, "version": version, "build": build, "build_number": 0,
            "depends": list(depends), "subdir": "linux-64", "sha256": digest,
            "size": made.path.stat().st_size,
        }  # fmt: skip

    def close(self) -> None:
        for subdir, records in (("linux-64", self.records), ("noarch", {})):
            told = {"info": {"subdir": subdir}, "packages": {}, "packages.conda": records}
            (self.folder / subdir / "repodata.json").write_text(json.dumps(told))


def files_of(distributions: Iterator[Distribution]) -> dict[str, Path]:
    """By their place in a prefix."""
    found = {}
    for distribution in distributions:
        for file in distribution.files or ():
            source = Path(os.path.abspath(str(distribution.locate_file(file))))
            if source.is_file() and source.suffix != ".pyc":
                found[str(source.relative_to(sys.prefix))] = source
    return found


def files_of_python() -> dict[str, Path]:
    base = Path(sys.base_prefix)
    library = f"lib/python{PYTHON}"
    found = {f"bin/{name}": base / f"bin/python{PYTHON}" for name in ("python", f"python{PYTHON}")}
    for folder in (library, f"include/python{PYTHON}"):
        for source in (base / folder).rglob("*"):
            place = str(source.relative_to(base))
            skip = ("site-packages/", "test/", "idlelib/", "config-")
            left_out = place.startswith(tuple(f"{library}/{name}" for name in skip))
            if source.is_file() and not left_out and source.suffix != ".pyc":
                found[place] = source
    return found


def headers_of_cuda() -> dict[str, Path]:
    found = {}
    for name in ("nvidia-cuda-runtime", "nvidia-cuda-crt"):
        for place, source in files_of(iter([importlib.metadata.distribution(name)])).items():
            if "/include/" in place:
                found[f"{TARGET}/include/{place.partition('/include/')[2]}"] = source
    return found


def channel(folder: Path) -> Channel:
    made = Channel(folder)
    for name in ("gcc_linux-64", "gxx_linux-64"):
        made.add(name, "14.2.0")
    made.add("sysroot_linux-64", "2.28")
    made.add("python", platform.python_version(), files_of_python(), "0_cpython")
    for name in ("pip", "setuptools", "ninja"):
        distribution = importlib.metadata.distribution(name)
        made.add(name, distribution.version, files_of(iter([distribution])), depends=("python",))
    process = f"cuda{CUDA.replace('.', '')}" if CUDA else "cpu"
    version = torch.__version__.partition("+")[0]
    made.add(
        "pytorch", version, files_of(needed_by("torch")), f"{process}_generic_py_0",
        (f"python {PYTHON}.*",),
    )  # fmt: skip
    if CUDA:
        made.add("cuda-version", CUDA)
        made.add("cuda-cudart-dev", f"{CUDA}.0", headers_of_cuda())
        made.add("cuda-crt-dev_linux-64", f"{CUDA}.0")
    made.close()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"conda_rehearsal: {folder} is not empty")
    place = channel(folder / "channel").folder
    recipe = rattler_build.Stage0Recipe.from_file(ROOT / "conda/recipe.yaml")
    (rendered,) = recipe.render(rattler_build.VariantConfig(variants()))
    tool = rattler_build.ToolConfiguration(test_strategy="native", keep_build=True)
    done = rendered.run_build(tool, folder / "output", [place.as_uri()])
    print(*done.log, sep="\n")
    for package in done.packages:
        held = rattler_build.Package.from_file(package)
        libraries = [name for name in held.files if name.endswith(".so")]
        print(package.name, *held.depends, *libraries, sep="\n  ")


if __name__ == "__main__":
    main()
