"""What a run on the fault looked like: memory over time, the table that is printed, the picture."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # a file is wanted, so no display is needed
import matplotlib.pyplot as plt
import numpy as np
import torch
from fault import DENSE, YEARS, Patch, Surface, errors, stitch, whole
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LightSource, LogNorm, Normalize, to_rgb
from matplotlib.patches import Patch as Swatch
from matplotlib.patches import Rectangle

# Okabe and Ito's colours, which all kinds of colour vision tell apart; grey is the host.
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"]
HOST = "#999999"


@dataclass
class MemoryLog:
    """When it was looked, and the bytes that each accelerator had allocated then."""

    seconds: list[float] = field(default_factory=list)
    bytes: list[list[int]] = field(default_factory=list)


@contextmanager
def memory_log(interval: float = 0.005) -> Iterator[MemoryLog]:
    """Looks every `interval` seconds, in a thread of its own, while the block runs."""
    log, stop, start = MemoryLog(), threading.Event(), time.perf_counter()
    devices = range(torch.accelerator.device_count())

    def look() -> None:
        log.bytes.append([torch.accelerator.memory_allocated(i) for i in devices])
        log.seconds.append(time.perf_counter() - start)

    def watch() -> None:
        while not stop.wait(interval):
            look()

    thread = threading.Thread(target=watch)
    look()
    thread.start()
    try:
        yield log
    finally:
        stop.set()
        thread.join()
        look()


def report(
    surface: Surface,
    patches: list[Patch],
    devices: list[str],
    solutions: list[np.ndarray],
    log: MemoryLog,
    out: str,
) -> None:
    """Prints the table and the error, and writes pde_fault.png into the folder `out`."""
    held: dict[str, int] = {}
    for p, device in zip(patches, devices, strict=True):
        held[device] = held.get(device, 0) + p.nbytes
    held = dict(sorted(held.items(), key=lambda item: (len(item[0]), item[0])))
    mean = sum(held.values()) / len(held)

    print("  device  patches  dense  unknowns  matrix bytes  of the mean")
    for name, size in held.items():
        mine = [p for p, device in zip(patches, devices, strict=True) if device == name]
        dense, unknowns = sum(p.dense for p in mine), sum(p.rhs.size for p in mine)
        print(f"{name:>8} {len(mine):8} {dense:6} {unknowns:9,} {size:13,} {size / mean:12.1%}")

    unknowns = sum(p.rhs.size for p in patches)
    worst = max(errors(patches, solutions))
    new = stitch(surface, patches, solutions)
    apart = np.abs(new - whole(surface)).max()
    print(f"{unknowns:,} unknowns in {len(patches)} systems, solved in {log.seconds[-1]:.1f} s")
    print(f"largest relative error of a patch against scipy: {worst:.1e}")
    print(f"largest distance to one system for the whole surface: {apart:.3f} m")

    Path(out).mkdir(parents=True, exist_ok=True)
    path = Path(out) / "pde_fault.png"
    title = f"{len(patches)} linear systems with {unknowns:,} unknowns in all"
    draw(surface, patches, devices, held, new, log, title, path)
    print(f"picture: {path}")


def draw(
    surface: Surface,
    patches: list[Patch],
    devices: list[str],
    held: dict[str, int],
    new: np.ndarray,
    log: MemoryLog,
    title: str,
    path: Path,
) -> None:
    """Four panels: the solution, the patches, the device of each, memory over time."""
    style = {"axes.titlesize": 13, "axes.titleweight": "bold", "axes.titlelocation": "left"}
    with plt.rc_context({"font.size": 11, **style}):
        figure, axes = plt.subplots(2, 2, figsize=(12, 13.4), layout="constrained")
        figure.get_layout_engine().set(rect=(0, 0, 1, 0.935), w_pad=0.15, h_pad=0.1)
        headline = "Soil creep on the Jacksboro fault"
        figure.text(0.03, 0.968, headline, fontsize=22, fontweight="bold")
        figure.text(0.03, 0.946, title, fontsize=13, color="#444444")
        draw_solution(axes[0, 0], surface, new)
        draw_patches(axes[0, 1], surface, patches)
        draw_devices(axes[1, 0], surface, patches, devices, held)
        draw_memory(axes[1, 1], log)
        figure.savefig(path, dpi=120)
        plt.close(figure)


def colour_of(device: str) -> str:
    index = device.partition(":")[2]
    return COLOURS[int(index) % len(COLOURS)] if index else HOST


def paint(axis: Axes, surface: Surface, colours: np.ndarray, title: str) -> None:
    """Puts (rows, columns, 3) colours on the surface, lit from the north-west."""
    rows, columns = surface.height.shape
    dy, dx = surface.spacing
    light = LightSource(azdeg=315, altdeg=45).hillshade(surface.height, vert_exag=2, dx=dx, dy=dy)
    shaded = np.clip(colours * (0.4 + 0.75 * light[..., None]), 0, 1)
    extent = (0, columns * dx / 1000, rows * dy / 1000, 0)
    axis.imshow(shaded, extent=extent, interpolation="bilinear")
    axis.set(title=title, xlabel="km", ylabel="km")
    axis.set(xticks=range(0, 31, 10), yticks=range(0, 31, 10))


def paint_patches(
    axis: Axes,
    surface: Surface,
    patches: list[Patch],
    colours: Sequence[tuple[float, ...]],
    title: str,
) -> None:
    """One colour a patch, with white outlines."""
    image = np.empty((*surface.height.shape, 3))
    dy, dx = (metres / 1000 for metres in surface.spacing)
    for p, colour in zip(patches, colours, strict=True):
        image[p.rows, p.columns] = colour[:3]
        corner = (p.columns.start * dx, p.rows.start * dy)
        width = (p.columns.stop - p.columns.start) * dx
        height = (p.rows.stop - p.rows.start) * dy
        axis.add_patch(Rectangle(corner, width, height, fill=False, edgecolor="white", lw=0.9))
    paint(axis, surface, image, title)


def draw_solution(axis: Axes, surface: Surface, new: np.ndarray) -> None:
    scale = ScalarMappable(Normalize(-25, 25), "BrBG")
    colours = scale.to_rgba(new - surface.height)[..., :3]
    paint(axis, surface, colours, f"Height after {YEARS / 1e6:.0f} million years, less today's")
    colorbar(axis, scale, "metres: ridges lose what valleys gain", extend="both")


def draw_patches(axis: Axes, surface: Surface, patches: list[Patch]) -> None:
    sizes = [p.rhs.size for p in patches]
    scale = ScalarMappable(LogNorm(min(sizes), max(sizes) + 1), "cividis")
    colours = [scale.to_rgba(size) for size in sizes]
    paint_patches(axis, surface, patches, colours, "Patches: small where it is steep")
    bar = colorbar(axis, scale, "unknowns of a patch")
    ticks = [t for t in (500, 1000, 2000, 4000, 8000, 16000) if min(sizes) <= t <= max(sizes)]
    bar.set_ticks(ticks, labels=[f"{t:,}" for t in ticks])
    bar.ax.minorticks_off()
    if min(sizes) < DENSE < max(sizes):
        bar.ax.axvline(DENSE, color="white", linewidth=2)
        place = {"y": 0.45, "va": "center", "color": "white", "fontsize": 9}
        place["transform"] = bar.ax.get_xaxis_transform()
        bar.ax.text(DENSE * 0.96, s="dense", ha="right", **place)
        bar.ax.text(DENSE * 1.04, s="conjugate gradients", ha="left", **place)


def colorbar(axis: Axes, scale: ScalarMappable, label: str, extend: str = "neither") -> Colorbar:
    shape = {"location": "bottom", "shrink": 0.85, "aspect": 22, "pad": 0.02}
    return axis.figure.colorbar(scale, ax=axis, label=label, extend=extend, **shape)


def draw_devices(
    axis: Axes,
    surface: Surface,
    patches: list[Patch],
    devices: list[str],
    held: dict[str, int],
) -> None:
    colours = [to_rgb(colour_of(device)) for device in devices]
    paint_patches(axis, surface, patches, colours, "The device of each patch")
    swatches = [
        Swatch(color=colour_of(name), label=f"{name}: {size / 2**20:.0f} MiB of matrices")
        for name, size in held.items()
    ]
    axis.legend(
        handles=swatches, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False
    )


def draw_memory(axis: Axes, log: MemoryLog) -> None:
    """Bytes allocated on each accelerator, stacked."""
    axis.set(title="Memory of the devices over time", box_aspect=1.06)
    axis.set(xlabel="seconds", ylabel="MiB allocated, stacked")
    axis.spines[["top", "right"]].set_visible(False)
    mib = np.array(log.bytes).T / 2**20
    if mib.size == 0:
        text = "no accelerator here, and torch\nkeeps no count of host memory"
        axis.text(0.5, 0.5, text, ha="center", transform=axis.transAxes)
        return
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(mib))]
    axis.stackplot(log.seconds, mib, colors=colours, linewidth=0)
    axis.set(xlim=(0, log.seconds[-1]), ylim=(0, 1.05 * mib.sum(axis=0).max() + 1))
