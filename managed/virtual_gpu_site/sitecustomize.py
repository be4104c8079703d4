"""What interpreters on virtual GPUs find: once torch is imported, CUDA's operators compute; once
Triton is, it says that it cannot run.

managed.virtual_gpu puts this folder into PYTHONPATH, so that workers, launchers and whatever else
the program starts find it too. The package itself is not imported. A sitecustomize that stands
further on in the path runs as it would have.
"""

import importlib.machinery
import importlib.util
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


sys.meta_path[:0] = [After("torch", install), After("triton.backends.nvidia.driver", refuse)]
next_site()
