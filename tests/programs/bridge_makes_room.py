"""The bridge is asked for room before an allocation fails, and told of what is freed."""

import ctypes

import torch

import managed
from managed import _sim


class Bridge(ctypes.Structure):  # csrc/torch/devices/bridge.h
    MakeRoom = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_int, ctypes.c_size_t)
    Freed = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_size_t)
    _fields_ = [("version", ctypes.c_int), ("make_room", MakeRoom), ("freed", Freed)]


managed.simulate(2, 1000)
pointer = ctypes.pythonapi.PyCapsule_GetPointer
pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
bridge = Bridge.from_address(pointer(_sim.bridge, b"managed._sim.bridge"))
victims = [torch.empty(400, dtype=torch.int8, device="sim:1") for _ in range(2)]
asked: list[tuple[int, int]] = []
freed: list[tuple[int, int]] = []


def make_room(device, n):
    asked.append((device, n))
    return bool(victims) and victims.pop() is not None


bridge.make_room = keep = Bridge.MakeRoom(make_room)
bridge.freed = keep_too = Bridge.Freed(lambda device, n: freed.append((device, n)))
x = torch.empty(900, dtype=torch.int8, device="sim:1")
assert asked == [(1, 900), (1, 900)] and freed == [(1, 400), (1, 400)], (asked, freed)
for size, times in ((200, 3), (1001, 3)):  # no room is made for what can never fit
    try:
        torch.empty(size, dtype=torch.int8, device="sim:1")
    except torch.OutOfMemoryError:
        assert len(asked) == times
    else:
        raise AssertionError
print(torch.sim.memory_allocated(1))
bridge.freed = Bridge.Freed()  # x outlives the function
