"""cuda() while the heuristic and the clock assign other device managers."""

import torch

import managed
from managed import DeviceManager, ManagedTensor
from managed._backend import C

managed.simulate(devices=1, memory="64MiB")


def heuristic(size):
    managed.device_manager = DeviceManager(reserved=0.5)
    return size


managed.HEURISTIC_FUNCTION = heuristic
for _ in range(3):
    y = torch.rand(4).as_subclass(ManagedTensor).cuda()
    assert y.device.type == "sim"
managed.HEURISTIC_FUNCTION = C.default_heuristic


class Clock:
    def sleep(self, seconds):
        managed.device_manager = DeviceManager()
        held.release()


managed.device_manager = DeviceManager(Clock(), reserved=0.0)
held = C.admit(managed.device_manager, 60 * 2**20, False)
x = torch.empty(30 * 2**20, dtype=torch.uint8).as_subclass(ManagedTensor)
assert x.cuda().device.type == "sim"
