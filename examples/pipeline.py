"""The layers of one model on several devices, which work at once on parts of a batch.

A small ResNet and a small GPT-2, whose head is tied to its embedding, are trained by
managed.Pipeline. Beside them: the losses of plain PyTorch on the host with the same parts, and the
time of a step of the same model on the same devices without a pipeline. Without GPUs the devices
are simulated, and times are virtual. Needs transformers, and matplotlib for the pictures.
"""

import argparse
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import managed
from managed import ManagedModule, device_manager


class Block(nn.Module):
    """A residual block."""

    def __init__(self, entering: int, leaving: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(entering, leaving, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(leaving, leaving, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(leaving) for _ in range(2))
        self.across: nn.Module = nn.Identity()
        if entering != leaving:
            self.across = nn.Conv2d(entering, leaving, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)), inplace=True)
        y = self.norms[1](self.second(y))
        return F.relu(y.add_(self.across(x)), inplace=True)


def resnet() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU(inplace=True)]
    widths = (16, 16, 16, 32, 32, 32, 64, 64, 64)
    for entering, leaving in zip((16, *widths), widths, strict=False):
        layers.append(Block(entering, leaving, 1 if entering == leaving else 2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def gpt2() -> nn.Module:
    config = GPT2Config(
        n_layer=6, n_embd=128, n_head=4, vocab_size=128, n_positions=32, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def loss_of_images(output: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(output, labels)


def loss_of_tokens(output: Any, tokens: Tensor) -> Tensor:
    return F.cross_entropy(output.logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, foreach=True)


def on_the_host(
    model: nn.Module, loss_function: Callable[..., Tensor], x: Tensor, y: Tensor, parts: int
) -> Callable[[], Tensor]:
    """A step of plain PyTorch: the parts one after the other, gradients added up."""
    optimizer = sgd(model)

    def step() -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for part, target in zip(x.chunk(parts), y.chunk(parts), strict=True):
            loss = loss_function(model(part), target) * (len(part) / len(x))
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def in_turns(
    model: nn.Module, loss_function: Callable[..., Tensor], x: Tensor, y: Tensor
) -> Callable[[], Tensor]:
    """A step of the model over all devices without a pipeline."""
    net = ManagedModule.from_module(model).cuda(disperse=True)
    optimizer = sgd(net)

    def step() -> Tensor:
        loss = loss_function(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def timed(step: Callable[[], Tensor], picture: Path) -> float:
    """ns of one step; draws what each device did."""
    with managed.profile() as profile:
        step()
        for device in device_manager.cuda_devices:
            torch.accelerator.synchronize(device)
    managed.plot_timeline(profile, picture)
    return profile.elapsed


def compare(
    name: str,
    model: nn.Module,
    loss_function: Callable[..., Tensor],
    x: Tensor,
    y: Tensor,
    args: argparse.Namespace,
) -> None:
    print(f"# {name}")
    plain = on_the_host(copy.deepcopy(model), loss_function, x, y, args.parts)
    turns = in_turns(copy.deepcopy(model), loss_function, x, y)

    # The pipeline: these lines are all that a program needs.
    pipe = managed.Pipeline(model, microbatches=args.parts)
    optimizer = sgd(model)

    def step() -> Tensor:
        loss = pipe.step(loss_function, x, y)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    apart = []
    for i in range(args.steps):
        wanted, found = plain(), step().cpu()
        apart.append(abs(found - wanted).item())
        print(f"step {i + 1}: loss {found.item():.6f}, on the host {wanted.item():.6f}")
    print(f"largest difference: {max(apart):.1e}\n\n{pipe.plan()}\n")

    for _ in range(2):  # leaves that each round needs elsewhere settle there
        turns()
    before = timed(turns, args.out / f"{name}_in_turns.png")
    after = timed(step, args.out / f"{name}_pipeline.png")
    print(f"a step without a pipeline: {before * 1e-6:6.2f} ms")
    print(f"a step of the pipeline:    {after * 1e-6:6.2f} ms")
    print(f"the pipeline is {before / after:.2f} times as fast\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=4, help="simulated, if there is no GPU")
    parser.add_argument("--memory", default="256MiB", help="of each simulated device")
    parser.add_argument("--parts", type=int, default=8, help="of a batch")
    parser.add_argument("--steps", type=int, default=4, help="steps of training")
    parser.add_argument("--out", type=Path, default=Path("build/pipeline"), help="for the pictures")
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        managed.simulate(devices=args.devices, memory=args.memory, repeatable=True)
    # In float64, so that even these small models take a small card longer than it takes to issue
    # their operators.
    images = torch.randn(8 * args.parts, 3, 24, 24, dtype=torch.float64)
    labels = torch.randint(10, (8 * args.parts,))
    compare("resnet", resnet().double(), loss_of_images, images, labels, args)
    tokens = torch.randint(128, (8 * args.parts, 32))
    compare("gpt2", gpt2().double(), loss_of_tokens, tokens, tokens, args)
    print(f"what each device did in these steps: {args.out}/*.png")


if __name__ == "__main__":
    main()
