"""The devices that tests run on: "sim:N", or with MANAGED_TEST_DEVICES=cuda "cuda:N".

CUDA's are virtual GPUs where there is no card (`make virtual-gpu`). What a test says of devices it
says with these names, so that it holds for both.
"""

import os

import torch

__all__ = [
    *("D0", "D1", "D2", "D3"),
    *("CAPACITY", "DEVICE_TYPE", "NEVER_FITS", "ON_CUDA", "TOTAL", "device_module", "device_name"),
]

ON_CUDA = os.environ.get("MANAGED_TEST_DEVICES") == "cuda"
DEVICE_TYPE = "cuda" if ON_CUDA else "sim"
# Bytes that a program can have of a device, and those of the device: a context takes the rest.
CAPACITY = 256 << 20
TOTAL = 320 << 20 if ON_CUDA else CAPACITY
# What the allocator says of a request that is larger than its device.
NEVER_FITS = "CUDA out of memory" if ON_CUDA else "can never fit"


def device_name(index):
    """The name of one of the devices."""
    return f"{DEVICE_TYPE}:{index}"


D0, D1, D2, D3 = map(device_name, range(4))


class _Module:
    """torch.cuda or torch.sim, which exists when devices are simulated."""

    def __getattr__(self, name):
        return getattr(getattr(torch, DEVICE_TYPE), name)


device_module = _Module()
