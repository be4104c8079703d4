"""Soil creep on the Jacksboro fault: one linear system a patch of the surface, on one device.

pde_fault.py is the same for all devices.
"""

from concurrent.futures import ThreadPoolExecutor

import fault
import torch
from fault_report import memory_log, report


def place(patches):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return [fault.as_tensor(p).to(device) for p in patches]


def solve(patches, threads):
    matrices = place(patches)
    devices = [str(matrix.device) for matrix in matrices]
    with ThreadPoolExecutor(threads) as pool:
        solutions = pool.map(fault.solve, matrices, patches)
        del matrices  # so that each is freed as soon as its patch is solved
        return devices, list(solutions)


def main():
    args = fault.arguments(__doc__)
    torch.set_num_threads(1)  # the threads of the pool are the parallelism

    surface = fault.load()
    patches = fault.cut(surface, args.patches)
    with memory_log() as log:
        devices, solutions = solve(patches, args.threads)
    report(surface, patches, devices, solutions, log, args.out)


if __name__ == "__main__":
    main()
