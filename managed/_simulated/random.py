"""Random numbers of the simulated devices, as torch.cuda has them; part of torch.sim."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from managed import _sim
from managed._simulated.memory import Device, index_of

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def manual_seed(seed: int) -> None:
    _sim.generator(_sim.current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    for index in range(_sim.device_count()):
        _sim.generator(index).manual_seed(int(seed))


def seed() -> int:
    """Seeds the current device's generator from the operating system; returns the seed."""
    return _sim.generator(_sim.current_device()).seed()


def seed_all() -> None:
    manual_seed_all(seed())


def initial_seed() -> int:
    return _sim.generator(_sim.current_device()).initial_seed()


def get_rng_state(device: Device = None) -> torch.Tensor:
    return _sim.generator(index_of(device)).get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
    _sim.generator(index_of(device)).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in range(_sim.device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
