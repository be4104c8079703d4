"""What a run on the fault looked like: memory over time, the table that is printed, the picture."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

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
from matplotlib.transforms import Transform

# Okabe and Ito's colours, told apart by all kinds of colour vision; then they repeat.
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999"]


class MemoryLog:
    """Notes the bytes that each accelerator has allocated, every few milliseconds, while it is open."""

    def __init__(self, interval: float = 0.005) -> None:
        self.interval = interval
        self.seconds: list[float] = []
        self.bytes: list[list[int]] = []

    def __enter__(self) -> "MemoryLog":
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._start = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._note()

    def _run(self) -> None:
        self._note()
        while not self._stop.wait(self.interval):
            self._note()

    def _note(self) -> None:
        self.seconds.append(time.perf_counter() - self._start)
        self.bytes.append([torch.accelerator.memory_allocated(i) for i in range(torch.accelerator.device_count())])


def report(
    surface: Surface,
    patches: list[Patch],
    devices: list[str],
    solutions: list[np.ndarray],
    log: MemoryLog,
    out: str,
) -> None:
    """Prints the table and the error, and writes pde_fault.png into the folder `out`."""
    worst = max(errors(patches, solutions))
    new = stitch(surface, patches, solutions)
    names = sorted(set(devices))
    held = {name: sum(p.nbytes for p, d in zip(patches, devices, strict=True) if d == name) for name in names}
    mean = sum(held.values()) / len(held)

    print(f"{'device':>8} {'patches':>8} {'dense':>6} {'unknowns':>9} {'matrix bytes':>13} {'of the mean':>12}")
    for name in names:
        mine = [p for p, d in zip(patches, devices, strict=True) if d == name]
        dense, size = sum(p.dense for p in mine), sum(p.rhs.size for p in mine)
        print(f"{name:>8} {len(mine):8} {dense:6} {size:9,} {held[name]:13,} {held[name] / mean:12.1%}")
    unknowns = sum(p.rhs.size for p in patches)
    print(f"{unknowns:,} unknowns in {len(patches)} systems, {log.seconds[-1]:.1f} s")
    print(f"largest relative error of a patch against scipy: {worst:.1e}")
    print(f"largest distance to one system for the whole surface: {np.abs(new - whole(surface)).max():.3f} m")

    Path(out).mkdir(parents=True, exist_ok=True)
    path = Path(out) / "pde_fault.png"
    labels = {name: f"{name}: {bytes_ / 2**20:.0f} MiB of matrices" for name, bytes_ in held.items()}
    title = f"{len(patches)} linear systems with {unknowns:,} unknowns; relative error at most {worst:.0e}"
    draw(surface, patches, devices, new, log, labels, title, path)
    print(f"picture: {path}")


def draw(
    surface: Surface,
    patches: list[Patch],
    devices: list[str],
    new: np.ndarray,
    log: MemoryLog,
    labels: dict[str, str],
    title: str,
    path: Path,
) -> None:
    """Four panels: the solution, the patches, the device of each, memory over time."""
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(labels)}
    style = {"font.size": 11, "axes.titlesize": 13, "axes.titleweight": "bold", "axes.titlelocation": "left"}
    with plt.rc_context(style):
        figure, axes = plt.subplots(2, 2, figsize=(12, 13.4), layout="constrained")
        figure.get_layout_engine().set(rect=(0, 0, 1, 0.935), w_pad=0.15, h_pad=0.1)
        figure.text(0.03, 0.968, "Soil creep on the Jacksboro fault", fontsize=22, fontweight="bold")
        figure.text(0.03, 0.946, title, fontsize=13, color="#444444")
        draw_solution(axes[0, 0], surface, new)
        draw_patches(axes[0, 1], surface, patches)
        draw_devices(axes[1, 0], surface, patches, devices, colour, labels)
        draw_memory(axes[1, 1], log)
        figure.savefig(path, dpi=120)
        plt.close(figure)


def paint(axis: Axes, surface: Surface, colours: np.ndarray, title: str) -> None:
    """Puts (rows, columns, 3) colours on the surface, lit from the north-west."""
    rows, columns = surface.height.shape
    dy, dx = surface.spacing
    light = LightSource(azdeg=315, altdeg=45).hillshade(surface.height, vert_exag=2, dx=dx, dy=dy)
    shaded = np.clip(colours * (0.4 + 0.75 * light[..., None]), 0, 1)
    axis.imshow(shaded, extent=(0, columns * dx / 1000, rows * dy / 1000, 0), interpolation="bilinear")
    axis.set(title=title, xlabel="km", ylabel="km", xticks=range(0, 31, 10), yticks=range(0, 31, 10))


def paint_patches(
    axis: Axes, surface: Surface, patches: list[Patch], colours: Sequence[tuple[float, ...]], title: str
) -> None:
    """One colour a patch, with white outlines."""
    image = np.empty((*surface.height.shape, 3))
    dy, dx = (metres / 1000 for metres in surface.spacing)
    for p, colour in zip(patches, colours, strict=True):
        image[p.rows, p.columns] = colour[:3]
        corner = (p.columns.start * dx, p.rows.start * dy)
        width, height = (p.columns.stop - p.columns.start) * dx, (p.rows.stop - p.rows.start) * dy
        axis.add_patch(Rectangle(corner, width, height, fill=False, edgecolor="white", linewidth=0.9))
    paint(axis, surface, image, title)


def draw_solution(axis: Axes, surface: Surface, new: np.ndarray) -> None:
    scale = ScalarMappable(Normalize(-25, 25), "BrBG")
    colours = scale.to_rgba(new - surface.height)[..., :3]
    paint(axis, surface, colours, f"Height after {YEARS / 1e6:.0f} million years, less today's")
    colorbar(axis, scale, "metres: ridges lose what valleys gain", extend="both")


def draw_patches(axis: Axes, surface: Surface, patches: list[Patch]) -> None:
    sizes = [p.rhs.size for p in patches]
    scale = ScalarMappable(LogNorm(min(sizes), max(sizes)), "cividis")
    colours = [scale.to_rgba(size) for size in sizes]
    paint_patches(axis, surface, patches, colours, "Patches: small where it is steep")
    bar = colorbar(axis, scale, "unknowns of a patch")
    ticks = [t for t in (500, 1000, 2000, 4000, 8000, 16000) if min(sizes) <= t <= max(sizes)]
    bar.set_ticks(ticks, labels=[f"{t:,}" for t in ticks])
    bar.ax.minorticks_off()
    bar.ax.axvline(DENSE, color="white", linewidth=2)
    bar.ax.text(DENSE * 0.96, 0.45, "dense", color="white", fontsize=9, ha="right", va="center", transform=over(bar.ax))
    bar.ax.text(DENSE * 1.04, 0.45, "conjugate gradients", color="white", fontsize=9, va="center", transform=over(bar.ax))


def colorbar(axis: Axes, scale: ScalarMappable, label: str, extend: str = "neither") -> Colorbar:
    return axis.figure.colorbar(
        scale, ax=axis, label=label, extend=extend, location="bottom", shrink=0.85, aspect=22, pad=0.02
    )


def over(axis: Axes) -> Transform:
    """Data along x, the height of the axes along y."""
    return axis.get_xaxis_transform()


def draw_devices(
    axis: Axes,
    surface: Surface,
    patches: list[Patch],
    devices: list[str],
    colour: dict[str, str],
    labels: dict[str, str],
) -> None:
    colours = [to_rgb(colour[d]) for d in devices]
    paint_patches(axis, surface, patches, colours, "The device of each patch")
    axis.legend(
        handles=[Swatch(color=colour[name], label=label) for name, label in labels.items()],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.1),
        ncols=2,
        frameon=False,
    )


def draw_memory(axis: Axes, log: MemoryLog) -> None:
    """Bytes allocated on each accelerator, stacked."""
    axis.set(title="Memory of the devices over time", xlabel="seconds", ylabel="MiB allocated, stacked", box_aspect=1.06)
    axis.spines[["top", "right"]].set_visible(False)
    mib = np.array(log.bytes).T / 2**20
    if mib.size == 0:
        text = "no accelerator here, and torch\nkeeps no count of host memory"
        axis.text(0.5, 0.5, text, ha="center", transform=axis.transAxes)
        return
    axis.stackplot(log.seconds, mib, colors=[COLOURS[i % len(COLOURS)] for i in range(len(mib))], linewidth=0)
    axis.margins(0)
