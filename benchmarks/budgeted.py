"""One model on one simulated device under a budget: what it holds and moves, and how long it takes.

Bytes are counted by the library and repeat exactly. Time is the CPU time of the process, because
backward passes run in threads of their own; the same model is timed under the budget and without
it in turns, because a machine drifts.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import furthest
import torch
from least import least
from measure import Summary, interleave, ratios
from training import DEVICE, Model, Trained

import managed
from managed import _C

__all__ = [
    "LEARNED",
    "POLICIES",
    "Pressed",
    "bounds",
    "choose",
    "free",
    "managed_on",
    "policies",
    "pressed",
    "trace",
    "vacated",
    "without_handle",
]

POLICIES = ("lru", "clean_first", "greedy_dual")
LEARNED = "learned"  # as the default one until the step repeats, and then by a plan
ON_DEMAND = "on demand"  # the same, but nothing comes back before it is needed
# The same, from a record that is wrong: times by up to a factor of two and a fifth of noise; and of
# the steps that follow, one operator in 200 is not seen, and as many are seen that are none.
DISTURBED = "disturbed"
DISTURBANCE = 12345  # the seed of it
SETTLE, MEASURED = 3, 3  # steps
KINDS = ("spill", "spare", "drop", "restore")


def policies() -> list[str]:
    """Those that a user can have: with learning from repeated steps."""
    return [*POLICIES, LEARNED]


def choose(policy: str) -> None:
    """From now on who leaves is chosen like that, and nothing that was learned before counts."""
    learns = policy not in POLICIES
    _C.set_learning(False)
    _C.set_learning(learns)
    _C.set_victims("greedy_dual" if learns else policy)
    _C.fetch_ahead(policy != ON_DEMAND)
    _C.disturb_steps(DISTURBANCE if policy == DISTURBED else 0)


def managed_on(thing: Any) -> Any:
    """The module or tensor, managed, on the device."""
    if isinstance(thing, torch.nn.Module):
        return managed.ManagedModule.from_module(thing).to(DEVICE)
    return thing.as_subclass(managed.ManagedTensor).to(DEVICE)


@contextmanager
def vacated() -> Iterator[None]:
    """Nothing is on the device when the block begins, and no budget stands when it ends."""
    gc.collect()
    left = torch.sim.memory_allocated(DEVICE)
    if left:
        raise RuntimeError(f"{left} bytes are left on {DEVICE} by what was measured before")
    torch.sim.reset_peak_memory_stats(DEVICE)
    try:
        yield
    finally:
        managed.budget(DEVICE, None)
        choose(LEARNED)


@dataclass
class Pressed:
    """What training gave under a budget; `moved` is bytes of one step by kind."""

    peak: int = 0
    results: list[torch.Tensor] = field(default_factory=list)
    moved: dict[str, float] = field(default_factory=dict)
    times: Summary | None = None
    why: str = ""  # the reason of the error that ended it


def free(model: Model, optimizer: str) -> Pressed:
    """Without a budget."""
    with vacated():
        return _train(Trained(model, optimizer, managed_on))


def pressed(model: Model, optimizer: str, budget: int, policy: str, rounds: int) -> Pressed:
    """Under a budget, with `rounds` pairs of timings."""
    with vacated():
        choose(policy)
        managed.budget(DEVICE, budget)
        try:
            trained = Trained(model, optimizer, managed_on)
            found = _train(trained)
            if rounds:
                found.times = _time(trained, budget, rounds)
        except managed.OutOfMemoryError as error:
            return Pressed(why=str(error).splitlines()[0].removeprefix("managed: "))
        return found


def _train(trained: Trained) -> Pressed:
    for _ in range(SETTLE):
        trained.step()
    before = managed.stats()
    for _ in range(MEASURED):
        trained.step()
    after = managed.stats()
    keys = [f"{kind}_bytes" for kind in KINDS]
    moved = {k.removesuffix("_bytes"): (after[k] - before[k]) / MEASURED for k in keys}
    return Pressed(torch.sim.max_memory_allocated(DEVICE), trained.results(), moved)


def _time(trained: Trained, budget: int, rounds: int) -> Summary:
    """Over the same model without a budget."""

    def block(size: int | None) -> float:
        managed.budget(DEVICE, size)
        trained.step()  # what a change of budget moves is not part of a step
        start = time.process_time()
        trained.step()
        trained.step()
        return time.process_time() - start

    pairs = interleave(lambda: block(None), {"": lambda: block(budget)}, rounds, run=rounds)
    return ratios(pairs[""])


def trace(model: Model, optimizer: str, budget: int) -> tuple[furthest.Program, int]:
    """A settled step under the budget, and the bytes on the device that it does not tell of.

    List operators run in pieces that depend on the budget, so each budget has a trace of its own.
    What has no handle because it is small, and is there between two steps when gradients have
    gone, is there all the time.
    """
    with vacated():
        managed.budget(DEVICE, budget)
        trained = Trained(model, optimizer, managed_on)
        for _ in range(SETTLE):
            trained.step()
        _C.begin_uses()
        try:
            trained.step()
        finally:
            program = furthest.parse(_C.end_uses())
        trained.optimizer.zero_grad()
        return program, without_handle()


def without_handle() -> int:
    """Bytes on the device that cannot leave because they have no handle."""
    usage = _C.residency(DEVICE)
    with_handle = sum(usage[k] for k in ("idle", "in_use", "pinned", "moving"))
    return torch.sim.memory_allocated(DEVICE) - with_handle


def bounds(model: Model, optimizer: str, budget: int) -> dict[str, dict[str, float]]:
    """Bytes that one step has to copy, out, or out and back: by eviction of what is used last, and
    at least. "kept" where what the program holds has to be kept, "oracle" where it may be known
    that it is never used again."""
    program, others = trace(model, optimizer, budget)
    room = budget - others
    report = {}
    for name, oracle in (("kept", False), ("oracle", True)):
        enough = furthest.furthest(program, room, oracle=oracle)
        report[name] = {
            "furthest_out": enough.out,
            "furthest_both": enough.out + enough.back,
            "least_out": least(program, room, oracle=oracle),
            "least_both": least(program, room, both_ways=True, oracle=oracle),
        }
    return report
