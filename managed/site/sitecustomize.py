"""What interpreters find that managed has started.

On virtual GPUs: once torch is imported, CUDA's operators compute; once Triton is, it says that it
cannot run. Under `managed run`: once torch is imported, managed.on() begins. managed.virtual_gpu
and `managed run` put this folder into PYTHONPATH, so that workers, launchers and whatever else the
program starts find it too. The package itself is not imported before torch is. A sitecustomize that
stands further on in the path runs as it would have.
"""

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent


def install(_: ModuleType) -> None:
    name = "managed._virtual_gpu"
    path = next(iter(sorted(HERE.parent.glob("_virtual_gpu.*.so"))))
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec
    try:
        module = importlib.util.module_from_spec(spec)
    except ImportError as error:
        raise ImportError(
            f"managed's kernels for virtual GPUs were built for another torch: {error}. Install "
            "managed again, so that it is built for this one."
        ) from error
    loader.exec_module(module)
    module.install()


def refuse(triton_driver: ModuleType) -> None:
    def libcuda_dirs() -> list[str]:
        raise RuntimeError(
            "Triton's kernels are code for a real GPU and cannot run on virtual GPUs. "
            "torch.compile does without them where it is told backend='aot_eager'."
        )

    triton_driver.libcuda_dirs = libcuda_dirs  # type: ignore[attr-defined]


def manage(_: ModuleType) -> None:
    """The package that is beside this folder, wherever the program would find another."""
    if "managed" not in sys.modules:
        package = HERE.parent
        spec = importlib.util.spec_from_file_location(
            "managed", package / "__init__.py", submodule_search_locations=[str(package)]
        )
        assert spec
        assert spec.loader
        sys.modules["managed"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    importlib.import_module("managed._on.run").start()


class After:
    """A finder that has a module found by the others, and acts when it has been imported."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.act = act

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def and_act(module: ModuleType) -> None:
                execute(module)
                self.act(module)

            spec.loader.exec_module = and_act  # type: ignore[method-assign]
        return spec


def next_site() -> None:
    """Runs the sitecustomize that this one stands before."""
    elsewhere = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec and spec.loader:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if "MANAGED_RUN" in os.environ:
    sys.meta_path.insert(0, After("torch", manage))
if "VIRTUAL_GPU_DEVICES" in os.environ:  # before the other, so that its operators are there first
    sys.meta_path[:0] = [After("triton.backends.nvidia.driver", refuse)]
    sys.meta_path.insert(1, After("torch", install))
next_site()
