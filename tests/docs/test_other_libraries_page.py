"""What docs/other_libraries.md shows to authors of libraries: a holder in Python, and one in C.

Each block is run as it stands, on simulated devices. That in C calls cudaFree() and names cuda:0:
a library beside it frees bytes of simulated devices by that name, and the device is renamed.
"""

import os
import shlex
import subprocess
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from support.fences import blocks
from support.paths import ROOT

import managed

PAGE = ROOT / "docs/other_libraries.md"
FENCES = [body for language in ("python", "c") for _, body in blocks(PAGE, language)]
INCLUDE = Path(managed.__file__).parent / "include"
HEADERS = (f"-I{INCLUDE}", f"-I{sysconfig.get_path('include')}")


def shown(word):
    """The one block of the page with that word in it."""
    (body,) = [body for body in FENCES if word in body]
    return body


BEGIN = """
import ctypes, torch, managed
MiB = 2**20
managed.simulate(1, "64MiB")

def tensors(count):
    made = [torch.full((MiB,), float(i)) for i in range(count)]  # 4 MiB each
    return [x.as_subclass(managed.ManagedTensor).to("sim:0") for x in made]
"""

SHORTAGE = """
free = torch.sim.mem_get_info(0)[0]
assert free == 16 * MiB  # 48 are kept
managed.holders.add(holder)
there = tensors(8)
row = managed.holders.report("sim:0")[%r]
assert (row.given, row.cached) == (16 * MiB, 32 * MiB), row
assert row.asks > 0
assert managed.stats()["spill_bytes"] == 0
assert [x[0].item() for x in there] == list(range(8))
"""

IN_PYTHON = """
holder = Frames("sim:0")
for address in [holder.alloc(8 * MiB) for _ in range(6)]:
    holder.free(address)
assert holder.kept and not holder.live
"""

IN_C = """
driver = ctypes.CDLL(%r, ctypes.RTLD_GLOBAL)
free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(torch.sim.raw_free)
driver.frees_by(free)
import frames
library, holder = ctypes.CDLL(frames.__file__), frames.memory_holder()
for _ in range(6):
    address = torch.sim.raw_alloc(8 * MiB, "sim:0")
    library.frames_free(ctypes.c_void_p(address), ctypes.c_int64(8 * MiB))
"""

RENAMED = "-DcudaFree=free_of_the_test"  # torch may have loaded CUDA's own for all libraries
DRIVER = """
static void (*give)(void *);
void frees_by(void (*function)(void *)) { give = function; }
int cudaFree(void *address) { return give(address), 0; }
"""


def test_the_holder_in_python_is_asked(run_python):
    run_python(BEGIN + shown("def __gpu_memory_reclaim__") + IN_PYTHON + SHORTAGE % "Frames")


def test_the_holder_gets_room(run_python):
    """Its request takes 24 MiB where 8 are free; a second one finds what the first has freed."""
    run_python(
        BEGIN
        + shown("def __gpu_memory_reclaim__")
        + """
there = tensors(14)
frames = Frames("sim:0")
address = frames.alloc(24 * MiB)
assert address is not None
frames.free(address)
assert frames.alloc(24 * MiB) == address
assert [x[0].item() for x in there] == list(range(14))
"""
    )


def compiled(folder, name, source, *options):
    file = folder / f"{name}.c"
    file.write_text(source)
    compiler = shlex.split(os.environ.get("CC", "cc"))
    command = [*compiler, "-shared", "-fPIC", "-Wall", "-Werror", *options, file]
    library = folder / f"{name}{EXTENSION_SUFFIXES[0]}"
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}  # a sanitizer's
    subprocess.run([*command, "-o", library], check=True, env=environment)
    return str(library)


def test_the_holder_in_c_is_asked(run_python, tmp_path):
    driver = compiled(tmp_path, "driver", DRIVER, RENAMED)
    source = shown("struct managed_holder holder")
    assert '"cuda:0"' in source
    compiled(tmp_path, "frames", source.replace('"cuda:0"', '"sim:0"'), *HEADERS, RENAMED)
    path = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    run_python(path + BEGIN + IN_C % driver + SHORTAGE % "frames")


def test_a_library_in_c_asks_managed(run_python, tmp_path):
    includes = "#include <Python.h>\n#include <managed_holder.h>\n"
    asks = shown("torch->reclaim")
    assert '"cuda:0"' in asks
    source = f"{includes}void ask(PyObject *capsule, int64_t bytes) {{\n{asks}}}\n"
    library = compiled(tmp_path, "asks", source.replace('"cuda:0"', '"sim:0"'), *HEADERS)
    run_python(
        BEGIN
        + f"""
there = tensors(14)
ask = ctypes.PyDLL({library!r}).ask
ask(ctypes.py_object(managed.holders.capsule()), ctypes.c_int64(24 * MiB))
assert torch.sim.mem_get_info(0)[0] == 32 * MiB  # 8 were free
assert [x[0].item() for x in there] == list(range(14))
"""
    )
