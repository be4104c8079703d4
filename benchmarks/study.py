"""The models, machines and cells of a study of how fast training can be in too little memory.

The study played traces of one step of ten models on five machines through a simulator of its own,
with policies and with a bound that no schedule of whole storages can beat (bound.c has its
mathematics). `study.json` has its 167 cells: the part of the unlimited throughput that LRU with
the better of two write-backs reached, that a plan made from the recorded step reached, and the
bound. The machines' link speeds and the parts of peaks that they reach are the study's guesses;
peaks are those of managed/_simulated/presets.py. Weights are bfloat16 beside float32 masters, or
float32 where the name ends in 32.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from published import resnet
from torch import nn

from managed._simulated.presets import PRESETS, Efficiency, Preset

__all__ = ["MACHINES", "MODELS", "Cell", "Masters", "cells"]


class Cell(NamedTuple):
    """One cell of the study; the last three are parts of the unlimited throughput."""

    mode: str  #: S1: the batch fills the machine; S2: it fills x machines; small: it is small
    machine: str
    model: str
    over: float  #: the peak over the memory
    batch: int
    lru: float | None  #: None: the study has no such cell
    planned: float | None
    bound: float | None


def cells() -> list[Cell]:
    told = json.loads(Path(__file__).with_suffix(".json").read_text())
    return [Cell(*row) for row in told]


def _machine(like: str, host: float, matrix: float, convolution: float, vector: float) -> Preset:
    base = PRESETS[like]
    halves = {k: v for k, v in base.matrix.items() if k in ("bfloat16", "float16")}
    reached = Efficiency(matrix, convolution, vector, vector)
    return base._replace(matrix=halves, host_bytes_per_ns=host, efficiency=reached)


MACHINES = {
    "V100-16": _machine("v100-pcie", 12.0, 0.50, 0.40, 0.60)._replace(
        matrix={"float16": 125.0, "bfloat16": 125.0}, vector={"float32": 15.7}
    ),
    "A100-40": _machine("a100-40g", 25.0, 0.55, 0.40, 0.70),
    "H100-80": _machine("h100-sxm", 52.0, 0.50, 0.35, 0.60),
    "RTX4090": _machine("rtx4090", 25.0, 0.60, 0.45, 0.50),
    "GH200": _machine("gh200", 340.0, 0.50, 0.35, 0.60),
}


class Block(nn.Module):
    """Attention and two layers; normalised before each of them, or after."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        n, length, width = x.shape
        parts = self.qkv(x).split(width, 2)
        q, k, v = (p.view(n, length, self.heads, -1).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(n, length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.norms
        if not self.causal:
            x = first(x + self.attend(x))
            return second(x + self.down(F.gelu(self.up(x))))
        x = x + self.attend(first(x))
        return x + self.down(F.gelu(self.up(second(x))))


class Language(nn.Module):
    """Its loss on tokens: causal as GPT, or not as BERT."""

    def __init__(
        self, layers: int, width: int, heads: int, vocabulary: int, length: int, causal: bool
    ) -> None:
        super().__init__()
        self.length = length
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        h = self.norm(self.blocks(self.tokens(x) + self.places(places)))
        return F.cross_entropy(F.linear(h, self.tokens.weight).flatten(0, 1), y.flatten())

    def data(self, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = torch.randint(9, (2, batch, self.length))
        return x.clone(), y.clone()


class Images(nn.Module):
    """The loss of a classifier of images."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = resnet((3, 8, 36, 3), width)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.net(x), y)

    def data(self, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty(batch, 3, 224, 224), torch.randint(9, (batch,))


def _twice(entering: int, leaving: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n in (entering, leaving):
        layers += [nn.Conv2d(n, leaving, 3, 1, 1, bias=False), nn.BatchNorm2d(leaving)]
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [64, 128, 256, 512, 1024]
        pairs = list(itertools.pairwise(widths))
        ends = zip([3, *widths[:-1]], widths, strict=True)
        self.downs = nn.ModuleList(_twice(a, b) for a, b in ends)
        self.across = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairs)
        self.ups = nn.ModuleList(_twice(2 * a, a) for a, _ in pairs)
        self.out = nn.Conv2d(64, 2, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        *downs, last = self.downs
        kept = []
        for down in downs:
            kept.append(down(x))
            x = F.max_pool2d(kept[-1], 2)
        x = last(x)
        for across, up in zip(reversed(self.across), reversed(self.ups), strict=True):
            x = up(torch.cat([kept.pop(), across(x)], 1))
        return F.cross_entropy(self.out(x), y)

    def data(self, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        return (
            torch.empty(batch, 3, 512, 512),
            torch.empty(batch, 512, 512, dtype=torch.long),
        )


class Recurrent(nn.Module):
    """An LSTM in single operators."""

    def __init__(self) -> None:
        super().__init__()
        width, vocabulary = 2048, 10_000
        self.tokens = nn.Embedding(vocabulary, width)
        self.inputs = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(2))
        self.states = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.out = nn.Linear(width, vocabulary)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x)
        for inputs, states in zip(self.inputs, self.states, strict=True):
            out = torch.zeros_like(h[0])
            cell, outs = torch.zeros_like(out), []
            for gates in inputs(h).unbind(0):
                i, f, o, u = (gates + states(out)).chunk(4, -1)
                cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(u)
                out = torch.sigmoid(o) * torch.tanh(cell)
                outs.append(out)
            h = torch.stack(outs)
        return F.cross_entropy(self.out(h).flatten(0, 1), y.flatten())

    def data(self, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = torch.randint(9, (2, 64, batch))
        return x.clone(), y.clone()


#: The model, on meta if asked for there, and whether Adam trains it; else it is SGD with momentum.
MODELS: dict[str, tuple[Callable[[], Any], bool]] = {
    "bert-large": (lambda: Language(24, 1024, 16, 30522, 512, False), True),
    "gpt2-medium": (lambda: Language(24, 1024, 16, 50257, 1024, True), True),
    "gpt2-large": (lambda: Language(36, 1280, 20, 50257, 1024, True), True),
    "gpt-1.3b": (lambda: Language(24, 2048, 16, 50257, 2048, True), True),
    "gpt-d5120L8": (lambda: Language(8, 5120, 40, 50257, 2048, True), True),
    "resnet152": (lambda: Images(64), False),
    "resnet152-32": (lambda: Images(64), False),
    "wresnet152-4-32": (lambda: Images(256), False),
    "unet": (UNet, True),
    "lstm": (Recurrent, True),
}


class Masters(torch.optim.Optimizer):
    """Adam in one operator a parameter, or SGD with momentum, on float32 masters of halves."""

    def __init__(self, parameters: Any, adam: bool) -> None:
        super().__init__(parameters, {})
        self.adam = adam

    def start(self, p: torch.Tensor) -> dict[str, Any]:
        master = p.detach() if p.dtype == torch.float32 else p.detach().float()
        slots = [torch.zeros_like(master) for _ in range(1 + self.adam)]
        return {"master": master, "slots": slots, "count": torch.zeros((), device=p.device)}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            s = self.state[p] or self.state.setdefault(p, {})
            if not s:
                s.update(self.start(p))
            gradient, lists = p.grad.to(s["master"].dtype), [[slot] for slot in s["slots"]]
            if self.adam:
                torch._fused_adamw_(
                    [s["master"]], [gradient], *lists, [], [s["count"]], lr=1e-4, beta1=0.9,
                    beta2=0.999, weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False,
                )  # fmt: skip
            else:
                (momentum,) = s["slots"]
                momentum.mul_(0.9).add_(gradient)
                s["master"].add_(momentum, alpha=-0.1)
            if s["master"].dtype != p.dtype:
                p.copy_(s["master"])
