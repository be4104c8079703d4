"""Times of the clock beside published ones: GPT-2 124M and ResNet-50, trained on one A100.

    python benchmarks/published.py [--json F]

Models of the published sizes on a device without values (preset a100-80g-sxm), three steps each;
the virtual time of the last. Sources and conditions:

- GPT-2 124M: A. Karpathy, "Let's reproduce GPT-2 (124M)" (2024), chapter titles of the video: a
  step of 16 x 1024 tokens on an A100 SXM 80 GB takes 1000 ms in float32, 333 ms with TF32 products,
  300 ms with bfloat16 autocast; attention in single operators, without torch.compile, AdamW.
- ResNet-50 v1.5: NVIDIA DeepLearningExamples, PyTorch/Classification/ConvNets/resnet50v1.5
  (commit 729963d), training performance on one GPU of a DGX A100 80 GB, 256 images: 938 images/s
  with TF32, 2470 with mixed precision (channels_last, SGD with momentum, input from DALI).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from report import print_table, write
from torch import nn
from tree import ROOT

import managed

#: Published milliseconds of a step.
CELLS = {
    "GPT-2 124M, 16 x 1024, float32": 1000.0,
    "GPT-2 124M, 16 x 1024, TF32": 333.0,
    "GPT-2 124M, 16 x 1024, bfloat16": 300.0,
    "ResNet-50, 256 images, TF32": 256 / 938 * 1e3,
    "ResNet-50, 256 images, mixed": 256 / 2470 * 1e3,
}


class Bottleneck(nn.Module):
    """v1.5: the 3 x 3 convolution has the stride."""

    def __init__(self, entering: int, width: int, stride: int) -> None:
        super().__init__()
        leaving = 4 * width
        self.a = nn.Conv2d(entering, width, 1, bias=False)
        self.b = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.c = nn.Conv2d(width, leaving, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (width, width, leaving))
        self.across: nn.Module = nn.Identity()
        if stride != 1 or entering != leaving:
            self.across = nn.Sequential(
                nn.Conv2d(entering, leaving, 1, stride, bias=False), nn.BatchNorm2d(leaving)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.a(x)), inplace=True)
        y = F.relu(self.norms[1](self.b(y)), inplace=True)
        y = self.norms[2](self.c(y))
        return F.relu(y.add_(self.across(x)), inplace=True)


def resnet(counts: Sequence[int], width: int = 64) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)]
    layers += [nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    entering = width
    for stage, count in enumerate(counts):
        for i in range(count):
            inner = width << stage
            layers.append(Bottleneck(entering, inner, 2 if stage and i == 0 else 1))
            entering = 4 * inner
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(entering, 1000)]
    return nn.Sequential(*layers)


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(**dropouts, attn_implementation="eager")  # single operators
    model: nn.Module = GPT2LMHeadModel(config)
    return model


def language_step(model: Any, half: bool) -> float:
    tokens = torch.randint(50257, (16, 1024)).to("sim:0")
    optimizer = torch.optim.AdamW(model.parameters())
    took = 0.0
    for _ in range(3):
        start = torch.sim.elapsed()
        optimizer.zero_grad()
        with torch.autocast("sim", torch.bfloat16, enabled=half):
            logits = model(tokens, use_cache=False).logits
            loss = F.cross_entropy(logits.view(-1, 50257), tokens.view(-1))
        loss.backward()
        optimizer.step()
        took = torch.sim.elapsed() - start
    return took


def image_step(model: nn.Module, half: bool) -> float:
    layout = torch.channels_last
    images = torch.empty(256, 3, 224, 224, device="sim:0").to(memory_format=layout)
    labels = torch.randint(1000, (256,)).to("sim:0")
    model = model.to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.875)
    took = 0.0
    for _ in range(3):
        start = torch.sim.elapsed()
        optimizer.zero_grad()
        with torch.autocast("sim", torch.float16, enabled=half):
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        took = torch.sim.elapsed() - start
    return took


def measure(name: str) -> float:
    """Milliseconds of a step, in this process."""
    warnings.simplefilter("ignore")
    managed.simulate(1, preset="a100-80g-sxm", values=False)
    if "TF32" in name:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    half = name.endswith(("bfloat16", "mixed"))
    with torch.device("sim:0"):
        model = gpt2() if name.startswith("GPT") else resnet((3, 4, 6, 3))
    step = language_step if name.startswith("GPT") else image_step
    return step(model, half) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench" / "published.json")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.cell:
        print(json.dumps(measure(asked.cell)))
        return
    found = {}
    for name in CELLS:
        command = [sys.executable, __file__, "--cell", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
    rows = [
        [name, f"{ms:.0f} ms", f"{CELLS[name]:.0f} ms", f"{ms / CELLS[name]:.2f}"]
        for name, ms in found.items()
    ]
    print_table("a training step on an A100 80 GB", ["clock", "published", "ratio"], rows)
    write({"ms": found, "published": CELLS}, asked.json)


if __name__ == "__main__":
    main()
