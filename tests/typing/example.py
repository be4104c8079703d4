"""A user's program as type checkers see it: mypy and pyright reveal the same types."""

import torch
from torch import nn
from typing_extensions import reveal_type

import managed
from managed import DeviceManager, ManagedModule, ManagedTensor, device_manager, sim

x = torch.rand(3).as_subclass(ManagedTensor)
reveal_type(x)  # ManagedTensor
reveal_type(ManagedTensor([1.0, 2.0]))  # ManagedTensor
reveal_type(x.cuda())  # ManagedTensor
reveal_type(x.cuda(disperse=True))  # ManagedTensor
reveal_type(x.cuda(1).pin().unpin())  # ManagedTensor
reveal_type(x.pinned)  # bool
reveal_type(x + 1)  # Tensor


class Net(ManagedModule):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.fc(x)
        return y


net = Net().cuda(disperse=True)
reveal_type(net)  # Net
reveal_type(net.pin().unpin().cpu().to("cuda"))  # Net


class Theirs(nn.Module):
    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum()


theirs = ManagedModule.from_module(Theirs())
reveal_type(theirs)  # Theirs
reveal_type(theirs.loss(x))  # Tensor
reveal_type(device_manager.cuda(theirs, disperse=True))  # Theirs
assert isinstance(theirs, ManagedModule)
reveal_type(theirs.cuda(disperse=True).pin().loss(x))  # Tensor

manager = DeviceManager(cuda_devices=[0, "sim:1"], reserved=0.2)
manager.default_level = "INFO"
manager.cuda_devices = None
reveal_type(manager)  # DeviceManager
reveal_type(manager.cuda_devices)  # list[device]
reveal_type(manager.find_device(1000, disperse=True))  # device
reveal_type(device_manager.send([x], "cuda:1"))  # list[ManagedTensor]
reveal_type(device_manager.send({"a": torch.ones(1)}))  # dict[str, Tensor]
reveal_type(device_manager.cuda(net, disperse=True))  # Net

managed.simulate(devices=4, memory="512MiB")
reveal_type(sim.memory_allocated("sim:0"))  # int
reveal_type(sim.device_count())  # int
managed.USE_HEURISTIC = False
managed.HEURISTIC_FUNCTION = lambda size: size + 1
reveal_type(managed.HEURISTIC_FUNCTION(3))  # int
managed.device_manager = manager

with managed.budget("sim:0", "300MiB") as cap, managed.frozen():
    reveal_type(cap.bytes)  # int
reveal_type(managed.stats(reset=True))  # dict[str, Any]
reveal_type(managed.explain(x)[0].reason)  # str

try:
    manager.send(x, "cuda:0")
except managed.OutOfMemoryError as error:
    reveal_type(error)  # OutOfMemoryError
except managed.errors.PinConflictError:
    pass
