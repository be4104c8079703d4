"""Builds what a release consists of, into dist/, checks it, and prints its hashes.

    python tools/release.py                       every Python and torch of tools/release.toml
    python tools/release.py --python 3.11 --torch 2.14 --torch 2.15
    python tools/release.py --with ENV/bin/python an environment that has torch, setuptools, ninja

Each wheel is built from the sdist, in an environment of its own with a CUDA build of torch. Nothing
leaves this machine without --upload NAME, a repository of twine's configuration. --rehearse takes
a tree with changes and a version that is not dated yet, and cannot upload.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / "build/release"
# What a wheel may ask the loader for; torch's own are loaded by `import torch` and never shipped.
NEEDED = re.compile(r"lib(c10|c10_cuda|torch|torch_cpu|torch_python|stdc\+\+|gcc_s|m|c|dl)\.so|ld-")
# An assertion's file, with the place where it lay on the machine that compiled it.
PLACE = re.compile(rb"(?<![\w.])/[\w@+./-]+\.(?:c|cpp|h|hpp)\b")
SYMBOLS = ("GLIBC", "GLIBCXX", "CXXABI")


def run(*command: object, **environment: str) -> str:
    done = subprocess.run(
        [str(c) for c in command], cwd=ROOT, env=os.environ | environment, text=True,
        stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"release: {' '.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout


def version(root: Path = ROOT) -> str:
    told = re.search(r'^version = "(.+)"$', (root / "pyproject.toml").read_text(), re.M)
    assert told is not None
    return told[1]


def problems(root: Path, rehearse: bool = False) -> list[str]:
    """Where the tree does not agree on what is released."""
    wanted, found = version(root), []
    heading = re.search(r"^## (\S+) \((.+)\)$", (root / "CHANGELOG.md").read_text(), re.M)
    if heading is None or heading[1] != wanted:
        found.append(f"CHANGELOG.md begins with {heading and heading[1]}, not {wanted}")
    elif not rehearse and not re.fullmatch(r"\d{4}-\d\d-\d\d", heading[2]):
        found.append(f"CHANGELOG.md has {heading[2]!r} where {wanted} needs its date, 2026-01-31")
    for name, pattern in (
        ("managed/__init__.py", r'^__version__ = "(.+)"$'),
        ("CITATION.cff", r"^version: (.+)$"),
        ("conda/recipe.yaml", r'^  version: "(.+)"$'),
    ):
        told = re.search(pattern, (root / name).read_text(), re.M)
        if told is None or told[1] != wanted:
            found.append(f"{name} has version {told and told[1]}, not {wanted}")
    if not rehearse and run("git", "status", "--porcelain"):
        found.append("the tree has changes that are not committed")
    return found


def check(wheel: Path) -> dict[str, str]:
    """The newest version of each of SYMBOLS that a wheel needs; SystemExit if it is not fit."""
    newest: dict[str, tuple[int, ...]] = {}
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        names = archive.namelist()
        left = [n for n in names if not re.match(r"managed(/|-[^/]+\.dist-info/)", n)]
        left += [n for n in names if re.search(r"\.(pyc|o|tmp)$|__pycache__", n)]
        if left:
            raise SystemExit(f"{wheel.name} holds what does not belong there: {left}")
        for name in (n for n in names if n.endswith(".so")):
            library = archive.extract(name, folder)
            needed = re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-dW", library))
            foreign = [n for n in needed if not NEEDED.match(n)]
            if foreign:
                raise SystemExit(f"{wheel.name}: {name} needs {foreign}")
            if "RUNPATH" in (dynamic := run("readelf", "-dW", library)) or "RPATH" in dynamic:
                raise SystemExit(f"{wheel.name}: {name} has a run path")
            for kind, told in re.findall(r"\b([A-Z]+)_(\d[\d.]*)", run("readelf", "-VW", library)):
                if kind in SYMBOLS:
                    newest[kind] = max(newest.get(kind, (0,)), tuple(map(int, told.split("."))))
    return {kind: ".".join(map(str, v)) for kind, v in newest.items()}


def environment(python: str, torch: str) -> Path:
    """An interpreter that has a CUDA build of torch, and the headers of that CUDA."""
    place = ENVIRONMENTS / f"py{python}-torch{torch}"
    there = place / "bin/python"
    if not (place / "ready").exists():
        run(f"python{python}", "-m", "venv", place)
        pip = (there, "-m", "pip", "install", "-qq")
        run(*pip, "setuptools>=77", "wheel", "ninja", "numpy", f"torch=={torch}.*")
        cuda = run(there, "-c", "import torch; print(torch.version.cuda)").strip()
        if cuda == "None":
            raise SystemExit(f"release: the torch {torch} that pip gives here has no CUDA")
        run(*pip, f"nvidia-cuda-crt=={cuda}.*")
        (place / "ready").touch()
    return there


def sdist(python: str | Path, folder: Path) -> Path:
    code = f"from setuptools import build_meta as b; print(b.build_sdist({str(folder)!r}))"
    return folder / run(python, "-W", "ignore", "-c", code).split()[-1]


def build(python: str | Path, source: Path, folder: Path) -> Path:
    """A wheel for the torch of `python`, from an sdist; nothing is downloaded."""
    before = set(folder.glob("*.whl"))
    options = ("-qq", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder)
    cuda = json.loads(
        run(python, "-c", "import torch, json; print(json.dumps(torch.version.cuda))")
    )
    run(
        python, "-m", "pip", "wheel", source, *options,
        MANAGED_RELEASE="1", MANAGED_REQUIRE_CUDA="1" if cuda else "0",
    )  # fmt: skip
    (made,) = set(folder.glob("*.whl")) - before
    with zipfile.ZipFile(made) as archive:
        for name in (n for n in archive.namelist() if n.endswith(".so")):
            if told := PLACE.search(archive.read(name)):
                raise SystemExit(f"release: {made.name}: {name} names {told[0].decode()}")
    if "+pt" not in made.name:
        raise SystemExit(f"release: {made.name} does not say which torch it is for")
    return made


def main() -> None:
    import tomllib  # since Python 3.11

    matrix = tomllib.loads((ROOT / "tools/release.toml").read_text())
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", action="append", choices=matrix["python"])
    parser.add_argument("--torch", action="append", choices=matrix["torch"])
    parser.add_argument("--with", dest="there", action="append", metavar="PYTHON")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--upload", metavar="NAME", help="of a repository that twine knows")
    asked = parser.parse_args()
    if asked.upload and asked.rehearse:
        parser.error("a rehearsal is not uploaded")
    if found := problems(ROOT, asked.rehearse):
        raise SystemExit("release: " + "\nrelease: ".join(found))
    folder = asked.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise SystemExit(f"release: {folder} is not empty")
    pythons = asked.there or [
        environment(python, torch)
        for python in asked.python or matrix["python"]
        for torch in asked.torch or matrix["torch"]
    ]
    source = sdist(pythons[0], folder)
    wheels = [build(python, source, folder) for python in pythons]
    for wheel in wheels:
        needs = ", ".join(f"{kind} {told}" for kind, told in check(wheel).items())
        print(f"{wheel.name}: {wheel.stat().st_size} bytes, needs {needs}")
    sums = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}" for p in (source, *wheels)]
    (folder / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    print(*sums, sep="\n")
    if asked.upload:
        run(sys.executable, "-m", "twine", "upload", "--repository", asked.upload, source, *wheels)


if __name__ == "__main__":
    main()
