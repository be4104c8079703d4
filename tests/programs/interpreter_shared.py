"""What N threads take that issue operators: `interpreter_shared.py PYTHON_NS free|repeatable N`."""

import json
import sys
import threading

import torch

import managed
from managed._simulated.presets import PRESETS

python, repeatable, n = sys.argv[1], sys.argv[2] == "repeatable", int(sys.argv[3])
described = PRESETS["a100-40g"]._asdict() | {"issue_ns": 5000, "python_ns": int(python)}
described["efficiency"] = described["efficiency"]._asdict()
with open("card.json", "w") as file:
    json.dump(described, file)
managed.simulate(4, "64MiB", preset="card.json", repeatable=repeatable)
torch.set_num_threads(1)
took = [0] * n
together = threading.Barrier(n)


def issue(device):
    x = torch.ones(4, device=f"sim:{device}")
    together.wait()
    begin = torch.sim.virtual_time("cpu")
    for _ in range(400):
        x.neg_()
    took[device] = round((torch.sim.virtual_time("cpu") - begin) * 1e9)


threads = [threading.Thread(target=issue, args=(i,)) for i in range(n)]
for t in threads:
    t.start()
for t in threads:
    t.join()
print(json.dumps(took))
