"""The models that memory.py and peers.py train, and how; it measures nothing.

Their steps take 20 to 100 ms on one core, and most of their tensors have more than the 16 KiB
from which on a storage may leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from cases import Convolutional, Transformer, perceptron
from torch import nn

__all__ = ["DEVICE", "MODELS", "OPTIMIZERS", "Model", "Trained", "choose"]

DEVICE = "sim:0"


class Recurrent(nn.Module):
    """Embedding, LSTM and a head; input token numbers (n, length)."""

    def __init__(self, width: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.cells = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(self.embed(tokens))[0].mean(1))


class Generative(nn.Module):
    """GPT-2 that says the next token; input token numbers (n, length)."""

    def __init__(self, width: int, heads: int, layers: int, vocabulary: int) -> None:
        from transformers import GPT2Config, GPT2LMHeadModel

        super().__init__()
        ends = {"bos_token_id": 0, "eos_token_id": 1}
        shape = {"n_embd": width, "n_head": heads, "n_layer": layers, "n_positions": 64}
        self.model = GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, **shape, **ends))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(tokens, use_cache=False).logits[:, -1]


class Model(NamedTuple):
    """A model, its input, and those of its submodules that a checkpoint each may recompute."""

    name: str
    build: Callable[[], nn.Module]
    data: Callable[[], torch.Tensor]
    blocks: Callable[[Any], Iterator[nn.Module]]

    def made(self) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
        """The module, its input and its target on the host; the same numbers on every call."""
        torch.manual_seed(0)
        module, data = self.build(), self.data()
        return module, data, torch.randint(10, (data.shape[0],))


def _grouped(layers: nn.Sequential, size: int) -> nn.Sequential:
    """The same computation in blocks of layers."""
    parts = list(layers)
    blocks = (nn.Sequential(*parts[i : i + size]) for i in range(0, len(parts), size))
    return nn.Sequential(*blocks)


MODELS = {
    "mlp": Model(
        "MLP",
        lambda: _grouped(perceptron(512, 6), 2),
        lambda: torch.randn(256, 512),
        lambda m: iter(m[:-1]),
    ),
    "cnn": Model(
        "CNN",
        lambda: _grouped(Convolutional(32, 4), 3),
        lambda: torch.randn(16, 3, 32, 32),
        lambda m: iter(m[:-1]),
    ),
    "transformer": Model(
        "Transformer",
        lambda: Transformer(128, 4, 4, 512),
        lambda: torch.randint(512, (16, 64)),
        lambda m: iter(m.encoder.layers),
    ),
    "lstm": Model(
        "LSTM",
        lambda: Recurrent(128, 2, 256),
        lambda: torch.randint(256, (32, 32)),
        lambda m: iter([m.cells]),
    ),
    "gpt2": Model(
        "GPT-2",
        lambda: Generative(128, 4, 4, 512),
        lambda: torch.randint(512, (8, 64)),
        lambda m: iter(m.model.transformer.h),
    ),
}
_FORMS: dict[str, dict[str, bool]] = {
    "": {},
    "-foreach": {"foreach": True},
    "-fused": {"fused": True},
    "-single": {"foreach": False},
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    f"{kind.__name__}{form}".lower(): lambda p, kind=kind, how=how: kind(p, lr=1e-3, **how)
    for kind in (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD)
    for form, how in _FORMS.items()
}


def choose(names: str) -> list[Model]:
    """The models of a list with commas."""
    keys = [name.strip().lower() for name in names.split(",")]
    unknown = [key for key in keys if key not in MODELS]
    if unknown:
        raise SystemExit(f"there is no model {unknown[0]!r}; there are {', '.join(MODELS)}")
    return [MODELS[key] for key in keys]


class Trained:
    """A model in training; `place` gives a module or tensor its place and kind. Without an
    optimizer it cannot make a step."""

    def __init__(self, model: Model, optimizer: str, place: Callable[[Any], Any]) -> None:
        module, data, target = model.made()
        self.module, self.data, self.target = place(module), place(data), place(target)
        if optimizer:
            self.optimizer = OPTIMIZERS[optimizer](self.module.parameters())
        self.forward: Callable[[torch.Tensor], torch.Tensor] = self.module
        self.losses: list[torch.Tensor] = []

    def loss(self) -> torch.Tensor:
        return F.cross_entropy(self.forward(self.data), self.target)

    def step(self) -> None:
        """One whole step. The gradients stay until the next."""
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach().cpu())

    def results(self) -> list[torch.Tensor]:
        """Losses, parameters and buffers on the host."""
        kept = (*self.module.parameters(), *self.module.buffers())
        return [*self.losses, *(t.detach().cpu() for t in kept)]
