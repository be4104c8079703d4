"""fork() beside a thread that moves storages takes no seconds."""

import os
import threading
import time

import torch
from pressed import MiB, on

from managed import _C

world = [on(torch.full((MiB,), float(i))) for i in range(8)]
end, longest = threading.Event(), 0.0


def leave_and_return():
    with torch.no_grad():
        while not end.is_set():
            _C.spill_all()
            for t in world:
                t.add_(0)


mover = threading.Thread(target=leave_and_return)
mover.start()
for _ in range(6):
    while not _C.residency(0)["moving"]:
        pass
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        os._exit(0)
    longest = max(longest, time.monotonic() - begin)
    os.waitpid(child, 0)
end.set()
mover.join()
assert longest < 1.5, longest
print("end")
