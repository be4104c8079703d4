"""Programs of torch's CUDA build on the virtual GPU, each in an interpreter of its own."""

import textwrap
from pathlib import Path

import pytest
import torch

import managed
from support.paths import TESTS

__all__ = ["LIBRARY", "found_libraries", "needs_virtual_gpu", "runs_program"]

LIBRARY = Path(managed.__file__).parent / "libvirtual_gpu.so"
GIB = 1 << 30
CONTEXT = 64 << 20


def _reason():
    if torch.version.cuda is None:
        return "needs a torch that is built with CUDA"
    if torch.cuda.is_available():
        return "there is a real device: make gpu"
    if not LIBRARY.exists():
        return "the virtual GPU was not built: CUDA's headers were not found"
    return None


needs_virtual_gpu = pytest.mark.skipif(_reason() is not None, reason=str(_reason()))


@pytest.fixture(scope="module", name="libraries")
def found_libraries(tmp_path_factory):
    """Where the loader finds the library under the name of NVIDIA's management library too."""
    folder = tmp_path_factory.mktemp("libraries")
    (folder / "libnvidia-ml.so.1").symlink_to(LIBRARY)
    return folder


@pytest.fixture(name="run")
def runs_program(run_python, libraries):
    """Runs a program that begins with tests/virtual_gpu/preamble.py, on devices of 1 GiB."""
    here = str(TESTS / "virtual_gpu")

    def run(code, devices=1, **environment):
        start = f"import sys; sys.path.insert(0, {here!r})\nfrom preamble import *\n"
        settings = {
            "LD_PRELOAD": LIBRARY,
            "LD_LIBRARY_PATH": libraries,
            "VIRTUAL_GPU_DEVICES": ",".join([str(GIB + CONTEXT)] * devices),
            "VIRTUAL_GPU_CONTEXT_BYTES": CONTEXT,
            "VIRTUAL_GPU_KERNELS": "empty",
            "VIRTUAL_GPU_OPERATION_NS": 300_000,  # a plan of a step depends on how long it takes
            "MANAGED_ARENA": "0",  # most count what torch's allocator does by itself
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # some versions tell of each refused request
        }
        return run_python(start + textwrap.dedent(code), **(settings | environment))

    return run
