"""Runs the code cells of a notebook in order, as a script: what `managed run x.ipynb` starts.

With IPython they may hold its magics. The first error ends it with status 1. The notebook's file is
only read.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

__all__: list[str] = []


def cells(path: str) -> list[str]:
    """The source of each code cell; SystemExit for a file that is no notebook."""
    try:
        told = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
        return ["".join(c["source"]) for c in told if c["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"managed run: {path} is no notebook: {error!r}") from None


def main() -> None:
    del sys.argv[0]  # this file
    path = sys.argv[0]
    sys.path[0] = str(Path(path).resolve().parent)
    sources = cells(path)
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    try:
        from IPython.core.interactiveshell import InteractiveShell
    except ImportError:
        for number, source in enumerate(sources, start=1):
            _plain(path, number, source, module)
        return
    shell: Any = InteractiveShell.instance(user_module=module)
    for source in sources:
        if not shell.run_cell(source).success:  # it has shown the traceback
            raise SystemExit(1)


def _plain(path: str, number: int, source: str, module: ModuleType) -> None:
    name = f"{path}, cell {number}"
    try:
        code = compile(source, name, "exec")
    except SyntaxError as error:
        if source.lstrip()[:1] in ("%", "!"):
            raise SystemExit(f"managed run: {name} needs IPython: pip install ipython") from error
        raise
    exec(code, vars(module))


if __name__ == "__main__":
    main()
