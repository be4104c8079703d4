"""In how little room a model runs: inference through a model larger than the budget, and the least
budget in which one trains."""

from __future__ import annotations

import torch
from budgeted import POLICIES, choose, managed_on, trace, vacated
from cases import perceptron
from report import Report
from training import DEVICE, Model, Trained

import managed

__all__ = ["feasible", "inference"]

PASSES = 3


def inference() -> Report:
    """Bytes moved by one pass through a model four times the budget, and those that it uses and
    that may leave, which are its weights and its input; by policy."""
    torch.manual_seed(0)
    plain, data = perceptron(512, 16), torch.randn(64, 512)
    expected = plain(data)
    weights = sum(p.nbytes for p in plain.parameters() if p.nbytes >= 2**14)
    report: Report = {"budget": weights // 4, "used": weights + data.nbytes, "policies": {}}
    for policy in POLICIES:
        with vacated(), torch.no_grad():
            choose(policy)
            managed.budget(DEVICE, weights // 4)
            module, x = managed_on(perceptron(512, 16)), managed_on(data)
            module.load_state_dict(plain.state_dict())
            module(x)
            before = managed.stats()
            for _ in range(PASSES):
                if not torch.equal(module(x).cpu(), expected):
                    raise SystemExit(f"inference, {policy}: other numbers than in host memory")
            after = managed.stats()
            report["policies"][policy] = {
                kind: (after[f"{kind}_bytes"] - before[f"{kind}_bytes"]) / PASSES
                for kind in ("spill", "drop", "restore")
            }
            del module, x
    return report


def _trains(model: Model, optimizer: str, budget: int) -> bool:
    with vacated():
        managed.budget(DEVICE, budget)
        try:
            trained = Trained(model, optimizer, managed_on)
            for _ in range(2):
                trained.step()
        except managed.OutOfMemoryError:
            return False
        return True


def feasible(model: Model, optimizer: str, accuracy: float) -> Report:
    """The least budget, so accurate, and the bytes that must be there together then.

    The second is what the largest operator uses and makes, and what is always there because it
    has no handle. Temporary memory inside the operator is not counted.
    """
    high = 2**20
    while not _trains(model, optimizer, high):
        high *= 2
    low = high // 2
    while high / low > 1 + accuracy:
        middle = (low + high) // 2
        if _trains(model, optimizer, middle):
            high = middle
        else:
            low = middle
    program, others = trace(model, optimizer, high)
    return {"budget": high, "operator": program.largest() + others}
