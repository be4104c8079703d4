"""A forked child has what was spilled in its parent."""

import os
import signal
import sys

import torch
from pressed import MiB, on, whole

from managed import _C

x, y = on(torch.full((MiB,), 3.0)), on(torch.full((MiB,), 4.0))
_C.spill_all()
y.sum()
sys.stdout.flush()
child = os.fork()
with torch.no_grad():
    if child == 0:
        signal.alarm(20)  # ends a child that hangs
        x.mul_(2)
        assert (x + y)[9].item() == 10.0
        assert _C.spill_all() >= 2 and _C.is_spilled(x)
        assert x.sum().item() == 6.0 * MiB
        del x, y
        whole()
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert _C.is_spilled(x) and not _C.is_spilled(y)
    print((x + y)[9].item())
