"""How sources become shared objects: setuptools asks, ninja compiles and links.

Knows nothing of which extensions there are (setup.py lists them). Dependency files make a second
build compile only what changed; objects of different torches, debug levels and sanitizers live in
folders of their own; one build at a time uses a folder. Modules are linked without a run path:
`import torch` has loaded the libraries before.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from setuptools import Extension
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parents[1]
TORCH = Path(torch.__file__).resolve().parent

# What is given to others: debug information is left out, and what only tests and benchmarks call.
RELEASE = os.environ.get("MANAGED_RELEASE", "0") != "0"
# Sources that name it are compiled apart for a release; other objects serve both (core/testing.h).
HOOKS = "MANAGED_TEST_HOOKS"
# An sdist that was unpacked: no other build's objects are there, so a release has its own flags.
UNPACKED = (ROOT / "PKG-INFO").is_file()

# Templates of these take longer than torch's headers do, so they would hold up the rest of a unit.
# A file of test hooks is alone so that a release does not compile the rest of its unit again, and
# one that needs no header of torch's because it is compiled at once.
ALONE = {"typed.cpp", "testing_api.cpp", "file_map.cpp"}
STRICT = ["-Wall", "-Wextra", "-Wshadow"]
STRICT_C = ["-Wconversion", "-Wstrict-prototypes", "-Wmissing-prototypes", "-Wundef"]
# Only the module's entry point leaves a shared object, templates of libstdc++ included.
EXPORTS = "{ global: PyInit_*; local: *; };\n"


@dataclass
class Options:
    """What the environment asked for; its tag keeps objects of different builds apart."""

    debug: str = field(default_factory=lambda: os.environ.get("MANAGED_DEBUG", "0"))
    sanitize: str = field(default_factory=lambda: os.environ.get("MANAGED_SANITIZE", ""))
    werror: bool = field(default_factory=lambda: os.environ.get("MANAGED_WERROR", "0") == "1")
    unit: int = field(default_factory=lambda: int(os.environ.get("MANAGED_UNIT", "12")))

    def __post_init__(self) -> None:
        if self.debug not in ("0", "1", "2"):
            raise SystemExit(f"MANAGED_DEBUG is {self.debug!r}; it is 0, 1 or 2")
        for name in filter(None, self.sanitize.split(",")):
            if name not in ("address", "thread", "undefined"):
                raise SystemExit(
                    f"MANAGED_SANITIZE names {name!r}; it is address, thread or undefined"
                )

    @property
    def tag(self) -> str:
        # Another virtual environment may hold the same version at another place.
        place = hashlib.sha256(f"{TORCH}{sys.version}".encode()).hexdigest()[:8]
        sanitize = self.sanitize.replace(",", "+")  # a comma would end an option to the linker
        return "-".join(filter(None, [torch.__version__, place, f"d{self.debug}", sanitize]))

    def shared(self) -> list[str]:
        flags = ["-O2", "-g1", "-fPIC", "-fvisibility=hidden", "-pthread"]
        flags += [f"-DMGD_DEBUG={self.debug}", *STRICT]
        if self.sanitize:
            flags += [f"-fsanitize={self.sanitize}", "-fno-omit-frame-pointer"]
        if "thread" in self.sanitize:
            flags.append("-Wno-tsan")  # torch's headers use a fence, which it cannot follow
        if self.werror:
            flags.append("-Werror")
        if RELEASE and UNPACKED:
            # Assertions name their file, but not where it lay. Of two that fit the last counts.
            flags += [f"-ffile-prefix-map={escape(p)}/=" for p in (ROOT, TORCH.parent)]
        return flags


def escape(path: str | Path) -> str:
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


class SharedLibrary(Extension):
    """A library that is no Python module: C alone, a name of its own; it says what it exports."""

    def __init__(self, name: str, sources: list[str], soname: str, **keywords: list[str]) -> None:
        super().__init__(name, sources, **keywords)
        self.soname = soname


class CleanBuild(build):
    """build that forgets what an earlier one staged: a deleted module has no place in a wheel."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class NinjaBuild(build_ext):
    """build_ext that leaves compiling and linking to ninja."""

    user_options: ClassVar[list[tuple[str, str | None, str]]] = [
        *build_ext.user_options,
        ("only=", None, "comma-separated extensions to build (_C, _sim, _cuda), or none"),
    ]

    def initialize_options(self) -> None:
        super().initialize_options()
        self.only: str | None = os.environ.get("MANAGED_ONLY")

    def run(self) -> None:
        self.failed = False
        super().run()  # builds, and then copies in place when asked to
        if self.failed:
            raise SystemExit("managed was not built: the compiler's messages stand above")

    def build_extensions(self) -> None:
        if self.only:
            names = self.only.split(",")
            self.extensions = [e for e in self.extensions if e.name.split(".")[-1] in names]
        if not self.extensions:
            return
        options = Options()
        folder = ROOT / "build" / options.tag
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "lock"):
            (folder / "exports.map").write_text(EXPORTS)
            outputs = self.write_ninja(folder, options)
            self.failed = not self.run_ninja(folder)
            # What could be linked is put in place even when another extension failed.
            self.extensions = [e for e, built in outputs if built.exists()]
            for extension, built in outputs:
                if built.exists():
                    self.put(built, Path(self.get_ext_fullpath(extension.name)))

    def put(self, built: Path, target: Path) -> None:
        replace(built, target)
        if RELEASE:
            strip = os.environ.get("STRIP", "strip")  # conda names its own
            subprocess.run([strip, "--strip-debug", str(target)], check=True)
        if target.name.startswith("_C."):  # managed/_built.py reads it before it loads the module
            record = {
                "managed": self.distribution.get_version().partition("+")[0],
                "torch": torch.__version__,
                "cuda": torch.version.cuda,
                "cxx11_abi": torch.compiled_with_cxx11_abi(),
            }
            target.with_suffix(".json").write_text(json.dumps(record) + "\n")

    def get_ext_filename(self, fullname: str) -> str:
        last = fullname.split(".")[-1]  # setuptools asks with the package and without
        if any(isinstance(e, SharedLibrary) and e.name.endswith(last) for e in self.extensions):
            return f"{fullname.replace('.', '/')}.so"
        return str(super().get_ext_filename(fullname))

    def copy_extensions_to_source(self) -> None:
        library = Path(self.build_lib)
        for extension in self.extensions:
            name = self.get_ext_filename(extension.name)
            self.put(library / name, ROOT / name)

    def write_ninja(self, folder: Path, options: Options) -> list[tuple[Extension, Path]]:
        lines = rules(options, folder)
        outputs, seen = [], set()
        for extension in self.extensions:
            objects = []
            macros = [name for name, _ in extension.define_macros]
            extra = [*extension.extra_compile_args, *(f"-D{name}" for name in macros)]
            extra += [f"-isystem {escape(d)}" for d in extension.include_dirs]
            for source in units(extension.sources, folder.joinpath("units", *macros), options.unit):
                name = source.relative_to(folder if source.is_relative_to(folder) else ROOT)
                bare = RELEASE and HOOKS in source.read_text()
                obj = folder.joinpath("obj", *macros, *["release"] * bare, f"{name}.o")
                objects.append(escape(obj))
                if obj not in seen:  # two extensions link the core
                    rule = "cc" if source.suffix == ".c" else "cxx"
                    lines += [f"build {escape(obj)}: {rule} {escape(source)}"]
                    lines += [f"  extra = {' '.join([*extra, *[f'-D{HOOKS}=0'] * bare])}"]
                    seen.add(obj)
            file = Path(self.get_ext_filename(extension.name)).name
            built = folder.joinpath(*["release"] * RELEASE, file)
            if isinstance(extension, SharedLibrary):
                lines += [f"build {escape(built)}: link_c {' '.join(objects)}"]
                lines += [f"  soname = {extension.soname}"]
            else:
                libraries = " ".join(f"-l{name}" for name in extension.libraries)
                exports = f"{escape(folder)}/exports.map"
                lines += [f"build {escape(built)}: link {' '.join(objects)} | {exports}"]
                lines += [f"  libraries = {libraries}"]
            outputs.append((extension, built))
        write_if_changed(folder / "build.ninja", "\n".join(lines) + "\n")
        return outputs

    def run_ninja(self, folder: Path) -> bool:
        jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
        command = [find_ninja(), "-C", str(folder), "-j", jobs, "-k", "0"]
        if not self.verbose:
            command.append("--quiet")
        # Lets ccache know a file again that lies in another copy of the tree.
        shared = {"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"}
        return subprocess.run(command, check=False, env=shared | os.environ).returncode == 0


def units(sources: list[str], folder: Path, size: int) -> list[Path]:
    """The files to compile for `sources`: C as it is, C++ joined into files that are written here.

    Nearly all of a C++ file's time goes to torch's headers, so a unit includes up to `size` files
    of one tree (csrc/torch), in the order of its folders. Two names of one unit that clash are a
    compile error. The units of a tree have about the same number of files, and a unit is written
    only when its list has changed.
    """
    files = [Path(s) for s in sources]
    found = [ROOT / f for f in files if f.suffix == ".c" or f.name in ALONE or size == 1]
    by_tree: dict[Path, list[Path]] = {}
    for file in files:
        if ROOT / file not in found:
            by_tree.setdefault(Path(*file.parts[:2]), []).append(file)
    for parent, members in by_tree.items():
        count = -(-len(members) // size)
        for i in range(count):
            part = members[i * len(members) // count : (i + 1) * len(members) // count]
            unit = folder / f"{'_'.join(parent.parts)}_{i}.cpp"
            write_if_changed(unit, "".join(f'#include "{file}"\n' for file in part))
            found.append(unit)
    return found


def write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def rules(options: Options, folder: Path) -> list[str]:
    """The head of build.ninja: one rule a language, one to link."""
    launcher = shutil.which("ccache") or ""
    cc = f"{launcher} {os.environ.get('CC', 'gcc')}".strip()
    cxx = f"{launcher} {os.environ.get('CXX', 'g++')}".strip()
    python = escape(sysconfig.get_path("include"))
    includes = [f"-isystem {escape(TORCH / 'include')}"]
    includes += [f"-isystem {escape(TORCH / 'include/torch/csrc/api/include')}"]
    includes.append(f"-iquote {escape(ROOT)}")  # units name their files from there
    abi = int(torch.compiled_with_cxx11_abi())
    shared = " ".join([*options.shared(), f"-iquote {escape(ROOT / 'csrc')}", f"-isystem {python}"])
    c_flags = ["-std=c11", *STRICT_C, *(["-DNDEBUG"] if options.debug == "0" else [])]
    # NDEBUG always: torch's inline assertions are those of the libraries, which were built with it.
    cxx_flags = ["-std=c++20", "-DNDEBUG", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", *includes]
    # gcc 12 reports the empty state of an inlined std::optional, and instrumented code of any kind.
    cxx_flags.append("-Wno-maybe-uninitialized")
    sanitize = f"-fsanitize={options.sanitize}" if options.sanitize else ""
    link = f"-shared -pthread -Wl,--as-needed -Wl,--version-script={escape(folder)}/exports.map"
    compile_rule = "  command = {} $extra -MMD -MF $out.d -c $in -o $out"
    deps = "  depfile = $out.d\n  deps = gcc"
    inputs = f"$in -L{escape(TORCH / 'lib')} $libraries"
    return [
        "ninja_required_version = 1.5",
        "rule cc\n" + compile_rule.format(f"{cc} {shared} {' '.join(c_flags)}"),
        f"{deps}\n  description = CC $in",
        "rule cxx\n" + compile_rule.format(f"{cxx} {shared} {' '.join(cxx_flags)}"),
        f"{deps}\n  description = CXX $in",
        f"rule link\n  command = {cxx} {sanitize} {link} {inputs} -o $out",
        "  description = LINK $out",
        f"rule link_c\n  command = {cc} {sanitize} -shared -pthread -Wl,-z,defs "
        "-Wl,-soname,$soname $in -ldl -o $out",
        "  description = LINK $out",
    ]


def find_ninja() -> str:
    try:
        import ninja
    except ImportError:
        found = shutil.which("ninja")
        if found is None:
            raise SystemExit("managed needs ninja to build: pip install ninja") from None
        return found
    return str(Path(ninja.BIN_DIR) / "ninja")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One build at a time in a folder; others wait."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def replace(built: Path, target: Path) -> None:
    """Puts a new inode in place: a process that has the old module mapped keeps it whole."""
    if target.exists() and target.stat().st_mtime_ns == built.stat().st_mtime_ns:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(f".{os.getpid()}.tmp")
    shutil.copy2(built, temporary)
    temporary.replace(target)
