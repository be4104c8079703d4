"""One model on several devices, which work at once on parts of each batch.

A small CNN, whose BatchNorm layers see the whole batch, learns the handwritten digits of
scikit-learn, and a small GPT-2, whose head is tied to its embedding, learns random tokens.
managed.DataParallel trains each on 1, 2 and 4 devices with the same batches, and the losses are
those of plain PyTorch on the host. Without GPUs the devices are simulated, and times are virtual.
Needs scikit-learn and transformers, and matplotlib for the picture.
"""

import argparse
import copy
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import managed
from managed import ManagedModule, device_manager

Loss = Callable[[Any, Tensor, Tensor], Tensor]
Batches = list[tuple[Tensor, Tensor]]


class Report(NamedTuple):
    """The losses of all steps, what happened in the last one, and the largest peak of a device."""

    losses: list[float]
    last: managed.profile
    sent: int  #: bytes, by the device that sends the most to other devices
    peak: int  #: bytes


def cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for entering, leaving in pairwise((1, 32, 64, 64)):
        convolution = nn.Conv2d(entering, leaving, 3, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(leaving), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 10))


def gpt2() -> nn.Module:
    config = GPT2Config(
        n_layer=6, n_embd=128, n_head=4, vocab_size=128, n_positions=32, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def digits(steps: int) -> Batches:
    data = load_digits()
    images, labels = torch.from_numpy(data.images[:, None] / 16), torch.from_numpy(data.target)
    return [(images[rows], labels[rows]) for rows in torch.randint(len(labels), (steps, 128))]


def tokens(steps: int) -> Batches:
    return [(x, x) for x in torch.randint(128, (steps, 16, 32))]


def loss_of_images(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net(x), y)


def loss_of_tokens(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    logits = net(input_ids=x).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), y[:, 1:].flatten())


def train(model: Any, loss: Loss, optimizer: Any, batches: Batches) -> list[float]:
    losses = []
    for x, y in batches:
        if isinstance(model, managed.DataParallel):
            found = model.each(loss, x, y)  # each device has the loss of its part
        else:
            found = loss(model, x, y)
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(found.item())
    return losses


def measure(
    model: Any, loss: Loss, optimizer: Any, batches: Batches, devices: list[torch.device]
) -> Report:
    runtime = torch.get_device_module(devices[0])
    for device in devices:
        runtime.reset_peak_memory_stats(device)
    losses = train(model, loss, optimizer, batches[:-1])
    managed.stats(reset=True)
    with managed.profile() as last:
        losses += train(model, loss, optimizer, batches[-1:])
        for device in devices:
            torch.accelerator.synchronize(device)
    links = managed.stats(reset=True)["links"]
    sent = [sum(links.get(f"{a}->{b}", 0) for b in devices) for a in devices]
    peak = max(runtime.max_memory_allocated(device) for device in devices)
    return Report(losses, last, max(sent), peak)


def compare(
    name: str,
    model: nn.Module,
    loss: Loss,
    make_optimizer: Callable[..., torch.optim.Optimizer],
    batches: Batches,
    picture: Path | None = None,
) -> Any:
    """Prints a table, and returns the model that was trained on the most devices."""
    print(f"# {name}\ndevices  last loss       step  most bytes sent   largest peak")
    plain = copy.deepcopy(model)
    wanted = train(plain, loss, make_optimizer(plain.parameters()), batches)
    apart, net = 0.0, None
    for count in (1, 2, 4):
        devices = device_manager.cuda_devices[:count]
        if len(devices) < count:
            break
        net = copy.deepcopy(model)
        if count == 1:
            net = ManagedModule.from_module(net).cuda(devices[0])
        else:  # This line, and model.each() above, are all that a program needs.
            net = managed.DataParallel(net, devices=devices, batch_norm="sync")
        found = measure(net, loss, make_optimizer(net.parameters()), batches, devices)
        time = f"{found.last.elapsed * 1e-6:.2f} ms" if managed.sim.is_simulated() else "-"
        row = f"{count:7} {found.losses[-1]:10.6f} {time:>10} {found.sent:16,}"
        print(f"{row} {found.peak / 2**20:10.1f} MiB")
        apart = max([apart, *(abs(a - b) for a, b in zip(found.losses, wanted, strict=True))])
        if picture is not None and count == 4:
            managed.plot_timeline(found.last, picture)
            print(f"what each of the four did in the last step: {picture}")
    print(f"largest difference to the losses on the host: {apart:.1e}\n")
    assert apart < 1e-8, f"the losses of {name} differ by {apart}"
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", help="of the devices that are simulated, if there is no GPU")
    parser.add_argument("--steps", type=int, default=5, help="steps of training")
    parser.add_argument("--out", type=Path, help="a folder for the picture")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        managed.simulate(devices=4, preset=args.preset, repeatable=True)
    picture = None
    if args.out is not None and find_spec("matplotlib"):
        args.out.mkdir(parents=True, exist_ok=True)
        picture = args.out / "data_parallel.png"
    # In float64, so that even these small models take a small card longer than it takes to issue
    # their operators.
    sgd = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    compare("cnn", cnn().double(), loss_of_images, sgd, digits(args.steps))
    adamw = partial(torch.optim.AdamW, lr=1e-3)
    model = compare("gpt2", gpt2().double(), loss_of_tokens, adamw, tokens(args.steps), picture)
    if isinstance(model, managed.DataParallel):  # there is more than one device
        print(model.placement())


if __name__ == "__main__":
    main()
