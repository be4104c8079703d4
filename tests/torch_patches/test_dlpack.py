"""What libraries get by DLPack's table of C functions stays where it is: no Python is asked."""

import ctypes

import pytest
import torch
from support.devices import D0
from support.pressure import spill

from managed import _C, ManagedTensor

NAME = b"dlpack_exchange_api"
GIVE, DESCRIBE = 24, 40  # where the table has them
TENSOR = 32  # where a DLManagedTensorVersioned has its DLTensor, which begins with the pointer
get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

pytestmark = pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="this torch has no such table"
)


def word_at(address):
    return ctypes.c_void_p.from_address(address).value


def function(tensor, place, *arguments):
    table = get_pointer(type(tensor).__dlpack_c_exchange_api__, NAME)
    return ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, *arguments)(word_at(table + place))


def described(tensor):
    """The pointer that a library gets for one call."""
    out = (ctypes.c_char * 48)()
    assert function(tensor, DESCRIBE, ctypes.c_void_p)(tensor, ctypes.addressof(out)) == 0
    return word_at(ctypes.addressof(out))


def given(tensor):
    """The pointer that a library gets for as long as it likes; here it gives it back at once."""
    out = ctypes.c_void_p()
    call = function(tensor, GIVE, ctypes.POINTER(ctypes.c_void_p))
    assert call(tensor, ctypes.byref(out)) == 0
    pointer = word_at(out.value + TENSOR)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(word_at(out.value + 16))(out)
    return pointer


def made(kind):
    x = torch.arange(1 << 18, dtype=torch.float32).as_subclass(ManagedTensor).to(D0)
    return torch.nn.Parameter(x) if kind == "parameter" else x


@pytest.mark.parametrize("way", [described, given])
@pytest.mark.parametrize("kind", ["tensor", "parameter"])
def test_bytes_come_home_and_stay(way, kind):
    x = made(kind)
    spill(x)
    pointer = way(x)
    _C.spill_all()
    assert not _C.is_spilled(x)
    assert pointer == x.data_ptr()
    values = (ctypes.c_float * 4).from_address(pointer)
    assert list(values) == [0, 1, 2, 3]
    values[1] = 7
    assert x[1].item() == 7


@pytest.mark.parametrize("way", [described, given])
def test_what_torch_refuses_may_leave(way):
    x = made("tensor").view(torch.bits8)
    with pytest.raises((BufferError, RuntimeError), match="not supported by dlpack"):
        way(x)
    spill(x)


@pytest.mark.parametrize("way", [described, given])
def test_plain_tensors_go_as_before(way):
    x = torch.arange(4.0)
    assert way(x) == x.data_ptr()


def test_a_table_of_another_version_is_none():
    table = (ctypes.c_uint32 * 14)(2)
    assert _C.exchange_api(new_capsule(ctypes.addressof(table), NAME, None)) is None
    ours = torch.Tensor.__dlpack_c_exchange_api__
    assert _C.exchange_api(ours) is ours, "and ours is not wrapped again"
    with pytest.raises(ValueError, match="PyCapsule"):
        _C.exchange_api(5)
