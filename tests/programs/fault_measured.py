"""Measures what examples/pde_fault.py must hold at its full size; prints one JSON object.

python fault_measured.py FOLDER_OF_EXAMPLES
"""

import gc
import json
import sys

sys.path.insert(0, sys.argv[1])

import fault
import pde_fault
import torch

import managed

torch.set_num_threads(1)
managed.simulate(devices=4, memory="512MiB")
patches = fault.cut(fault.load(), 128)

made = {id(p): fault.as_tensor(p) for p in patches}  # once: what is asked is where they go
fault.as_tensor = lambda p: made[id(p)]
placements, held = [], []
for _ in range(20):
    matrices = pde_fault.place(patches)
    placements.append([str(m.device) for m in matrices])
    held.append([torch.sim.memory_allocated(i) for i in range(4)])
    del matrices
    gc.collect()
left = [torch.sim.memory_allocated(i) for i in range(4)]

devices, four = pde_fault.solve(patches, threads=4)
again, sixteen = pde_fault.solve(patches, threads=16)
print(
    json.dumps(
        {
            "unknowns": [p.rhs.size for p in patches],
            "kept": sum(
                p.rows.stop * p.columns.stop
                - p.rows.start * p.columns.stop
                - p.rows.stop * p.columns.start
                + p.rows.start * p.columns.start
                for p in patches
            ),
            "dense": [p.dense for p in patches],
            "bytes": [p.nbytes for p in patches],
            "placements": [*placements, devices, again],
            "held": held,
            "left": left,
            "errors": fault.errors(patches, four),
            "same": [a.tobytes() == b.tobytes() for a, b in zip(four, sixteen, strict=True)],
        }
    )
)
