"""Signals at any moment of operators that bring their operands home; prints how many came."""

import signal

import torch
from pressed import MiB, on, whole

import managed
from managed import _C

world = [on(torch.full((MiB // 4,), float(i))) for i in range(8)]
interrupted = 0
signal.signal(signal.SIGALRM, signal.default_int_handler)
with managed.budget("sim:0", "3MiB"):
    for k in range(60):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.0001 * k)
            while True:
                for t in world:
                    t.add_(1).sub_(1)
        except KeyboardInterrupt:
            interrupted += 1
        busy = [_C.residency(0)[name] for name in ("in_use", "moving", "pinned")]
        assert busy == [0, 0, 0], busy
    # An add_ whose sub_ did not follow: at most one for each interruption.
    values = [t[5].item() - i for i, t in enumerate(world)]
    assert all(v == int(v) >= 0 for v in values) and sum(values) <= interrupted, values
    assert all(t.min() == t.max() for t in world)
t = None
world.clear()
whole()
print(interrupted)
