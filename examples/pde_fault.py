"""Soil creep on the Jacksboro fault: one linear system a patch of the surface, over all devices.

Without a GPU the devices are simulated. pde_fault_single.py is the same for one device.
"""

from concurrent.futures import ThreadPoolExecutor

import fault
import torch
from fault_report import memory_log, report

import managed
from managed import ManagedTensor


def place(patches):
    # One after the other, largest first: the same matrices go to the same devices every time.
    return [fault.as_tensor(p).as_subclass(ManagedTensor).cuda(disperse=True) for p in patches]


def solve(patches, threads):
    matrices = place(patches)
    devices = [str(matrix.device) for matrix in matrices]
    with ThreadPoolExecutor(threads) as pool:
        solutions = pool.map(fault.solve, matrices, patches)
        del matrices  # so that each is freed as soon as its patch is solved
        return devices, list(solutions)


def main():
    args = fault.arguments(__doc__, simulated=True)
    torch.set_num_threads(1)  # the threads of the pool are the parallelism
    if not torch.cuda.is_available():
        managed.simulate(devices=args.devices, memory=args.memory)

    surface = fault.load()
    patches = fault.cut(surface, args.patches)
    with memory_log() as log:
        devices, solutions = solve(patches, args.threads)
    report(surface, patches, devices, solutions, log, args.out)


if __name__ == "__main__":
    main()
