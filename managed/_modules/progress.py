"""A bar for moves that take longer than a second."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
import warnings
from types import TracebackType
from typing import Any

from managed._views.cells import in_notebook

__all__ = ["Progress"]

#: Seconds without a bar: what is done by then needs none.
PATIENCE = 1.0


def _watched() -> bool:
    """Whether the output is a terminal or a notebook, and not a file or a pipe."""
    stream = sys.stderr
    return in_notebook() or (stream is not None and not stream.closed and stream.isatty())


class Progress:
    """Context manager: `advance(nbytes)` tells what is done; tqdm is imported for a bar alone."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._done, self._begin = 0, 0.0
        self._bar: Any = None

    def __enter__(self) -> Progress:
        self._begin = time.monotonic()
        return self

    def advance(self, nbytes: int) -> None:
        """That many more bytes have arrived."""
        self._done += nbytes
        if self._bar is not None:
            self._bar.update(nbytes)
        elif time.monotonic() - self._begin > PATIENCE and self._done < self._total:
            self._begin = float("inf")  # asked once
            self._bar = self._open() if _watched() else None

    def _open(self) -> Any:
        if importlib.util.find_spec("tqdm") is None:
            return None
        with warnings.catch_warnings():  # a notebook without ipywidgets has a bar of text
            warnings.simplefilter("ignore")
            tqdm: Any = importlib.import_module("tqdm.auto").tqdm
        return tqdm(
            desc=self._what,
            total=self._total,
            initial=self._done,
            unit="B",
            unit_scale=True,
            unit_divisor=1024,
            leave=False,
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
