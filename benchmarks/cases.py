"""What overhead.py measures: operators on tiny tensors, and models with one training step.

Sizes are chosen so that a tiny case is all overhead (a few hundred nanoseconds of
arithmetic) and a large one is all arithmetic (tens of milliseconds on one core).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

__all__ = [
    "GETTERS",
    "MODELS",
    "OPERATORS",
    "make_model",
    "make_operands",
    "make_step",
    "median_of",
]

# name -> statement over the names of make_operands
OPERATORS = {
    "add": "a + b",
    "add_": "out.add_(b)",
    "mm": "m.mm(m2)",
    "linear": "F.linear(x, w, bias)",
    "view": "m.view(-1)",
    "relu": "torch.relu(a)",
    "cat": "torch.cat((a, b, c))",
    "layer_norm": "F.layer_norm(x, (8,), gain, bias)",
    "cross_entropy": "F.cross_entropy(x, target)",
    "embedding": "F.embedding(ids, w)",
    ".shape": "a.shape",
    ".device": "a.device",
}
GETTERS = (".shape", ".device")


def median_of(table: dict[str, Any], subject: str) -> float:
    """Of what a subject costs over all operators that are no getters."""
    return statistics.median(row[subject]["median"] for n, row in table.items() if n not in GETTERS)


def make_operands(
    mark: Callable[[torch.Tensor], torch.Tensor], device: str, grad: bool
) -> dict[str, Any]:
    """Names for the statements. `mark` turns a plain tensor into the kind under test."""
    generator = torch.Generator().manual_seed(0)

    def floats(*shape: int) -> torch.Tensor:
        return mark(torch.randn(*shape, generator=generator).to(device))

    def integers(below: int, *shape: int) -> torch.Tensor:
        return mark(torch.randint(below, shape, generator=generator).to(device))

    a, m, x, w = floats(4), floats(8, 8), floats(2, 8), floats(8, 8)
    for tensor in (a, m, x, w):
        tensor.requires_grad_(grad)
    operands: dict[str, Any] = {"torch": torch, "F": F, "a": a, "m": m, "x": x, "w": w}
    operands |= {"b": floats(4), "c": floats(4), "m2": floats(8, 8)}
    operands |= {"bias": floats(8), "gain": floats(8)}
    operands |= {"target": integers(8, 2), "ids": integers(8, 4)}
    # Not a leaf, so that it can be written while gradients are recorded.
    return operands | {"fresh": lambda: a * 1}


class Convolutional(nn.Sequential):
    """Convolutions with batch normalisation and a linear head; input (n, 3, side, side)."""

    def __init__(self, width: int, depth: int) -> None:
        layers: list[nn.Module] = [
            nn.Conv2d(3, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
        for _ in range(depth):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


class Transformer(nn.Module):
    """Embedding, encoder layers and a head; input token numbers (n, length)."""

    def __init__(self, width: int, heads: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(tokens)).mean(1))


def perceptron(width: int, depth: int) -> nn.Sequential:
    """Linear layers with GELU; input (n, width)."""
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*hidden, nn.Linear(width, 10))


# (model, size) -> the module and its input
MODELS: dict[tuple[str, str], Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    ("MLP", "tiny"): lambda: (perceptron(32, 3), torch.randn(8, 32)),
    ("MLP", "large"): lambda: (perceptron(512, 3), torch.randn(256, 512)),
    ("CNN", "tiny"): lambda: (Convolutional(8, 2), torch.randn(4, 3, 8, 8)),
    ("CNN", "large"): lambda: (Convolutional(32, 3), torch.randn(8, 3, 32, 32)),
    ("Transformer", "tiny"): lambda: (Transformer(32, 4, 2, 64), torch.randint(64, (4, 8))),
    ("Transformer", "large"): lambda: (Transformer(128, 4, 3, 512), torch.randint(512, (8, 64))),
}


def make_model(name: str, size: str, device: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """The module, its input and its target on the device; the same numbers on every call."""
    torch.manual_seed(0)
    model, data = MODELS[name, size]()
    target = torch.randint(10, (data.shape[0],))
    return model.to(device), data.to(device), target.to(device)


def make_step(
    model: nn.Module, data: torch.Tensor, target: torch.Tensor, foreach: bool
) -> Callable[[], None]:
    """One whole step: forward, cross entropy, backward, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=foreach)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(data), target).backward()
        optimizer.step()

    return step
