"""A storage is lent in one thread while two threads copy what they hold."""

import sys
import threading
import time

import torch
from threads_begin import on

from managed import ManagedTensor

sys.setswitchinterval(1e-5)
until = time.monotonic() + 1


def lend():
    plain = torch.ones(4)
    while time.monotonic() < until:
        plain.as_subclass(ManagedTensor)


def copy():
    a, b = on("sim:0", 4), on("sim:1", 64, 4)
    held = a.untyped_storage()
    while time.monotonic() < until:
        a * b
    del held


threads = [threading.Thread(target=function) for function in (lend, copy, copy)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
