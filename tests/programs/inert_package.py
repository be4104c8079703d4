"""With NO_MANAGED=1 everything is there and does nothing; prints done."""

import sys

import torch

before = dict(vars(torch.Tensor))
engine = torch.autograd.Variable._execution_engine
import managed  # noqa: E402
from managed import (  # noqa: E402
    DeviceManager,
    ManagedModule,
    ManagedTensor,
    device_manager,
    errors,  # noqa: F401
)

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
x.pinned = 1  # type: ignore[misc, assignment] # a plain tensor keeps attributes by these names
assert x.pinned == 1

net = ManagedModule.from_module(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)))
assert net.cuda(disperse=True).cuda() is net
assert net.cpu().pin().unpin() is net  # type: ignore[operator]
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
managed.HEURISTIC_FUNCTION = len  # type: ignore[assignment]
assert managed.HEURISTIC_FUNCTION is len  # type: ignore[comparison-overlap]
assert managed.USE_HEURISTIC is False
managed.device_manager = manager
assert managed.stats(reset=True) == {} and managed.explain(x) == []
with managed.frozen(), managed.budget("sim:0", "1MiB"):
    pass
pipe = managed.Pipeline(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)), 3)
batch = torch.randn(7, 4)
loss = pipe.step(lambda y, _: y.square().mean(), batch)
assert torch.allclose(loss, pipe.eval(batch).square().mean())
assert all(p.grad is not None for p in pipe.module.parameters()) and not pipe.plan().stages

print("done")
