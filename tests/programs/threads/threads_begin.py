"""How the programs of test_threads.py begin: three devices of 8 MiB, and a watchdog.

Tests put its text before that of short programs; programs that are files import it.
"""

import faulthandler
import gc
import sys
import threading
import time

import torch

import managed
from managed import _C, ManagedTensor, device_manager

__all__ = [
    "_C",
    "ManagedTensor",
    "device_manager",
    "faulthandler",
    "gc",
    "managed",
    "on",
    "sys",
    "threading",
    "time",
    "torch",
]

faulthandler.dump_traceback_later(60, exit=True)
torch.set_num_threads(1)
managed.simulate(devices=3, memory="8MiB")
managed.COPY_WARNING = 0


def on(device, *shape):
    return torch.ones(shape).as_subclass(ManagedTensor).to(device).unplace()  # it may settle
