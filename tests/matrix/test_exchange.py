"""Data in and out

NumPy, DLPack, printing, copies, files and batches: what leaves is plain, what is copied is managed.
"""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from support.devices import D1, D3
from torch import nn
from torch.utils.data import default_collate

from managed import ManagedModule, ManagedTensor

from .common import managed_on, same


@pytest.mark.row("numpy()", note="of a managed tensor on the CPU: shares its memory")
def test_numpy():
    x = managed_on(torch.randn(3), "cpu")
    array = x.numpy()
    array[0] = 7
    assert x[0] == 7
    assert np.array_equal(np.asarray(x), array)
    assert np.array_equal(x.__array__(np.float64), array.astype(np.float64))


@pytest.mark.row("numpy() of a simulated device", "refused: TypeError", note="use .cpu().numpy()")
def test_numpy_of_a_device():
    x = managed_on(torch.randn(3), D1)
    for convert in (lambda: x.numpy(), lambda: np.asarray(x)):
        with pytest.raises(TypeError, match=r"Tensor.cpu\(\)"):
            convert()
    assert np.array_equal(x.cpu().numpy(), x.numpy(force=True))


@pytest.mark.row("torch.from_numpy, as_tensor, tensor")
def test_from_numpy(place):
    array = np.arange(4.0)
    x = torch.from_numpy(array).as_subclass(ManagedTensor)
    x.add_(1)
    assert array[0] == 1
    there = place(torch.arange(4.0))
    assert torch.as_tensor(there) is there
    made = torch.tensor(there.tolist(), device=there.device)
    assert made.__class__ is torch.Tensor
    with pytest.warns(UserWarning, match="To copy construct from a tensor"):
        same(torch.arange(4.0), torch.tensor(there))


@pytest.mark.row("DLPack", note="both ways on the CPU")
def test_dlpack():
    x = managed_on(torch.randn(3), "cpu")
    other = torch.from_dlpack(x)
    assert other.data_ptr() == x.data_ptr()
    assert np.array_equal(np.from_dlpack(x), x.numpy())
    back = torch.from_dlpack(np.ones(2, np.float32)).as_subclass(ManagedTensor)
    same(torch.ones(2), back)


@pytest.mark.row(
    "DLPack of a simulated device", "refused: ValueError", note="NumPy says RuntimeError"
)
def test_dlpack_of_a_device():
    x = managed_on(torch.randn(3), D1)
    for take in (torch.from_dlpack, np.from_dlpack):
        with pytest.raises(
            (ValueError, RuntimeError), match=r"Unknown device type|Unsupported device"
        ):
            take(x)


@pytest.mark.row("Printing", note="as plain tensors, with the device")
def test_printing():
    x = torch.randn(2, 3, requires_grad=True)
    for make in (lambda t: t, lambda t: t * 2, lambda t: t.detach(), lambda t: t[:0], nn.Parameter):
        there = managed_on(x, "cpu")
        assert repr(make(there)) == repr(make(x))
        assert str(make(there)) == str(make(x))
        there, plain = managed_on(x, D1), x.detach().to(D1).requires_grad_()
        assert repr(make(there)) == repr(make(plain))
        assert f"device='{D1}'" in repr(make(there))
    assert f"{managed_on(torch.tensor(1.5), D1):.2f}" == "1.50"
    for big in (torch.randn(2000), torch.randn(2, dtype=torch.complex64), torch.tensor([True])):
        assert repr(managed_on(big, "cpu")) == repr(big)


@pytest.mark.row("Printing", note="modules too")
def test_printing_modules():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    assert repr(ManagedModule.from_module(copy.deepcopy(net))) == repr(net)


@pytest.mark.row("pickle", note="what is unpickled is plain, on the same device")
def test_pickle(place):
    x = place(torch.randn(3, requires_grad=True))
    parameter = nn.Parameter(place(torch.randn(2)))
    for t in (x, parameter):
        back = pickle.loads(pickle.dumps(t))
        assert type(back) is type(t)
        assert not isinstance(back, ManagedTensor)
        assert (back.device, back.requires_grad) == (t.device, True)
        assert torch.equal(back.cpu(), t.cpu())


@pytest.mark.row("copy.deepcopy", note="stays managed and placed; a pin is not copied")
def test_deepcopy(place):
    x = torch.randn(3, requires_grad=True)
    there = place(x).pin()
    twin = copy.deepcopy(there)
    same(x, twin)
    assert twin.device == there.device
    assert not twin.pinned
    assert twin.data_ptr() != there.data_ptr()
    net = nn.Linear(3, 2)
    twin = copy.deepcopy(place.module(net))
    assert isinstance(twin, ManagedModule)
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        same(p, q)


@pytest.mark.row("copy.copy", note="of a tensor gives a plain one that shares its memory")
def test_copy(place):
    x = place(torch.randn(3))
    twin = copy.copy(x)
    assert twin.__class__ is torch.Tensor
    assert (twin.device, twin.data_ptr()) == (x.device, x.data_ptr())


@pytest.mark.row(
    "torch.save, torch.load", note="weights_only, map_location; loaded tensors are plain"
)
def test_save_and_load(place):
    tensors = {
        "x": torch.randn(3),
        "view": torch.randn(4, 4)[1:, ::2],
        "p": nn.Parameter(torch.ones(2)),
    }
    there = {k: place(t) for k, t in tensors.items()} | {"nested": [place(torch.ones(2))]}
    file = io.BytesIO()
    torch.save(there, file)
    for arguments in ({}, {"map_location": "cpu"}, {"map_location": D3}):
        file.seek(0)
        back = torch.load(file, weights_only=True, **arguments)
        for k, t in tensors.items():
            assert not isinstance(back[k], ManagedTensor)
            assert torch.equal(back[k].cpu(), t)
            assert back[k].device == torch.device(arguments.get("map_location", there[k].device))


@pytest.mark.row("torch.save, torch.load")
def test_shared_storage_stays_shared_in_a_file(place):
    x = place(torch.arange(4.0))
    file = io.BytesIO()
    torch.save([x, x[1:]], file)
    file.seek(0)
    whole, part = torch.load(file, weights_only=True)
    whole[1] = 9
    assert part[0] == 9


@pytest.mark.row("default_collate", note="batches of managed tensors are managed")
def test_default_collate(place):
    samples = [{"x": torch.randn(3), "y": i, "z": (torch.randn(2), "s")} for i in range(4)]
    there = [{"x": place(s["x"]), "y": s["y"], "z": (place(s["z"][0]), "s")} for s in samples]
    expected, actual = default_collate(samples), default_collate(there)
    same(expected["x"], actual["x"])
    same(expected["z"][0], actual["z"][0])
    assert torch.equal(expected["y"], actual["y"])


@pytest.mark.row("tolist, item, iteration, len, bool, indexing by a managed tensor")
def test_python_protocols(place):
    x = torch.arange(6).reshape(2, 3)
    there = place(x)
    assert there.tolist() == x.tolist()
    assert [row.tolist() for row in there] == x.tolist()
    assert (len(there), there.sum().item(), int(there[0, 1]), bool(there[0, 1])) == (2, 15, 1, True)
    assert there[1, 1] in there
    assert [10, 20, 30][place(torch.tensor(1))] == 20
    same(x[torch.tensor([1, 0])], there[place(torch.tensor([1, 0]))])
    same(x[x > 2], there[place(x) > 2])
    assert list(range(place(torch.tensor(3)))) == [0, 1, 2]
    assert hash(there) == hash(there)
    assert {there: 1}[there] == 1


@pytest.mark.row("Storage", note="untyped_storage, data_ptr, set_, share_memory_ on the CPU")
def test_storage(place):
    x = place(torch.arange(4.0))
    assert x.untyped_storage().nbytes() == 16
    assert x.untyped_storage().device == x.device
    y = torch.empty(0, device=x.device).as_subclass(ManagedTensor)
    y.set_(x.untyped_storage(), 1, (2,), (1,))
    same(torch.tensor([1.0, 2.0]), y)
    shared = managed_on(torch.ones(2), "cpu").share_memory_()
    assert shared.is_shared()
    assert isinstance(shared, ManagedTensor)
