"""What will not work on a machine, why, and what to do about it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from managed._backend import BROKEN, INERT
from managed._built import again, minor
from managed.cli._machine import installed

__all__ = ["Problem", "conflicts", "find"]

#: Distributions beside which something cannot be had.
_CONFLICTS = {
    "tensor-managed": "it is imported by the same name, `managed`",
    "torchdistx": "it uses the same dispatch key of torch, DeferredInit",
}


class Problem(NamedTuple):
    """Something that does not work; where there are several cures, one a line."""

    what: str
    why: str
    cure: str


def conflicts() -> dict[str, str]:
    """Installed libraries that take what managed needs, and what that is."""
    found = {name: why for name, why in _CONFLICTS.items() if installed(name)}
    for entry in importlib.metadata.entry_points(group="torch.backends"):
        name = entry.dist.name if entry.dist else entry.name
        found[name] = "it gives torch a backend of its own, and torch has room for one beside CUDA"
    return found


def find(facts: dict[str, Any]) -> list[Problem]:
    return [*_of_the_package(facts), *_of_cards(facts), *_of_libraries(facts)]


def _of_the_package(facts: dict[str, Any]) -> Iterator[Problem]:
    versions = facts["versions"]
    built, there = versions["built for torch"], minor(versions["torch"])
    if BROKEN is not None:
        why, _, cures = str(BROKEN).partition("\n")
        yield Problem("Nothing works: managed cannot be imported", why, cures)
    elif INERT:
        yield Problem(
            "Nothing is managed", "NO_MANAGED is set in the environment", "Unset NO_MANAGED."
        )
    if BROKEN is None and built and minor(built) != there:
        yield Problem(
            "What is compiled may fail to load, or worse",
            f"managed was installed for torch {built}, and this is torch {there}",
            again(),
        )
    if versions["extensions"].get("_sim", "works") != "works":
        why = versions["extensions"]["_sim"]
        yield Problem("managed.simulate() fails", why, again())
    if versions["extensions"].get("_cuda", "works") != "works":
        yield Problem(
            "Nothing leaves a CUDA device when it is full",
            versions["extensions"]["_cuda"],
            "Install managed beside this torch, so that managed._cuda is built; "
            "MANAGED_REQUIRE_CUDA=1 says what the build lacks.",
        )
    if "without GIL" in versions["python"]:
        yield Problem(
            "Threads take turns in the interpreter",
            "managed's modules turn the interpreter's lock on",
            "Nothing has to be done; it is slower than it could be.",
        )


def _of_cards(facts: dict[str, Any]) -> Iterator[Problem]:
    cards, driver = facts["cards"], facts["versions"]["driver"]
    if not cards["found"]:
        if torch.version.cuda is None and driver:
            cure = "Install torch with CUDA, from its own index: https://pytorch.org."
        elif torch.version.cuda is None:
            cure = "Without a GPU that is right. managed.simulate() gives simulated ones."
        else:
            cure = "Where there is a GPU: look at nvidia-smi, and at CUDA_VISIBLE_DEVICES."
        yield Problem("No GPU is used", cards["why_none"] or "torch sees none", cure)
    apart = [
        f"{cards['found'][i]['name']} and {cards['found'][j]['name']}"
        for i, peers in enumerate(cards["peers"])
        for j in range(i + 1, len(cards["peers"]))
        if j not in peers
    ]
    if apart:
        yield Problem(
            "Copies between some cards go over the host",
            f"{', '.join(apart)} do not reach each other's memory",
            "Consumer cards and virtual machines often do not allow it. managed counts it in.",
        )
    conf = ",".join(
        facts["environment"].get(name, "")
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    )
    if "cudaMallocAsync" in conf or facts["environment"].get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        yield Problem(
            "Nothing leaves a CUDA device when it is full",
            "torch's caching allocator is off",
            "Unset PYTORCH_NO_CUDA_MEMORY_CACHING, and backend:cudaMallocAsync in "
            "PYTORCH_ALLOC_CONF.",
        )


def _of_libraries(facts: dict[str, Any]) -> Iterator[Problem]:
    for name, why in facts["conflicts"].items():
        yield Problem(
            f"{name} may not work beside managed", why, f"Use an environment without {name}."
        )
    backend = torch._C._get_privateuse1_backend_name()
    if backend not in ("privateuseone", "sim"):
        yield Problem(
            "managed.simulate() fails",
            f"torch's only spare backend is taken: it is called {backend!r} here",
            "Set TORCH_DEVICE_BACKEND_AUTOLOAD=0, or uninstall the library that names it so.",
        )
    memory = facts["memory"]
    group = memory["control group"]
    if group is not None and group < memory["machine"] // 8:
        yield Problem(
            "Little can leave for the host",
            "the control group of this process allows a small part of the machine's memory",
            "Give the container or the job more memory.",
        )
