"""What simulated devices can do: speeds and links of real ones, from public sources."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["DEFAULT", "PRESETS", "Efficiency", "Preset", "read_preset"]

_GIB = 1024**3


class Efficiency(NamedTuple):
    """Which part of a peak operators reach.

    Assumptions, not measurements. Whole training steps of large models reach 44 to 52 % of what the
    matrix units of an A100 can do (Narayanan et al., SC 2021, table 1), so their products alone
    reach somewhat more.
    """

    matrix: float = 0.55  #: products on matrix units
    convolution: float = 0.40  #: convolutions on matrix units
    vector_matrix: float = 0.85  #: products of numbers that matrix units do not take
    vector_convolution: float = 0.60
    elementwise: float = 0.85
    memory: float = 0.85  #: of the bandwidth


class Preset(NamedTuple):
    """One kind of device. Bandwidths are in bytes/ns, which is the same as 10**9 bytes/s."""

    name: str
    memory: int  #: bytes
    #: Peaks in 10**12 operations/s, without sparsity (a multiplication and an addition are two): of
    #: the matrix units, and of all others. Numbers that neither lists are worked on as float32.
    matrix: Mapping[str, float]
    vector: Mapping[str, float]
    bytes_per_ns: float  #: peak of the memory bandwidth
    host_bytes_per_ns: float  #: between the device and the host, one direction
    peer_bytes_per_ns: float  #: between two devices, one direction
    # Assumptions as well: the smallest kernel takes a few microseconds on every CUDA device, torch
    # and the driver take about as long to issue one, and starting a copy over PCIe twice as long.
    launch_ns: int = 2_000  #: the shortest that an operator takes on the device
    issue_ns: int = 5_000  #: what it costs the thread that issues it
    #: Of these, under the interpreter's lock: modules, functions and torch's bindings, which take
    #: more than half; torch's C++ and the driver need no lock. More than issue_ns counts as that.
    python_ns: int = 3_000
    host_latency_ns: int = 10_000
    peer_latency_ns: int = 10_000
    devices_per_switch: int = 1  #: that share one link of `host_bytes_per_ns` to the host
    peers_over_host: bool = False  #: devices have no links of their own, and use those to the host
    #: What all copies of the machine share, whatever way they go; 0: nothing.
    all_bytes_per_ns: float = 0.0
    #: Bytes of the host that what leaves devices may take, where these hold no values; with values
    #: it is the real host's. An assumption where no server is named.
    host_memory: int = 256 * _GIB
    efficiency: Efficiency = Efficiency()

    def rate(self, kind: str, precision: str) -> float:
        """Operations/ns that a kind of arithmetic ("matrix", ...) reaches on such numbers."""
        e, vector = self.efficiency, self.vector.get(precision, self.vector["float32"])
        if kind == "elementwise":
            return vector * e.elementwise * 1e3
        if precision in self.matrix:
            part = e.matrix if kind == "matrix" else e.convolution
            return self.matrix[precision] * part * 1e3
        return vector * (e.vector_matrix if kind == "matrix" else e.vector_convolution) * 1e3


_A100 = {"float64": 19.5, "tf32": 156.0, "bfloat16": 312.0, "float16": 312.0, "int8": 624.0}
_A100_VECTOR = {"float64": 9.7, "float32": 19.5, "bfloat16": 39.0, "float16": 78.0}
_H100 = {"float64": 67.0, "tf32": 494.7, "bfloat16": 989.4, "float16": 989.4, "int8": 1_978.9}
_H100_VECTOR = {"float64": 33.5, "float32": 66.9, "bfloat16": 133.8, "float16": 133.8}

PRESETS: dict[str, Preset] = {
    # NVIDIA Tesla V100 data sheet (January 2020), PCIe: 7/14/112 TFLOPS (double, single, tensor),
    # 900 GB/s, 32 GB/s over PCIe in both directions together.
    "v100-pcie": Preset(
        "V100 PCIe 32GB", 32 * _GIB, {"float16": 112.0},
        {"float64": 7.0, "float32": 14.0, "float16": 28.0}, 900.0, 16.0, 16.0,
        peer_latency_ns=20_000, peers_over_host=True,
    ),
    # NVIDIA A100 Tensor Core GPU data sheet (June 2021), 40 GB PCIe: 1,555 GB/s; PCIe gen 4 x16:
    # 31.5 GB/s; NVLink bridge 600 GB/s both directions together. Arithmetic outside the matrix
    # units: NVIDIA A100 Tensor Core GPU architecture white paper (2020), table 1.
    "a100-40g": Preset(
        "A100 40GB", 40 * _GIB, _A100, _A100_VECTOR, 1_555.0, 31.5, 300.0,
    ),
    # The same without the bridge: devices talk through the host.
    "a100-40g-pcie": Preset(
        "A100 40GB PCIe", 40 * _GIB, _A100, _A100_VECTOR, 1_555.0, 31.5, 31.5,
        peer_latency_ns=20_000, peers_over_host=True,
    ),
    # The same data sheet, 80 GB SXM: 2,039 GB/s, NVLink 600 GB/s both directions together. Servers
    # with eight of them have four PCIe switches and 2 TB (DGX A100 system architecture, NVIDIA,
    # 2020; DGX A100 data sheet, 2021).
    "a100-80g-sxm": Preset(
        "A100 80GB SXM", 80 * _GIB, _A100, _A100_VECTOR, 2_039.0, 31.5, 300.0, devices_per_switch=2,
        host_memory=2_048 * _GIB,
    ),
    # NVIDIA H100 Tensor Core GPU data sheet (2023), SXM: 3.35 TB/s; PCIe gen 5: 128 GB/s and NVLink
    # 900 GB/s, both directions together. Arithmetic: NVIDIA H100 Tensor Core GPU architecture white
    # paper (2023), table 2. Servers with eight of them have 2 TB (DGX H100 data sheet, 2023).
    "h100-sxm": Preset(
        "H100 SXM", 80 * _GIB, _H100, _H100_VECTOR, 3_350.0, 64.0, 450.0, host_memory=2_048 * _GIB,
    ),
    # The same sources, PCIe card without an NVLink bridge: 2 TB/s; devices talk through the host.
    "h100-pcie": Preset(
        "H100 PCIe", 80 * _GIB,
        {"float64": 51.2, "tf32": 378.0, "bfloat16": 756.0, "float16": 756.0, "int8": 1_513.0},
        {"float64": 25.6, "float32": 51.2, "bfloat16": 102.4, "float16": 102.4},
        2_000.0, 64.0, 64.0, peer_latency_ns=20_000, peers_over_host=True,
    ),
    # NVIDIA GH200 Grace Hopper Superchip data sheet (2023): an H100 with 96 GB of HBM3 at 4 TB/s;
    # NVLink-C2C to the host and NVLink to others: 900 GB/s each, both directions together; 480 GB
    # of the host.
    "gh200": Preset(
        "GH200 96GB", 96 * _GIB, _H100, _H100_VECTOR, 4_000.0, 450.0, 450.0, host_memory=480 * _GIB,
    ),
    # NVIDIA Ada GPU architecture white paper (2022), GeForce RTX 4090, sums in float32: 1,008 GB/s;
    # PCIe gen 4 x16 and no NVLink: devices talk through the host.
    "rtx4090": Preset(
        "RTX 4090", 24 * _GIB,
        {"tf32": 82.6, "bfloat16": 165.2, "float16": 165.2, "int8": 660.6},
        {"float64": 1.29, "float32": 82.6, "bfloat16": 82.6, "float16": 82.6},
        1_008.0, 31.5, 31.5, peer_latency_ns=20_000, peers_over_host=True,
    ),
    # NVIDIA T4 Tensor Core GPU data sheet (2019): 8.1 TFLOPS FP32, 65 of mixed precision, 130 TOPS
    # INT8, 300 GB/s, PCIe gen 3 x16: 32 GB/s both directions together, no NVLink. NVIDIA Turing GPU
    # architecture white paper (2018): FP64 is 1/32 of FP32, FP16 twice.
    "t4": Preset(
        "T4", 16 * _GIB, {"float16": 65.0, "int8": 130.0},
        {"float64": 0.253, "float32": 8.1, "float16": 16.2}, 300.0, 16.0, 16.0,
        peer_latency_ns=20_000, peers_over_host=True,
    ),
    # The machine "sirocco" of StarPU's performance models (tools/perfmodels/sampling): 10.5 GB/s to
    # the host, 7.6 to 8.5 between devices of two pairs, 10.2 within one, of which the model here
    # has no notion; in StarPU's own simulation all copies share one "Host" link of 10.5 GB/s.
    # NVIDIA Tesla K40 GPU accelerator board specification (2013), at the base clock.
    "sirocco": Preset(
        "K40m", 12 * _GIB, {}, {"float64": 1.43, "float32": 4.29}, 288.0, 10.5, 8.5,
        host_latency_ns=10_000, peer_latency_ns=24_000, peers_over_host=True,
        all_bytes_per_ns=10.52,
    ),
}  # fmt: skip

#: Without a preset: the speeds of a small card and little memory, so that a laptop shows what
#: happens when devices fill up.
DEFAULT = PRESETS["t4"]._replace(name="simulated device", memory=512 * 1024**2)


def read_preset(path: str) -> Preset:
    """A preset from a file in JSON with the fields of Preset, as benchmarks/card.py writes it.

    ValueError that names the file for what is not one; OSError when it cannot be read.
    """
    try:
        with open(path, encoding="utf-8") as file:
            told = json.load(file)
        efficiency = Efficiency(**told.pop("efficiency", {}))
        preset = Preset(**told, efficiency=efficiency)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"managed: {path} does not describe a device: {error}") from error
    wrong = [name for name, value in preset._asdict().items() if not _is_sound(name, value)]
    wrong += [f"efficiency.{n}" for n, part in efficiency._asdict().items() if not _is_rate(part)]
    if wrong:
        raise ValueError(f"managed: {path} does not describe a device: wrong {', '.join(wrong)}")
    return preset


def _is_rate(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value < math.inf  # type: ignore[operator]


def _is_sound(name: str, value: Any) -> bool:
    if name in ("name", "efficiency"):
        return isinstance(value, str | Efficiency)
    if name in ("matrix", "vector"):
        rates = isinstance(value, dict) and all(map(_is_rate, value.values()))
        return rates and (name == "matrix" or "float32" in value)
    if name == "peers_over_host":
        return isinstance(value, bool)
    if name == "all_bytes_per_ns" and value == 0:
        return not isinstance(value, bool)
    if name.endswith("_per_ns"):
        return _is_rate(value)
    lowest = 0 if name.endswith("_ns") else 1
    return isinstance(value, int) and not isinstance(value, bool) and lowest <= value < 2**62
