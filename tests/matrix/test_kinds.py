"""Kinds of tensors

Strided and sparse tensors are managed; kinds that cannot be are refused or stay plain.
"""

from typing import ClassVar

import pytest
import torch
from support.devices import D1
from torch.masked import masked_tensor
from torch.utils._python_dispatch import return_and_correct_aliasing

from managed import ManagedTensor

from .common import Place, managed_on, same


@pytest.mark.row("Sparse COO", note="products, sums, gradients of values")
def test_sparse_coo(place):
    i, dense = torch.tensor([[0, 1, 1, 2], [1, 0, 0, 2]]), torch.randn(3, 3)
    values = torch.randn(4, requires_grad=True)

    def body(i, values, dense):
        s = torch.sparse_coo_tensor(i, values, (3, 3), check_invariants=True)
        product = torch.sparse.mm(s, dense)
        total = torch.sparse.sum(s.coalesce() * 2 + s.coalesce(), 0).to_dense()
        return product, total, s.to_dense()

    there = place(i, values, dense)
    expected, actual = body(i, values, dense), body(*there)
    same(expected, actual)
    for outcome in (expected, actual):
        (outcome[0].sum() + outcome[2].pow(2).sum()).backward()
    place.same_gradients([values], [there[1]])


@pytest.mark.row("Sparse CSR, CSC, BSR", note="products with dense operands")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
@pytest.mark.parametrize("form", ["to_sparse_csr", "to_sparse_csc", "to_sparse_bsr"])
def test_sparse_compressed(place, form):
    a, dense = torch.randn(4, 4) * (torch.rand(4, 4) > 0.5), torch.randn(4, 4)

    def body(a, dense):
        s = getattr(a, form)(*([(2, 2)] if form == "to_sparse_bsr" else []))
        return s, s @ dense, s.to_dense()

    same(body(a, dense), body(*place(a, dense)))


@pytest.mark.row("Complex numbers", note="lazy conjugation, view_as_real, FFT; gradients too")
def test_complex(place):
    a = torch.randn(4, 4, dtype=torch.complex64, requires_grad=True)
    b = torch.randn(4, 4, dtype=torch.complex64, requires_grad=True)

    def body(a, b):
        return [
            a.conj(),
            a.conj() @ b.mH,
            a.imag.clone() * b.real,
            torch.view_as_real(a * b),
            torch.view_as_complex(torch.view_as_real(a) + 1),
            torch.fft.ifft(torch.fft.fft(a) * torch.fft.fft(b)),
            torch.fft.irfft(torch.fft.rfft(a.real)),
            torch.linalg.eigvals(a).abs().sum(),
            torch.polar(a.abs(), b.angle()),
        ]

    there = place(a, b)
    expected, actual = body(a, b), body(*there)
    same(expected, actual)
    assert actual[0].is_conj()
    for outcome in (expected, actual):
        for out in outcome:  # one by one: sums of more than two gradients depend on their order
            out.abs().sum().backward()
    place.same_gradients((a, b), there)


@pytest.mark.row("Complex numbers, written through lazy views")
def test_lazy_views_are_written(place):
    a, b = torch.zeros(4, dtype=torch.complex64), torch.randn(4, dtype=torch.complex64)
    there = place(a, b)
    for x, y in ((a, b), there):
        x.conj().copy_(y)
        x.imag.add_(y.real)
        torch.view_as_real(x)[:, 0].mul_(y.imag)
        x.imag.neg_()
    same(a, there[0])


@pytest.mark.row("Meta tensors", "refused: TypeError", note="as_subclass refuses them")
def test_meta_is_refused():
    with pytest.raises(TypeError, match="meta"):
        torch.empty(2, device="meta").as_subclass(ManagedTensor)


@pytest.mark.row("Going to the meta device", note="the result is a plain meta tensor")
def test_to_meta(place):
    x = place(torch.randn(3, 4))
    there = x.to("meta")
    assert type(there) is torch.Tensor
    assert there.__class__ is torch.Tensor
    assert (there.device.type, there.shape) == ("meta", x.shape)
    assert torch.empty_like(x, device="meta").__class__ is torch.Tensor
    assert (there @ there.t()).is_meta


@pytest.mark.row("Quantized tensors", "refused: TypeError", note="as_subclass refuses them")
@pytest.mark.filterwarnings("ignore:.*quant.*:UserWarning")
def test_quantized_is_refused():
    q = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)
    with pytest.raises(TypeError, match="quantized"):
        q.as_subclass(ManagedTensor)


@pytest.mark.row("Quantizing a managed tensor", note="on the CPU; fake quantization everywhere")
@pytest.mark.filterwarnings("ignore:.*quant.*:UserWarning")
def test_quantizing():
    x = torch.randn(4)
    q = torch.quantize_per_tensor(managed_on(x, "cpu"), 0.1, 0, torch.qint8)
    expected = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    assert torch.equal(q.int_repr(), expected.int_repr())
    same(expected.dequantize(), q.dequantize())


@pytest.mark.row("Quantizing a managed tensor")
def test_fake_quantization(place):
    x, scale, zero = torch.randn(4), torch.tensor(0.1), torch.tensor(0, dtype=torch.int32)
    fake = torch.fake_quantize_per_tensor_affine
    same(fake(x, scale, zero, 0, 255), fake(*place(x, scale, zero), 0, 255))


@pytest.mark.row("Quantizing on a simulated device", "refused: RuntimeError")
@pytest.mark.filterwarnings("ignore:.*quant.*:UserWarning")
def test_quantizing_on_a_device():
    x = managed_on(torch.randn(4), D1)
    with pytest.raises(RuntimeError, match="quantize on the CPU, or dequantize first"):
        torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)


@pytest.mark.row("Nested tensors", "refused: TypeError", note="as_subclass refuses them")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_is_refused(layout):
    ragged = torch.nested.nested_tensor([torch.rand(2), torch.rand(3)], layout=layout)
    with pytest.raises(TypeError, match=r"nested|__torch_dispatch__"):
        ragged.as_subclass(ManagedTensor)


PROTOTYPE = pytest.mark.filterwarnings("ignore:The PyTorch API of nested:UserWarning")


@PROTOTYPE
@pytest.mark.row(
    "Nested tensors of managed components",
    note="jagged, parts on one device; they are plain, their parts are managed",
)
def test_jagged_of_managed():
    parts, w = [torch.rand(2, 3), torch.rand(3, 3)], torch.randn(3, 3)
    there = torch.nested.as_nested_tensor(list(Place("one")(*parts)), layout=torch.jagged)
    plain = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
    assert not isinstance(there, ManagedTensor)
    weight = managed_on(w, there.device)
    same(list((plain * 2 @ w).unbind()), list((there * 2 @ weight).unbind()))


@PROTOTYPE
@pytest.mark.row("Nested tensors of managed components", note="strided, on the CPU")
def test_strided_nested_of_managed():
    parts = [torch.rand(2, 3), torch.rand(3, 3)]
    there = torch.nested.nested_tensor([managed_on(t, "cpu") for t in parts])
    for a, b in zip(torch.nested.nested_tensor(parts).unbind(), (there * 1).unbind(), strict=True):
        assert torch.equal(a, b)
    same(torch.nested.nested_tensor(parts).to_padded_tensor(0), there.to_padded_tensor(0))


@PROTOTYPE
@pytest.mark.row("Strided nested tensors on a simulated device", "refused: NotImplementedError")
def test_strided_nested_on_a_device():
    parts = [managed_on(torch.rand(n), D1) for n in (2, 3)]
    there = torch.nested.as_nested_tensor(parts)
    with pytest.raises(NotImplementedError, match=r"nested tensor.*layout=torch\.jagged"):
        there * 2


class Wrapper(torch.Tensor):
    """The least subclass with __torch_dispatch__ that holds another tensor."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), dtype=inner.dtype, device=inner.device, requires_grad=False
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        inner = torch.utils._pytree.tree_map_only(Wrapper, lambda w: w.inner, args)
        out = torch.utils._pytree.tree_map_only(
            torch.Tensor, Wrapper, func(*inner, **(kwargs or {}))
        )
        return return_and_correct_aliasing(func, args, kwargs or {}, out)


@pytest.mark.row("Wrapper subclasses", "refused: TypeError", note="as_subclass refuses them")
def test_wrapper_is_refused():
    with pytest.raises(TypeError, match="__torch_dispatch__"):
        Wrapper(torch.randn(3)).as_subclass(ManagedTensor)


@pytest.mark.row(
    "Wrapper subclasses around managed tensors",
    note="operators inside __torch_dispatch__ are managed's, too",
)
def test_wrapper_of_managed(place):
    a, b = torch.randn(3), torch.randn(3)
    x, y = place(a, b)
    for out in (Wrapper(x) + Wrapper(y), Wrapper(x) + y):
        assert type(out) is Wrapper
        same(a + b, out.inner)


class Own(torch.Tensor):
    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs)


@pytest.mark.row(
    "Subclasses with __torch_function__", note="beside managed tensors, or managed themselves"
)
def test_torch_function_subclass(place):
    a, b = torch.randn(3), torch.randn(3)
    x, y = place(a, b)
    for out in (a.as_subclass(Own) + y, x.as_subclass(Own) + y):
        assert type(out) is Own
        same((a + b).as_subclass(Own), out)
    assert "add" in Own.seen


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors:UserWarning")
@pytest.mark.row("Masked tensors", note="plain themselves; their data on one device")
def test_masked():
    a, m = torch.randn(3), torch.tensor([True, False, True])
    plain, there = masked_tensor(a, m), masked_tensor(*Place("one")(a, m))
    assert torch.equal((there * 2).sum().get_data().cpu(), (plain * 2).sum().get_data())


@pytest.mark.row(
    "DTensor", "refused: TypeError", note="as_subclass refuses it; manage the local tensor"
)
def test_dtensor(run_python):
    run_python(
        """
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor
        from managed import ManagedTensor

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        x = torch.arange(4.0)
        d = distribute_tensor(x, init_device_mesh("cpu", (1,)), [Shard(0)])
        try:
            d.as_subclass(ManagedTensor)
        except TypeError as error:
            assert "__torch_dispatch__" in str(error)
        else:
            raise AssertionError
        local = d.to_local().as_subclass(ManagedTensor)
        assert isinstance(local * 2, ManagedTensor) and torch.equal(local * 2, x * 2)
        dist.destroy_process_group()
        """
    )


@pytest.mark.row("DTensor of a managed tensor", note="it and what comes out of it are plain")
def test_dtensor_of_managed(run_python):
    run_python(
        """
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Replicate
        from managed import ManagedTensor

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        x = torch.arange(4.0)
        y = x.as_subclass(ManagedTensor)
        d = DTensor.from_local(y, init_device_mesh("cpu", (1,)), [Replicate()])
        out = d * 2 + d
        assert torch.equal(out.to_local(), x * 3)
        assert not isinstance(out, ManagedTensor)
        assert not isinstance(out.to_local(), ManagedTensor)
        try:
            d + y
        except RuntimeError as error:
            assert "mixed torch.Tensor and DTensor" in str(error)
        else:
            raise AssertionError
        dist.destroy_process_group()
        """
    )
