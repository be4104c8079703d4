"""What simulated devices can do: speeds and links of real ones, from public sources."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["DEFAULT", "PRESETS", "Preset"]

_GIB = 1024**3


class Preset(NamedTuple):
    """One kind of device. Bandwidths are in bytes/ns, which is the same as 10**9 bytes/s."""

    name: str
    memory: int  #: bytes
    flops_per_ns: float  #: peak of float32 products as torch runs them by default (no TF32)
    bytes_per_ns: float  #: memory bandwidth
    launch_ns: int  #: fixed cost of one operator
    host_latency_ns: int
    host_bytes_per_ns: float  #: between the device and the host, one direction
    peer_latency_ns: int
    peer_bytes_per_ns: float  #: between two devices, one direction


# Assumptions, not measurements: a kernel launch takes a few microseconds on every CUDA device, and
# starting a copy over PCIe about twice as long.
_LAUNCH, _COPY = 5_000, 10_000

PRESETS: dict[str, Preset] = {
    # NVIDIA A100 Tensor Core GPU data sheet (June 2021), 40 GB PCIe: 19.5 TFLOPS FP32,
    # 1,555 GB/s; PCIe gen 4 x16: 31.5 GB/s; NVLink bridge 600 GB/s both directions together.
    "a100-40g": Preset(
        "A100 40GB", 40 * _GIB, 19_500.0, 1_555.0, _LAUNCH, _COPY, 31.5, _COPY, 300.0
    ),
    # NVIDIA H100 Tensor Core GPU data sheet (2023), SXM: 67 TFLOPS FP32, 3.35 TB/s;
    # PCIe gen 5: 128 GB/s and NVLink 900 GB/s, both directions together.
    "h100-sxm": Preset(
        "H100 SXM", 80 * _GIB, 67_000.0, 3_350.0, _LAUNCH, _COPY, 64.0, _COPY, 450.0
    ),
    # NVIDIA Ada GPU architecture white paper (2022), GeForce RTX 4090: 82.6 TFLOPS FP32,
    # 1,008 GB/s; PCIe gen 4 x16 and no NVLink: devices talk through the host.
    "rtx4090": Preset(
        "RTX 4090", 24 * _GIB, 82_600.0, 1_008.0, _LAUNCH, _COPY, 31.5, 2 * _COPY, 31.5
    ),
    # NVIDIA T4 Tensor Core GPU data sheet (2019): 8.1 TFLOPS FP32, 300 GB/s, PCIe gen 3 x16:
    # 32 GB/s both directions together, no NVLink.
    "t4": Preset("T4", 16 * _GIB, 8_100.0, 300.0, _LAUNCH, _COPY, 16.0, 2 * _COPY, 16.0),
}

#: Without a preset: the speeds of the smallest card above and little memory, so that a laptop
#: shows what happens when devices fill up.
DEFAULT = PRESETS["t4"]._replace(name="simulated device", memory=512 * 1024**2)
