"""Forks while bytes are on their way: a child has them, or an error says that they are lost."""

import os
import signal
import threading

import torch
from pressed import Hammer, MiB, on

from managed import _C

x = on(torch.full((4 * MiB,), 4.0))
end, found = threading.Event(), []


def use():
    with torch.no_grad():
        while not end.is_set():
            x.add_(0)


user = threading.Thread(target=use)
user.start()
with torch.no_grad(), Hammer():
    on(torch.ones(MiB // 4)).sum().item()
    for _ in range(3):
        while not _C.residency(0)["moving"]:
            pass
        child = os.fork()
        if child == 0:
            signal.alarm(5)
            try:
                os._exit(0 if x.sum().item() == 16 * MiB else 3)
            except RuntimeError:
                os._exit(1)  # lost, and it says so
        found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    end.set()
    user.join()
assert set(found) <= {0, 1}, found
