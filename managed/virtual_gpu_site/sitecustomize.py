"""What interpreters on virtual GPUs find: once torch is imported, CUDA's operators compute.

managed.virtual_gpu puts this folder into PYTHONPATH, so that workers, launchers and whatever else
the program starts find it too. The package itself is not imported. A sitecustomize that stands
further on in the path runs as it would have.
"""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent


def install() -> None:
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


class AfterTorch:
    """A finder that has torch found by the others, and acts when it has been imported."""

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def and_install(module: ModuleType) -> None:
                execute(module)
                install()

            spec.loader.exec_module = and_install  # type: ignore[method-assign]
        return spec


def next_site() -> None:
    """Runs the sitecustomize that this one stands before."""
    elsewhere = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec and spec.loader:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, AfterTorch())
next_site()
