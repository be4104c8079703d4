"""Systems of a surface, one after the other over the devices: a plain script for one device.

What is solved where is printed last. `place` and `solve` are examples/pde_fault_single.py's.
"""

import hashlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import fault
import pde_fault_single
import torch


def main(solve):
    torch.set_num_threads(1)
    devices, solutions = solve(fault.cut(fault.load(), 12), threads=4)
    print(
        *sorted(set(devices)), hashlib.sha256(b"".join(s.tobytes() for s in solutions)).hexdigest()
    )


if __name__ == "__main__":
    main(pde_fault_single.solve)
