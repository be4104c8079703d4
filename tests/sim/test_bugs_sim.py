"""Faults of simulated devices that were found by use; each test failed once."""

import pytest
import torch
import torch._refs as refs
import torch.nn.functional as F
from support.paths import PROGRAMS
from torch import nn

from managed import ManagedModule, ManagedTensor

DEVICE = "sim:1"
PROTOTYPES = "ignore:.*nested.tensor.*:UserWarning"  # torch's notices about nested tensors


def managed_on(t, device=DEVICE):
    return t.to(device).as_subclass(ManagedTensor)


def test_a_strided_nested_tensor_with_a_gradient_ends_no_process(run_python):
    """Autograd asked for its sizes in a constructor that must not throw."""
    print(run_python(PROGRAMS / "nested_gradient.py"))


@pytest.mark.filterwarnings(PROTOTYPES)
def test_strided_nested_results_say_what_to_do():
    x, mask = torch.rand(2, 5, 3, device=DEVICE), torch.ones(2, 5, dtype=torch.bool, device=DEVICE)
    with pytest.raises(RuntimeError, match=r"layout=torch\.jagged"):
        torch._nested_tensor_from_mask(x, mask)


@pytest.mark.filterwarnings(PROTOTYPES)
@pytest.mark.parametrize("where", ["cpu", DEVICE])
def test_nested_tensors_that_an_encoder_makes(where):
    """In inference with a mask of padding, unless told otherwise."""
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]).to(where)
    x = torch.rand(2, 5, 8).to(where)
    for nested in (True, False):
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval()
        there = ManagedModule.from_module(encoder).cuda(1)
        with torch.no_grad():
            if not nested:
                assert there(x, src_key_padding_mask=mask).device == torch.device(DEVICE)
            else:
                with pytest.raises((RuntimeError, NotImplementedError), match="nest"):
                    there(x, src_key_padding_mask=mask)


VIEWS = [lambda x: x[0], lambda x: x.view(-1), lambda x: x.t(), lambda x: x.detach()]


@pytest.mark.parametrize("place", [lambda t: t.to(DEVICE), managed_on], ids=["plain", "managed"])
def test_a_view_of_an_inference_tensor_is_one(place):
    with torch.inference_mode():
        x = place(torch.rand(4, 3))
    normal = place(torch.rand(4, 3)).requires_grad_()
    for view in VIEWS:
        assert view(x).is_inference()
        assert not view(normal).is_inference()
        with torch.inference_mode():
            assert view(x).is_inference()
            assert not view(normal).is_inference()
    assert not (x + 1).is_inference()
    weight = place(torch.rand(3)).requires_grad_()
    for operand in (x, x[0]):
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            operand * weight
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        x[0].add_(1)


@pytest.mark.parametrize("place", [lambda t: t.to(DEVICE), managed_on], ids=["plain", "managed"])
def test_mode_writes_where_it_is_told(place):
    x = torch.randint(0, 3, (4, 9))
    values, indices = place(torch.empty(0, dtype=torch.long)), place(torch.empty(0).long())
    torch.mode(place(x), dim=1, out=(values, indices))
    expected = torch.mode(x, dim=1)
    assert torch.equal(values.cpu(), expected.values)
    assert torch.equal(indices.cpu(), expected.indices)


def test_prims_know_a_number_from_a_tensor():
    x = torch.rand(4, 5)
    assert torch.equal(torch.ops.prims.div(managed_on(x), 3.0).cpu(), torch.ops.prims.div(x, 3.0))
    assert torch.equal(refs.mean(managed_on(x)).cpu(), refs.mean(x))
    assert torch.equal(refs.mean(managed_on(x), 1).cpu(), refs.mean(x, 1))


def test_dir_of_a_plain_tensor_has_no_name_of_managed_ones():
    ours = {"pin", "unpin", "pinned", "placed", "unplace"}
    plain, parameter = torch.rand(2), nn.Parameter(torch.rand(2))
    assert not ours & set(dir(plain))
    assert not ours & set(dir(parameter))
    assert ours <= set(dir(managed_on(plain)))
    plain.pin = 3
    assert ours & set(dir(plain)) == {"pin"}
    assert sorted(dir(plain)) == dir(plain)


def test_native_dropout_draws_from_its_device():
    x = torch.rand(50, device=DEVICE)
    torch.manual_seed(3)
    host, out = torch.get_rng_state(), torch.native_dropout(x, 0.4, True)
    assert torch.equal(torch.get_rng_state(), host)
    torch.manual_seed(3)
    expected = torch.native_dropout(x.cpu(), 0.4, True)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(out, expected, strict=True))
    for p, train in ((1.0, True), (0.5, False), (0.3, None)):
        torch.manual_seed(3)
        expected = torch.native_dropout(x.cpu(), p, train)
        torch.manual_seed(3)
        found = torch.native_dropout(x, p, train)
        assert all(torch.equal(a.cpu(), b) for a, b in zip(found, expected, strict=True))


def test_a_program_that_never_waits_is_not_slower_and_slower(run_python):
    """The clock remembered all that was given up since the program had waited for the device."""
    run_python(PROGRAMS / "never_waits.py")


# ---- types of which CUDA has a kernel and the host has none


def of_a_loss(function, target):
    return lambda x: function(x[0, 0, 0], target.to(x.device))


HALVES = {
    "avg_pool3d": lambda x: F.avg_pool3d(x, 2),
    "bilinear": lambda x: F.interpolate(x[0], (3, 3), mode="bilinear", antialias=True),
    "bicubic": lambda x: F.interpolate(x[0], (3, 3), mode="bicubic", antialias=True),
    "multi_margin_loss": of_a_loss(F.multi_margin_loss, torch.tensor([0, 1, 2, 3])),
    "multilabel_margin_loss": of_a_loss(
        F.multilabel_margin_loss, torch.tensor([[0, 2, -1, 1]] * 4)
    ),
}


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_computed_in_float_and_rounded(name, dtype):
    x = torch.rand(1, 2, 4, 4, 4).to(dtype)
    wide = x.float().requires_grad_()
    expected = HALVES[name](wide)
    upstream = torch.rand_like(expected).to(dtype)
    expected.backward(upstream.float())
    for there in (x.to(DEVICE), managed_on(x)):
        leaf = there.detach().requires_grad_()
        result = HALVES[name](leaf)
        result.backward(upstream.to(DEVICE))
        assert result.dtype == leaf.grad.dtype == dtype
        assert torch.equal(result.cpu(), expected.to(dtype))
        assert torch.equal(leaf.grad.cpu(), wide.grad.to(dtype))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_histogram_of_integers(dtype):
    """A mixture of experts counts its tokens so: transformers asks only `device.type == "cpu"`."""
    x = torch.tensor([0, 3, 3, 7, 1, 7, 7, 6]).to(dtype)
    for there in (x.to(DEVICE), managed_on(x)):
        counts = torch.histc(there, bins=8, min=0, max=7)
        assert counts.dtype == dtype
        assert counts.tolist() == [1, 1, 0, 2, 0, 0, 1, 3]
