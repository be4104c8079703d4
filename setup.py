"""Builds the extensions: managed._C, managed._sim and, with a CUDA torch, managed._cuda,
managed._virtual_gpu and the runtime of virtual GPUs.

Owns which sources make which extension; tools/ninja_build.py owns how they are built and
pyproject.toml the metadata.

Environment:
    MANAGED_ONLY       comma-separated extensions to build ("_sim"), or "none"
    MANAGED_DEBUG      0, 1 or 2: the MGD_DEBUG level of the checks compiled in (0)
    MANAGED_SANITIZE   address, thread, undefined or a comma-separated list of them
    MANAGED_WERROR     1 makes warnings errors
    MANAGED_UNIT       C++ files of one folder that are compiled together (12); 1: each alone
    MANAGED_RELEASE    1 makes a wheel for others: a version with +pt214cu130, no debug information,
                       no test hooks; "conda" the same without that version
    MANAGED_REQUIRE_CUDA  1 makes it an error when managed._cuda cannot be built
    MAX_JOBS           parallel compilations (number of processors)
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from setuptools import Extension, setup
from setuptools.command.egg_info import egg_info

sys.path.insert(0, str(Path(__file__).resolve().parent / "tools"))
from ninja_build import ROOT, TORCH, CleanBuild, NinjaBuild, Options, SharedLibrary


def sources(*patterns: str) -> list[str]:
    found = {p.relative_to(ROOT) for pattern in patterns for p in ROOT.glob(f"csrc/{pattern}")}
    return sorted(str(p) for p in found)


def cuda_include() -> Path | None:
    """The folder of CUDA's runtime headers: of this torch's pip packages, a toolkit, or triton."""
    site = TORCH.parent
    folders = [*sorted(site.glob("nvidia/cu*/include")), site / "nvidia/cuda_runtime/include"]
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    folders += [Path(home) / "include", site / "triton/backends/nvidia/include"]
    needed = ("cuda_runtime_api.h", "crt/host_config.h")  # the second has a pip package of its own
    return next((f for f in folders if all((f / n).is_file() for n in needed)), None)


def extensions() -> list[Extension]:
    core = sources("core/**/*.c")
    torch_libraries = ["c10", "torch_cpu", "torch", "torch_python"]
    found = [
        Extension(
            "managed._C",
            core + sources("torch/**/*.cpp", "python/*.c"),
            libraries=torch_libraries,
            include_dirs=[str(ROOT / "managed/include")],
        ),
        Extension(
            "managed._sim",
            core + sources("clock/*.c", "sim/**/*.cpp", "sim/**/*.c"),
            libraries=torch_libraries,
        ),
    ]
    include = cuda_include() if torch.version.cuda else None
    if include is not None:
        found += [
            Extension(
                "managed._cuda",
                sources("cuda/*.cpp"),
                libraries=["c10", "c10_cuda"],
                include_dirs=[str(include)],
            ),
            # The simulator's kernels once more, for CUDA's dispatch keys.
            Extension(
                "managed._virtual_gpu",
                sources("sim/kernels/*.cpp", "virtual_gpu/torch/*.cpp"),
                libraries=torch_libraries,
                define_macros=[("MANAGED_VIRTUAL_GPU", None)],
            ),
            # Once this is loaded, the loader finds it under the driver's name.
            SharedLibrary(
                "managed.libvirtual_gpu",
                sources("virtual_gpu/runtime/*.c"),
                "libcuda.so.1",
                include_dirs=[str(include)],
                extra_compile_args=["-D_GNU_SOURCE"],
            ),
        ]
    elif os.environ.get("MANAGED_REQUIRE_CUDA") == "1":
        raise SystemExit(
            "managed._cuda cannot be built: this torch is built without CUDA, or CUDA's "
            "runtime headers were not found (set CUDA_HOME)"
        )
    elif torch.version.cuda:
        print("managed._cuda is left out: CUDA's runtime headers were not found (set CUDA_HOME)")
    return found


# The C++ interface of torch holds within one minor version, so the wheel asks for that one.
MINOR = ".".join(torch.__version__.split(".")[:2])
CUDA = f"cu{torch.version.cuda.replace('.', '')}" if torch.version.cuda else "cpu"
# pip refuses a local version of what it builds from an sdist of an index, which has none.
# Conda names torch in the build string.
NAMED = os.environ.get("MANAGED_RELEASE") == "1"
LOCAL = f"+pt{MINOR.replace('.', '')}{CUDA}" if NAMED else ""


class LocalVersion(egg_info):
    """egg_info with LOCAL: as an option, the setup.cfg that an sdist holds would take it away."""

    def finalize_options(self) -> None:
        self.tag_build = LOCAL
        super().finalize_options()


setup(
    ext_modules=extensions(),
    cmdclass={"build": CleanBuild, "build_ext": NinjaBuild, "egg_info": LocalVersion},
    # Staged apart for each torch, as the objects are: a wheel must not take up another's modules.
    options={"build": {"build_base": f"build/{Options().tag}"}},
    install_requires=[f"torch=={MINOR}.*"],
)
