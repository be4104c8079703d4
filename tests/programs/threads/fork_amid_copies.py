"""Forks while two threads copy between devices: no child finds a lock held."""

import os
import signal
import threading

import torch
from threads_begin import on

import managed

done = threading.Event()


def copy_again_and_again(until):
    with torch.no_grad():
        a, b = on("sim:0", 4), on("sim:1", 64, 4)
        while not until():
            a.add_(0)
            a * b


# What torch makes at an operator's first call, it makes under a lock that no child finds free.
copy_again_and_again(iter([False, False, True]).__next__)
on("sim:0", 4) * on("sim:2", 8, 4)
managed.stats()
threads = [threading.Thread(target=copy_again_and_again, args=(done.is_set,)) for _ in range(2)]
for thread in threads:
    thread.start()
found = []
for _ in range(100):
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that hangs
        on("sim:0", 4) * on("sim:2", 8, 4)
        managed.stats()
        os._exit(0)
    found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
done.set()
for thread in threads:
    thread.join()
assert found == [0] * 100, found
