"""What the spawned processes of the matrix do; a child imports this file and no test.

Nothing here waits without a limit.
"""

import torch
from support.spawned import LIMIT
from torch.utils.data import Dataset

from managed import ManagedTensor

__all__ = ["LIMIT", "Held", "Made", "doubled", "echo", "train"]


class Held(Dataset):
    """Rows of a tensor that the dataset holds."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Made(Dataset):
    """Rows that are made managed, and computed with, in the worker."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index].as_subclass(ManagedTensor) * 2
        assert isinstance(row, ManagedTensor)
        return row / 2


def doubled(x):
    return x * 2


def echo(arriving, leaving):
    """Doubles in place what arrives, trains modules, and says what it was or why nothing came."""
    torch.set_num_threads(1)
    while True:
        try:
            x = arriving.get(timeout=LIMIT)
        except RuntimeError as error:
            leaving.put(str(error))
            continue
        if x is None:
            return
        if isinstance(x, torch.nn.Module):
            train(x)
            leaving.put(all(isinstance(p, ManagedTensor) for p in x.parameters()))
        else:
            leaving.put(type(x).__name__)
            leaving.put(x.mul_(2))


def train(model):
    """One step of SGD."""
    model(torch.ones(2, 3)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
