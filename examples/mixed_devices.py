"""Tensors on different devices meet, and nobody moves them by hand.

Without GPUs the devices are simulated.
"""

import argparse

import torch
from torch import nn

import managed
from managed import ManagedModule, ManagedTensor, device_manager


def on(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.rand(*shape).as_subclass(ManagedTensor).to(device)


def arithmetic(devices: list[torch.device]) -> None:
    print("# Arithmetic")
    large = on(devices[0], 256, 256)
    small = on(devices[-1], 256, 256)[:8]
    plain = torch.rand(256)  # not managed, on the host: it may take part
    result = small @ large + plain
    print(f"small on {small.device}, large on {large.device}, plain on {plain.device}")
    print(f"small @ large + plain is on {result.device}: the fewest bytes had to travel")

    error = (result.cpu() - (small.cpu() @ large.cpu() + plain)).abs().max().item()
    print(f"largest difference to the same on the host: {error:.1e}")

    small += large[:8]
    print(f"small += large[:8] leaves small on {small.device}: what is written stays where it is")


def training(devices: list[torch.device], steps: int) -> None:
    print("\n# A model with its layers on different devices")
    model = nn.Sequential(
        nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )
    model = ManagedModule.from_module(model)
    for i, layer in enumerate((model[0], model[2], model[4])):
        layer.cuda(devices[i % len(devices)])
    x = torch.rand(256, 8)  # the batch stays on the host
    y = x.sin().sum(1, keepdim=True)

    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    managed.stats(reset=True)
    for step in range(steps):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in (0, steps - 1):
            print(f"step {step + 1:3}: loss {loss.item():.5f} on {loss.device}")
    for name, p in model.named_parameters():
        assert p.grad.device == p.device  # a gradient comes home to its parameter
        print(f"{name:>9} and its gradient on {p.device}")
    stats = managed.stats()
    print(f"{stats['copy']} copies with {stats['copy_bytes']:,} bytes between devices")


def pins(devices: list[torch.device]) -> None:
    print("\n# Pins")
    first, last = on(devices[0], 256), on(devices[-1], 4)
    print(f"first + last is on {(first + last[0]).device}")
    last.pin()  # from now on what meets `last` comes to it
    print(f"with last pinned it is on {(first + last[0]).device}")
    first.pin()
    try:
        first[:4] + last
    except RuntimeError as error:
        print(f"with both pinned: {error}")


def explanation(devices: list[torch.device]) -> None:
    print("\n# What happened to a tensor, and why")
    x = torch.rand(256).as_subclass(ManagedTensor).cuda(disperse=True)
    x + on(devices[-1], 256, 256)
    x.pin()
    print(managed.explain(x))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=3, help="simulated, if there is no GPU")
    parser.add_argument("--memory", default="64MiB", help="of each simulated device")
    parser.add_argument("--steps", type=int, default=100, help="steps of training")
    args = parser.parse_args()

    torch.manual_seed(0)
    if not torch.cuda.is_available():
        managed.simulate(devices=args.devices, memory=args.memory)
    devices = device_manager.cuda_devices
    arithmetic(devices)
    training(devices, args.steps)
    pins(devices)
    explanation(devices)


if __name__ == "__main__":
    main()
