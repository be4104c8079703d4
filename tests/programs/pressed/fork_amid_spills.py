"""Forks while six threads use what leaves: locks are free in each child, and no child waits."""

import os
import signal
import threading

import torch
from pressed import Hammer, MiB, on

import managed
from managed import _C

mine, theirs = on(torch.full((MiB // 4,), 3.0)), on(torch.full((MiB // 4,), 4.0))
end, found = threading.Event(), []


def use():
    while not end.is_set():
        theirs.add_(0)


users = [threading.Thread(target=use) for _ in range(6)]
for user in users:
    user.start()
with torch.no_grad(), Hammer():
    mine.neg()
    on(torch.ones(MiB // 4)).sum().item()
    for _ in range(80):
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            fresh = on(torch.ones(MiB // 4)) * 2
            assert fresh.sum().item() == MiB // 2
            assert managed.stats()["spill"] >= 0 and _C.residency(0)
            assert mine.sum().item() == 3 * (MiB // 4)
            os._exit(0)
        found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    end.set()
    for user in users:
        user.join()
assert found == [0] * 80, found
assert mine.sum().item() == 3 * (MiB // 4) and theirs.sum().item() == 4 * (MiB // 4)
