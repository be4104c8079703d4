"""NO_MANAGED=1: everything can be imported, and nothing is changed but names that do nothing."""

import ast
from pathlib import Path

import managed
from managed import _inert

PROGRAM = """
import torch
before = dict(vars(torch.Tensor))
engine = torch.autograd.Variable._execution_engine
import managed
from managed import ManagedTensor, ManagedModule, DeviceManager, device_manager, errors
import sys
assert "managed._C" not in sys.modules
after = dict(vars(torch.Tensor))
names = {"cuda", "pin", "unpin", "pinned", "unplace", "placed"}
assert {k for k, v in after.items() if before.get(k) is not v} == names
assert torch.autograd.Variable._execution_engine is engine

x = torch.ones(3).as_subclass(ManagedTensor)
assert x.__class__ is torch.Tensor and isinstance(x, ManagedTensor)
assert ManagedTensor([1.0]).tolist() == [1.0]
assert x.pin() is x and x.unpin() is x and x.pinned is False
assert x.unplace() is x and x.placed is False
assert x.cuda(disperse=True).device.type in ("cpu", "cuda")
x.pinned = 1  # a plain tensor keeps attributes by these names
assert x.pinned == 1

net = ManagedModule.from_module(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)))
assert net.cuda(disperse=True).cuda() is net and net.cpu().pin().unpin() is net
assert net.to(torch.float64)[0].weight.__class__ is torch.nn.Parameter
assert managed.hint(net, near="cpu", reuse=True, wont_need=True) is net
net(torch.ones(2, 3, dtype=torch.float64)).sum().backward()

class Net(ManagedModule):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
Net()

for manager in (device_manager, DeviceManager(reserved=0.5)):
    assert manager.find_device(10) == torch.device("cpu") == manager.cpu_device
    assert manager.send([x], "cpu")[0] is x and manager.send(x) is x and manager.cuda(x) is x
    assert manager.devices == [manager.cpu_device] and manager.cuda_devices == []
    manager.log("quiet")

managed.USE_HEURISTIC = False
managed.HEURISTIC_FUNCTION = len
assert managed.HEURISTIC_FUNCTION is len and managed.USE_HEURISTIC is False
managed.device_manager = manager
assert managed.stats(reset=True) == {} and managed.explain(x) == []
with managed.frozen(), managed.budget("sim:0", "1MiB"):
    pass
print("done")
"""


def test_the_package_is_inert(run_python):
    assert run_python(PROGRAM, NO_MANAGED=1, MANAGED_SIM="4x8MiB").strip() == "done"


def test_zero_means_active(run_python):
    assert run_python("import sys, managed; print('managed._C' in sys.modules)", NO_MANAGED=0)


def test_simulated_devices_are_torchs_own_then(run_python):
    run_python(
        """
        import torch, managed
        managed.simulate(2, "8MiB")
        assert torch.ones(2, device="sim:1").sum().item() == 2
        """,
        NO_MANAGED=1,
    )


def test_the_stand_in_has_what_the_package_asks_for():
    """Every C.name in the package exists in the stand-in, unless only active code reaches it."""
    folder = Path(managed.__file__).parent
    active_only = {
        "module.py": {"device"},
        "_torch_patches/checkpoint.py": None,
        "_torch_patches/dlpack.py": {"exchange_api"},
        "_torch_patches/functions.py": None,
        "_torch_patches/graphs.py": None,
        "_torch_patches/launch.py": None,
        "_torch_patches/optim.py": None,
        "_modules/named.py": {"number"},
        "_on/on.py": None,
        "_views/stats_tables.py": {"residency"},
        "explain.py": {"is_spilled"},
        "hints.py": {"alone", "device"},
        "plans.py": {"load_steps", "save_steps"},
        "_on/cuda.py": None,
        "_modules/placement.py": None,
        "_torch_patches/saving.py": None,
        "_modules/walk.py": None,
        "_modules/wrappers.py": None,
        "_simulated/memory.py": {"capacity"},
    }
    active_only["settings.py"] = {"capacity", "device_name", "host_memory", "set_host_limit"}
    for path in [*folder.glob("*.py"), *folder.glob("_*/*.py")]:
        here = path.relative_to(folder).as_posix()
        skipped = active_only.get(here, set())
        if skipped is None:
            continue
        tree = ast.walk(ast.parse(path.read_text()))
        used = {
            n.attr
            for n in tree
            if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "C"
        }
        assert used - skipped <= set(vars(_inert)), here
