"""A hundred small models, trained at the same time, each where the device manager put it.

Half of them learn to read the handwritten digits of scikit-learn, half predict its diabetes data.
They differ in width and learning rate, so that some converge much earlier than others: nobody can
say beforehand how to share them out. Without a GPU the devices are simulated.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import managed
from managed import ManagedModule, device_manager

WIDTHS = (8, 16, 32, 64, 128)
RATES = (0.003, 0.006, 0.012, 0.025)


@dataclass
class Job:
    """One model and what it learns; `steps` and `loss`, on rows held out, are the result."""

    number: int
    data: str
    model: nn.Module
    rate: float
    x: Tensor
    y: Tensor
    steps: int = 0
    loss: float = float("inf")

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def nbytes(self) -> int:
        return sum(p.nbytes for p in self.model.parameters())


def make_jobs(count: int) -> list[Job]:
    digits, diabetes = load_digits(), load_diabetes()
    pixels = torch.from_numpy(digits.data).float() / 16
    labels = torch.from_numpy(digits.target).long()
    patients = torch.from_numpy(diabetes.data).float()
    patients = (patients - patients.mean(0)) / patients.std(0)
    progress = torch.from_numpy(diabetes.target).float()[:, None]
    progress = (progress - progress.mean()) / progress.std()

    jobs = []
    for i in range(count):
        torch.manual_seed(i)  # the weights of a model depend on its number and on nothing else
        width, rate = WIDTHS[i // 2 % len(WIDTHS)], RATES[i // 10 % len(RATES)]
        if i % 2 == 0:
            jobs.append(Job(i, "digits", perceptron(64, width, 10), rate, pixels, labels))
        else:
            jobs.append(Job(i, "diabetes", perceptron(10, width, 1), rate, patients, progress))
    return jobs


def perceptron(inputs: int, width: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, outputs),
    )


def place(jobs: list[Job]) -> None:
    """One after the other, largest first: a model gets the same device every time."""
    for job in sorted(jobs, key=lambda job: -job.nbytes):
        # A model so small stays whole; model.cuda(disperse=True) would spread its layers.
        device = device_manager.find_device(job.nbytes, disperse=True)
        ManagedModule.from_module(job.model).to(device)


def train(job: Job, most: int, patience: int = 10) -> None:
    """Until `patience` more steps do not help with the rows that are held out, every fourth."""
    x, y = job.x.to(job.device), job.y.to(job.device)  # once, instead of in every step
    held_out = torch.arange(len(x), device=job.device) % 4 == 0
    x, y, test_x, test_y = x[~held_out], y[~held_out], x[held_out], y[held_out]
    criterion = cross_entropy if job.data == "digits" else mse_loss
    optimizer = torch.optim.Adam(job.model.parameters(), lr=job.rate)
    while job.steps < most:
        for _ in range(patience):
            optimizer.zero_grad()
            criterion(job.model(x), y).backward()
            optimizer.step()
        job.steps += patience
        with torch.no_grad():
            before, job.loss = job.loss, criterion(job.model(test_x), test_y).item()
        if job.loss > 0.98 * before:
            return


def report(jobs: list[Job]) -> None:
    print(" model      data  width   rate  device  steps    loss    bytes")
    for job in jobs:
        width = job.model[0].out_features
        print(
            f"{job.number:6} {job.data:>9} {width:6} {job.rate:6} {job.device!s:>7}"
            f" {job.steps:6} {job.loss:7.4f} {job.nbytes:8,}"
        )
    print("\n  device  models   steps    bytes")
    for device in sorted({job.device for job in jobs}, key=str):
        here = [job for job in jobs if job.device == device]
        steps, size = sum(job.steps for job in here), sum(job.nbytes for job in here)
        print(f"{device!s:>8} {len(here):7} {steps:7,} {size:8,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--steps", type=int, default=300, help="most steps of a model")
    parser.add_argument("--threads", type=int, default=8, help="models trained at a time")
    parser.add_argument("--devices", type=int, default=4, help="simulated, if there is no GPU")
    parser.add_argument("--memory", default="64MiB", help="of each simulated device")
    args = parser.parse_args()

    torch.set_num_threads(1)  # the threads of the pool are the parallelism
    if not torch.cuda.is_available():
        managed.simulate(devices=args.devices, memory=args.memory)
    jobs = make_jobs(args.models)
    place(jobs)
    with ThreadPoolExecutor(args.threads) as pool:
        for done in [pool.submit(train, job, args.steps) for job in jobs]:
            done.result()
    report(jobs)


if __name__ == "__main__":
    main()
