"""PyTorch tensors and modules that are placed on, and aligned over, several devices by a C core.

A managed tensor is an ordinary torch.Tensor with one more dispatch key. Operators that meet the key
bring their operands together; everything else stays as torch has it. Importing this package starts
no thread, initialises no driver and prints nothing; NO_MANAGED=1 makes it inert.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from managed import debug, errors, holders, integrations
from managed._attributes import Attributes
from managed._backend import INERT, C
from managed._modules import placed, wrappers
from managed._on.on import on
from managed._torch_patches import (
    checkpoint,
    compile,
    dlpack,
    einsum,
    fake,
    functions,
    graphs,
    kinds,
    launch,
    optim,
    reducer,
    reprs,
    saving,
    written,
)
from managed.data_parallel import DataParallel
from managed.errors import OutOfMemoryError
from managed.explain import explain, stats
from managed.hints import hint
from managed.holders import give_back
from managed.module import ManagedModule
from managed.pipeline import Pipeline
from managed.plans import load_plans, save_plans
from managed.profile import plot_memory, plot_moves, plot_timeline, profile, snapshot
from managed.settings import apply_environment, budget, frozen
from managed.sim import simulate, simulate_from_environment
from managed.summary import summary
from managed.tensor import ManagedTensor

__all__ = [
    "COPY_WARNING",
    "HEURISTIC_FUNCTION",
    "KEEP_MAPS",
    "LEARN_STEPS",
    "USE_HEURISTIC",
    "DataParallel",
    "DeviceManager",
    "ManagedModule",
    "ManagedTensor",
    "OutOfMemoryError",
    "Pipeline",
    "budget",
    "debug",
    "device_manager",
    "errors",
    "explain",
    "frozen",
    "give_back",
    "hint",
    "holders",
    "integrations",
    "load_plans",
    "on",
    "plot_memory",
    "plot_moves",
    "plot_timeline",
    "profile",
    "save_plans",
    "simulate",
    "snapshot",
    "stats",
    "summary",
]

__version__ = "0.1.0"

DeviceManager = C.DeviceManager

# Attributes with effect: managed._attributes has their getters and setters.
COPY_WARNING: int
"""Copies of one tensor to one device in a step that go without a warning: 16; 0 turns it off."""
KEEP_MAPS: bool
"""`True`: a mapped file serves as the host's copy of the tensors that were moved out of it.

Their bytes leave the device without a copy and are read from the file again, until they are written
there. The file must not be written meanwhile. `TypeError` for anything but a bool.
"""
LEARN_STEPS: bool
"""`True`: a device that is short of room learns from steps that repeat what to move ahead of need.

`False` forgets what was learned. `TypeError` for anything but a bool.
"""
USE_HEURISTIC: bool
"""`True`: sizes pass through `HEURISTIC_FUNCTION` before a device is looked for."""
HEURISTIC_FUNCTION: Callable[[int], int]
"""Bytes to look for when a tensor has so many; at first `size + int(1.5 * size ** 0.5)`.

Assigning has effect at once. `TypeError` for what cannot be called.
"""
HEUSRISTIC_FUNCTION: Callable[[int], int]
"""The same under its old misspelling, with a `DeprecationWarning`."""
device_manager: DeviceManager
"""The `DeviceManager` that `cuda()` asks; another one can be assigned."""

C.install(ManagedTensor)
if not INERT:
    checkpoint.install()
    compile.install()
    dlpack.install()
    einsum.install()
    fake.install()
    functions.install()
    graphs.install()
    reprs.install()
    kinds.install()
    launch.install()
    optim.install()
    placed.install()
    reducer.install()
    saving.install()
    written.install()
    wrappers.install()
sys.modules[__name__].__class__ = Attributes
apply_environment()
if not INERT and os.environ.get("MANAGED_SIM"):
    simulate_from_environment()
