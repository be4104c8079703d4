"""A copy of an earlier use must not serve once its original was written, by whatever way."""

import ctypes

import numpy as np
import pytest
import torch
from support.devices import D0, D1, D2, device_module
from torch.utils import dlpack

import managed
from managed import ManagedModule, ManagedTensor


def managed_zeros():
    return torch.zeros(4).as_subclass(ManagedTensor)


def there():
    return torch.zeros(4, device=D1).as_subclass(ManagedTensor)


def assert_seen(x, write, value):
    """`write` makes x's elements `value` after copies of them may have been kept."""
    z = there()
    assert torch.equal((x + z).cpu(), x.detach())
    assert torch.equal((x + z).cpu(), x.detach())
    write()
    assert x.tolist() == [value] * 4
    assert (x + z).tolist() == [value] * 4
    write()  # the way stays open
    assert (x + z).tolist() == x.tolist()


def storage_of(value):
    return torch.full((4,), value).untyped_storage()


THREES = torch.full((4,), 3.0)
WRITES = {
    "numpy": lambda x: x.detach().numpy().fill(3.0),
    "item of numpy": lambda x: x.detach().numpy().__setitem__(slice(None), 3.0),
    "dlpack": lambda x: torch.from_dlpack(x.detach()).fill_(3.0),
    "to_dlpack": lambda x: dlpack.from_dlpack(dlpack.to_dlpack(x.detach())).fill_(3.0),
    "to_dlpack of torch": lambda x: torch.from_dlpack(torch.to_dlpack(x.detach())).fill_(3.0),
    "pointer": lambda x: ctypes.memmove(x.data_ptr(), THREES.data_ptr(), 16),
    "storage, copy": lambda x: x.untyped_storage().copy_(storage_of(3.0)),
    "storage, items": lambda x: [
        x.untyped_storage().__setitem__(i, storage_of(3.0)[i]) for i in range(16)
    ],
    "set_": lambda x: torch.empty(0).set_(x.untyped_storage(), 0, (4,), (1,)).fill_(3.0),
    "data": lambda x: x.data.fill_(3.0),
    "data, exchanged": lambda x: setattr(x, "data", torch.full((4,), 3.0)),
    "data, exchanged for managed": lambda x: setattr(x, "data", managed_zeros() + 3),
    "view": lambda x: x.detach().view(2, 2).fill_(3.0),
    "out": lambda x: torch.add(torch.ones(4), 2.0, out=x.detach()),
    "foreach": lambda x: torch._foreach_copy_([x.detach()], [torch.full((4,), 3.0)]),
    "swap": lambda x: torch.utils.swap_tensors(x, managed_zeros() + 3),
    "apply_": lambda x: x.detach().apply_(lambda value: 3.0),
    "map_": lambda x: x.detach().map_(THREES, lambda value, other: other),
    "map2_": lambda x: x.detach().map2_(THREES, THREES, lambda value, one, other: one),
    "shared": lambda x: x.detach().share_memory_().fill_(3.0),
}


@pytest.mark.parametrize("way", WRITES)
def test_writes_are_seen(way):
    x = managed_zeros()
    assert_seen(x, lambda: WRITES[way](x), 3.0)


@pytest.mark.parametrize("way", [w for w in WRITES if w != "swap"])
def test_writes_of_a_parameter_are_seen(way):
    p = ManagedModule.from_module(torch.nn.ParameterList([torch.zeros(4)]))[0]
    assert_seen(p, lambda: WRITES[way](p), 3.0)


def test_writes_through_an_array_that_was_there_before_are_seen():
    plain = torch.zeros(4)
    array = plain.numpy()
    assert_seen(plain.as_subclass(ManagedTensor), lambda: array.fill(2.0), 2.0)


def test_writes_through_a_storage_that_was_there_before_are_seen():
    plain = torch.zeros(4)
    storage = plain.untyped_storage()
    assert_seen(plain.as_subclass(ManagedTensor), lambda: storage.copy_(storage_of(2.0)), 2.0)


def test_writes_through_plain_tensors_over_the_same_bytes_are_seen():
    plain = torch.zeros(4)
    assert_seen(plain.as_subclass(ManagedTensor), lambda: plain.fill_(2.0), 2.0)
    plain = torch.zeros(4)
    other = plain.data  # a version counter of its own
    assert_seen(plain.as_subclass(ManagedTensor), lambda: other.fill_(2.0), 2.0)


def test_writes_to_bytes_of_others_are_seen():
    array = np.zeros(4, np.float32)
    x = torch.from_numpy(array).as_subclass(ManagedTensor)
    assert_seen(x, lambda: array.fill(2.0), 2.0)
    buffer = bytearray(16)
    x = torch.frombuffer(buffer, dtype=torch.float32).as_subclass(ManagedTensor)
    assert_seen(
        x, lambda: buffer.__setitem__(slice(None), np.full(4, 2, np.float32).tobytes()), 2.0
    )


def test_a_function_that_is_applied_may_use_the_tensor_and_may_fail():
    x, z = managed_zeros(), there()

    def fill(value):
        seen = (x + z).tolist()  # no copy of this moment serves the next one
        assert seen == x.tolist()
        if seen[1]:
            raise ValueError("half way")
        return value + 1

    with pytest.raises(ValueError, match="half way"):
        x.apply_(fill)
    assert (x + z).tolist() == [1.0, 1.0, 0.0, 0.0]
    assert copies_of_ten_uses(x) == 0  # nothing holds the bytes any more


def test_what_is_applied_to_plain_tensors_is_seen():
    with managed.on():
        z = there()
    plain = torch.zeros(4)
    with managed.on():
        for times in range(1, 4):
            assert (plain + z).tolist() == [times - 1.0] * 4
            plain.apply_(lambda value: value + 1)
    x = plain.as_subclass(ManagedTensor)
    assert_seen(x, lambda: plain.apply_(lambda value: 5.0), 5.0)


def copies_of_ten_uses(x):
    z = there()
    managed.stats(reset=True)
    for _ in range(10):
        x + z
    return managed.stats()["copy"]


@pytest.mark.filterwarnings("ignore::managed.errors.CopyWarning")
def test_what_nobody_holds_any_more_is_kept_again():
    x = managed_zeros()
    storage = x.untyped_storage()
    assert copies_of_ten_uses(x) == 10
    del storage
    assert copies_of_ten_uses(x) == 1
    other = torch.empty(0).set_(x.untyped_storage(), 0, (4,), (1,))
    assert copies_of_ten_uses(x) == 10
    del other
    assert copies_of_ten_uses(x) == 1
    x.data_ptr()  # nobody tells when a pointer is no longer used
    assert copies_of_ten_uses(x) == 10


def test_saving_does_not_end_the_keeping(tmp_path):
    net = ManagedModule.from_module(torch.nn.Linear(4, 4))
    torch.save(net.state_dict(), tmp_path / "net.pt")
    x = torch.zeros(2, 4, device=D2).as_subclass(ManagedTensor)
    with torch.no_grad():
        net(x)
        managed.stats(reset=True)
        for _ in range(5):
            net(x)
    assert managed.stats()["copy"] == 0
    assert managed.stats()["replica_hits"] == 10


def test_each_stream_has_a_copy_of_its_own():
    x, z = managed_zeros(), there()
    managed.stats(reset=True)
    for _ in range(3):
        x + z
        with device_module.stream(device_module.Stream(1)):
            x + z
    assert managed.stats()["copy"] == 4  # each Stream(1) is a new one
    side = device_module.Stream(1)
    managed.stats(reset=True)
    for _ in range(3):
        with device_module.stream(side):
            x + z
    assert managed.stats()["copy"] == 1
    device_module.synchronize(1)  # torch does not know that these streams use z, which dies now


def test_exposed_leaves_do_not_move_by_themselves():
    p = torch.nn.Parameter(torch.zeros(4, device=D0).as_subclass(ManagedTensor))
    p.data_ptr()
    for _ in range(6):
        (p * there()).sum().backward()
    assert p.device == torch.device(D0)
