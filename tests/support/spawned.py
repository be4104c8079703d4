"""Processes that a test spawns, and what they found out."""

import os
import pickle
import sys
import time
from pathlib import Path

import torch
import torch.multiprocessing as mp

__all__ = ["LIMIT", "answer", "spawn"]

LIMIT = 120  # seconds until a process is taken for stuck


def answer(rank, work, world, folder):
    """Ends the process without taking the interpreter down: a thread of torch's engine that has
    ended a backward pass may still take the GIL, which aborts the process then (traps.md)."""
    torch.set_num_threads(1)
    result = work(rank, world, folder)
    Path(folder, f"{work.__name__}{rank}").write_bytes(pickle.dumps(result))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def spawn(work, folder, world=2):
    """What `work(rank, world, folder)` returns in each of `world` processes, or what it raises.

    Each process that outlives LIMIT is killed. `work` is in a file that a child can import.
    """
    deadline = time.monotonic() + LIMIT
    running = mp.spawn(answer, (work, world, str(folder)), nprocs=world, join=False)
    try:
        while not running.join(timeout=1):
            assert time.monotonic() < deadline, f"{work.__name__} is stuck"
    finally:
        for process in running.processes:
            process.kill()
    return [pickle.loads(Path(folder, f"{work.__name__}{r}").read_bytes()) for r in range(world)]
