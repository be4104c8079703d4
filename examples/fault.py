"""The Jacksboro fault as a finite element problem: everything that has nothing to do with devices.

The elevation model that ships with matplotlib becomes a surface of triangles. On it soil creeps
downhill (linear hillslope diffusion): dh/dt = k * Laplace-Beltrami(h). One implicit Euler step is
the linear system (M + k t K) h_new = M h_now, with the mass matrix M and the stiffness matrix K of
linear elements.

The surface is cut into patches, small ones where it is steep. Each patch is a system of its own: it
is solved with a margin of `HALO` cells around it, so that what lies beyond has hardly any say in
the part that is kept. Every patch is compared with scipy, and all of them with the whole surface
as one system.
"""

import argparse
import heapq
import warnings
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import skfem
import torch
from matplotlib.cbook import get_sample_data

CREEP = 0.01  # k in m^2 a year, of the order seen on soil-mantled hills
YEARS = 1_000_000.0  # length of the step; sqrt(k t) = 100 m is how far its influence reaches
HALO = 8  # cells of about 83 m, so more than six times that far
DENSE = 1600  # up to this many unknowns a patch is solved as a dense system
METRES_PER_DEGREE = 111_200.0

# torch says once a process that its CSR tensors are in beta; what is used of them here is checked
# against scipy.
warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")


@dataclass
class Surface:
    """Nodes of a (rows, columns) grid, row by row, and the system of the whole surface."""

    height: np.ndarray  # (rows, columns), metres
    spacing: tuple[float, float]  # metres between rows, between columns
    matrix: scipy.sparse.csr_matrix
    rhs: np.ndarray


@dataclass
class Patch:
    """One system, and the rectangle of nodes that is kept of its solution."""

    rows: slice
    columns: slice
    unknowns: np.ndarray  # numbers of the nodes, margin included
    matrix: scipy.sparse.csr_matrix
    rhs: np.ndarray

    @property
    def dense(self) -> bool:
        return self.rhs.size <= DENSE

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix as `as_tensor` makes it."""
        if self.dense:
            return 8 * self.rhs.size**2
        return 8 * (2 * self.matrix.nnz + self.rhs.size + 1)


def arguments(description: str, simulated: bool = False) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--threads", type=int, default=4, help="patches solved at a time")
    parser.add_argument("--patches", type=int, default=128, help="number of patches")
    parser.add_argument("--out", default="build/demo", help="folder for the picture")
    if simulated:
        parser.add_argument("--devices", type=int, default=4, help="simulated, if there is no GPU")
        parser.add_argument("--memory", default="512MiB", help="of each simulated device")
    return parser.parse_args()


def tessellate(height: np.ndarray, spacing: tuple[float, float]) -> skfem.MeshTri:
    """Two triangles a cell, cut along the diagonal that is more nearly level."""
    rows, columns = height.shape
    node = np.arange(height.size).reshape(height.shape)
    a, b, c, d = (node[:-1, :-1], node[:-1, 1:], node[1:, :-1], node[1:, 1:])
    h = height.ravel()
    falls = np.abs(h[a] - h[d]) <= np.abs(h[b] - h[c])
    first = np.where(falls, [a, b, d], [a, b, c])
    second = np.where(falls, [a, d, c], [b, d, c])
    triangles = np.concatenate([first.reshape(3, -1), second.reshape(3, -1)], axis=1)
    y, x = np.meshgrid(np.arange(rows) * spacing[0], np.arange(columns) * spacing[1], indexing="ij")
    return skfem.MeshTri(np.stack([x.ravel(), y.ravel()]), triangles)


@skfem.BilinearForm
def mass(u, v, w):
    return np.sqrt(1 + sum(w["height"].grad ** 2)) * u * v


@skfem.BilinearForm
def stiffness(u, v, w):
    # Gradients along the surface, written in map coordinates: the inverse of the metric
    # 1 + grad h grad h^T. The height is linear on a triangle, so this is exact.
    slope = w["height"].grad
    squared = 1 + sum(slope**2)
    along = sum(u.grad * v.grad) - sum(slope * u.grad) * sum(slope * v.grad) / squared
    return np.sqrt(squared) * along


def load() -> Surface:
    with get_sample_data("jacksboro_fault_dem.npz") as dem:
        height = dem["elevation"].astype(np.float64)
        latitude = np.radians((dem["ymin"] + dem["ymax"]) / 2)
        spacing = (
            METRES_PER_DEGREE * float(dem["dy"]),
            METRES_PER_DEGREE * float(dem["dx"]) * float(np.cos(latitude)),
        )
    basis = skfem.Basis(tessellate(height, spacing), skfem.ElementTriP1())
    field = basis.interpolate(height.ravel())
    m = mass.assemble(basis, height=field)
    k = stiffness.assemble(basis, height=field)
    return Surface(height, spacing, (m + CREEP * YEARS * k).tocsr(), m @ height.ravel())


def cut(surface: Surface, count: int) -> list[Patch]:
    """Cuts the steepest rectangle into two that are equally steep until there are `count`.

    The patch with the largest matrix comes first: who hands out the largest things first ends
    with equal shares.
    """
    slope = np.hypot(*np.gradient(surface.height, *surface.spacing)) ** 3

    def entry(r0: int, r1: int, c0: int, c1: int) -> tuple[float, int, int, int, int]:
        return (-float(slope[r0:r1, c0:c1].sum()), r0, r1, c0, c1)

    boxes = [entry(0, surface.height.shape[0], 0, surface.height.shape[1])]
    while len(boxes) < count:
        _, r0, r1, c0, c1 = heapq.heappop(boxes)
        across = int(c1 - c0 >= r1 - r0)  # the longer side is the one that is cut
        steep = np.cumsum(slope[r0:r1, c0:c1].sum(axis=1 - across))
        middle = 1 + int(np.searchsorted(steep, steep[-1] / 2))
        if across:
            halves = [(r0, r1, c0, c0 + middle), (r0, r1, c0 + middle, c1)]
        else:
            halves = [(r0, r0 + middle, c0, c1), (r0 + middle, r1, c0, c1)]
        for half in halves:
            heapq.heappush(boxes, entry(*half))
    patches = [patch(surface, *box) for _, *box in sorted(boxes)]
    return sorted(patches, key=lambda p: -p.nbytes)


def patch(surface: Surface, r0: int, r1: int, c0: int, c1: int) -> Patch:
    """The system of one rectangle and its margin; beyond, the surface stays as it is now."""
    node = np.arange(surface.height.size).reshape(surface.height.shape)
    inside = node[max(r0 - HALO, 0) : r1 + HALO, max(c0 - HALO, 0) : c1 + HALO].ravel()
    now = surface.height.ravel()
    matrix, rhs, *_ = skfem.condense(surface.matrix, surface.rhs, x=now, I=inside)
    return Patch(slice(r0, r1), slice(c0, c1), inside, matrix.tocsr(), rhs)


def as_tensor(p: Patch) -> torch.Tensor:
    """The float64 matrix of a patch on the host: dense if it is small, else compressed rows."""
    if p.dense:
        return torch.from_numpy(p.matrix.toarray())
    rows = torch.from_numpy(p.matrix.indptr).long()
    columns = torch.from_numpy(p.matrix.indices).long()
    values = torch.from_numpy(p.matrix.data)
    return torch.sparse_csr_tensor(rows, columns, values, p.matrix.shape, check_invariants=True)


def solve(matrix: torch.Tensor, p: Patch) -> np.ndarray:
    """The new height of the nodes of a patch, computed where its matrix is."""
    rhs = torch.from_numpy(p.rhs).to(matrix.device)
    x = torch.linalg.solve(matrix, rhs) if p.dense else conjugate_gradients(matrix, rhs)
    return x.cpu().numpy()


def conjugate_gradients(
    matrix: torch.Tensor, rhs: torch.Tensor, tolerance: float = 1e-13
) -> torch.Tensor:
    """Solves a symmetric positive definite system.

    It stops when the residual has `tolerance` times the norm of the right hand side.
    """
    x = torch.zeros_like(rhs)
    residual = rhs.clone()
    direction = rhs.clone()
    squared = residual @ residual
    enough = tolerance**2 * squared
    while squared > enough:
        image = matrix @ direction
        step = squared / (direction @ image)
        x += step * direction
        residual -= step * image
        before, squared = squared, residual @ residual
        direction = residual + (squared / before) * direction
    return x


def stitch(surface: Surface, patches: list[Patch], solutions: list[np.ndarray]) -> np.ndarray:
    """The kept insides of all patches as one (rows, columns) array."""
    new = np.full(surface.height.shape, np.nan)
    for p, solution in zip(patches, solutions, strict=True):
        local = np.full(surface.height.size, np.nan)
        local[p.unknowns] = solution
        new[p.rows, p.columns] = local.reshape(new.shape)[p.rows, p.columns]
    return new


def whole(surface: Surface) -> np.ndarray:
    """The new height by one system for the whole surface: what the patches come close to."""
    solution = scipy.sparse.linalg.spsolve(surface.matrix.tocsc(), surface.rhs)
    return solution.reshape(surface.height.shape)


def errors(patches: list[Patch], solutions: list[np.ndarray]) -> list[float]:
    """Relative error of every patch, in the Euclidean norm, against scipy's direct solver."""
    result = []
    for p, solution in zip(patches, solutions, strict=True):
        exact = scipy.sparse.linalg.spsolve(p.matrix.tocsc(), p.rhs)
        result.append(float(np.linalg.norm(solution - exact) / np.linalg.norm(exact)))
    return result
