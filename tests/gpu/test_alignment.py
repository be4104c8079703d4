"""Operands on the CPU and on a real CUDA device: brought together, recorded, and no value changed.

Run by `make gpu`. The reference is the same operator on operands that were on cuda:0 all along, so
values are compared bit by bit: the kernels are the same.
"""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import managed
from managed import ManagedModule, ManagedTensor

pytestmark = pytest.mark.gpu

CUDA = "cuda:0"


@pytest.fixture(autouse=True)
def repeatable(monkeypatch):
    """Kernels that add in one order only: without it two runs of one operator may differ."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    with sdpa_kernel(SDPBackend.MATH):
        yield
    gc.collect()


def operands(*shapes):
    return [torch.rand(*shape) for shape in shapes]


def wrapped(tensor, device):
    return tensor.detach().to(device).as_subclass(ManagedTensor).requires_grad_()


OPERATORS = {
    "add": (torch.add, ((8, 16), (16,))),
    "mul": (torch.mul, ((64, 64), (64, 64))),
    "matmul": (torch.matmul, ((32, 48), (48, 24))),
    "linear": (F.linear, ((4, 32), (16, 32), (16,))),
    "cat": (lambda *t: torch.cat(t), ((3, 8), (5, 8), (1, 8))),
    "where": (lambda a, b: torch.where(a > 0.5, a, b), ((16, 16), (16, 16))),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (32,), w, b), ((8, 32), (32,), (32,))),
    "conv2d": (F.conv2d, ((2, 3, 16, 16), (4, 3, 3, 3), (4,))),
    "addmm": (torch.addmm, ((8, 24), (8, 16), (16, 24))),
    "attention": (F.scaled_dot_product_attention, ((1, 2, 8, 16), (1, 2, 8, 16), (1, 2, 8, 16))),
}


@pytest.mark.parametrize("host", [0, 1, -1], ids=["first", "second", "last"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_one_operand_on_the_cpu(operator, host):
    """Result and gradients are those of the operator on one device; each gradient comes home."""
    function, shapes = OPERATORS[operator]
    plain = operands(*shapes)
    reference = [t.to(CUDA).requires_grad_() for t in plain]
    homes = [CUDA] * len(plain)
    homes[host] = "cpu"
    scattered = [wrapped(t, home) for t, home in zip(plain, homes, strict=True)]

    expected, got = function(*reference), function(*scattered)
    assert str(got.device) == CUDA
    assert isinstance(got, ManagedTensor)
    assert torch.equal(got.detach().cpu(), expected.detach().cpu())

    expected.sum().backward()
    got.sum().backward()
    for leaf, original, home in zip(scattered, reference, homes, strict=True):
        assert str(leaf.grad.device) == home
        assert torch.equal(leaf.grad.cpu(), original.grad.cpu())


def test_a_cpu_number_stays_where_it_is():
    x = wrapped(torch.rand(8), CUDA)
    before = managed.stats()["copy"]
    y = x * torch.tensor(2.0)
    assert torch.equal(y.detach(), x.detach() * 2.0)
    assert managed.stats()["copy"] == before


def test_a_written_operand_decides():
    x = torch.zeros(4).as_subclass(ManagedTensor)
    y = torch.ones(4, device=CUDA).as_subclass(ManagedTensor)
    x.add_(y)
    assert str(x.device) == "cpu"
    assert x.tolist() == [1.0] * 4


def test_indices_on_the_cpu_serve_a_cuda_tensor():
    x = torch.rand(10, 3).as_subclass(ManagedTensor).cuda(0)
    index = torch.tensor([1, 5, 7])
    assert torch.equal(x[index].cpu(), x.cpu()[index])
    assert torch.equal(x.gather(0, index.view(3, 1)).cpu(), x.cpu().gather(0, index.view(3, 1)))


def test_pins_keep_and_conflict():
    x = torch.rand(4).as_subclass(ManagedTensor)
    x.pin()
    y = torch.rand(4, device=CUDA).as_subclass(ManagedTensor)
    assert str((x + y).device) == "cpu"
    y.pin()
    with pytest.raises(RuntimeError, match=r"pinned to different devices") as caught:
        x + y
    assert "cpu" in str(caught.value)
    assert "cuda:0" in str(caught.value)
    y.unpin()
    assert str((x + y).device) == "cpu"


def train(net, batches, optimizer):
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("pinned", [False, True])
def test_scattered_layers_train_as_on_one_device(foreach, pinned):
    """Half of the layers on the CPU: the same losses within the order of float32 rounding.

    What is pinned there stays; what was only wrapped there goes where it is needed.
    """
    plain = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    batches = [(torch.rand(8, 16), torch.randint(4, (8,))) for _ in range(5)]
    scattered = ManagedModule.from_module(copy.deepcopy(plain))
    scattered[0].cuda(0)
    if pinned:
        for p in scattered[2].parameters():
            p.pin()
    one = torch.optim.AdamW(plain.parameters(), foreach=foreach)
    two = torch.optim.AdamW(scattered.parameters(), foreach=foreach)
    expected, got = train(plain, batches, one), train(scattered, batches, two)
    assert got == pytest.approx(expected, rel=1e-5)
    assert {str(p.device) for p in scattered[0].parameters()} == {CUDA}
    rests = {str(p.device) for p in scattered[2].parameters()}
    assert rests == ({"cpu"} if pinned else {CUDA})


def test_no_bytes_are_left_behind():
    gc.collect()
    before = torch.cuda.memory_allocated(0)
    for _ in range(100):
        x = wrapped(torch.rand(1000), CUDA)
        (x * wrapped(torch.rand(1000), "cpu")).sum().backward()
    del x
    gc.collect()
    assert torch.cuda.memory_allocated(0) == before


def test_side_streams_see_what_alignment_brought():
    """A copy made while another stream is current is ready for the kernel on that stream."""
    x = torch.rand(1 << 20).as_subclass(ManagedTensor)
    y = torch.rand(1 << 20, device=CUDA).as_subclass(ManagedTensor)
    expected = x.to(CUDA) + y
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = x + y
    stream.synchronize()
    assert torch.equal(got, expected)
