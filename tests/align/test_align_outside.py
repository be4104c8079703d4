"""Operators that come from outside aten's leaves, and calls that come from outside Python.

Custom operators, autocast, TorchScript and its threads, Python threads, torch.func, sparse
tensors: with operands over several devices they give what the CPU gives.
"""

import threading
import warnings

import pytest
import torch
from support.apart import DEVICES, agree, at, put, spread, torch_itself_scripts
from support.devices import D0, D1, DEVICE_TYPE

import managed
from managed import ManagedTensor

# ---- operators from outside aten


@pytest.fixture(scope="module")
def custom():
    @torch.library.custom_op("align_test::scaled_sum", mutates_args=())
    def scaled_sum(a: torch.Tensor, b: torch.Tensor, factor: float) -> torch.Tensor:
        if a.device != b.device:
            raise ValueError(f"operands on {a.device} and {b.device}")
        return (a + b) * factor

    @torch.library.custom_op("align_test::accumulate", mutates_args=("into",))
    def accumulate(into: torch.Tensor, part: torch.Tensor) -> None:
        if into.device != part.device:
            raise ValueError(f"operands on {into.device} and {part.device}")
        into.add_(part)

    scaled_sum.register_autograd(
        lambda ctx, g: (g * ctx.factor, g * ctx.factor, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[2]),
    )
    return scaled_sum, accumulate


def test_a_custom_operator(custom):
    agree(lambda a, b: custom[0](a, b, 2.0), torch.randn(4), torch.randn(4))


def test_a_custom_operator_backward(custom):
    a, b = (put(torch.randn(4), d).requires_grad_() for d in (D0, D1))
    custom[0](a, b, 3.0).sum().backward()
    for leaf in (a, b):
        assert leaf.grad.device == leaf.device
        assert torch.equal(leaf.grad.cpu(), torch.full((4,), 3.0))


@pytest.mark.parametrize("home", DEVICES)
def test_a_custom_operator_that_writes(custom, home):
    into, part = at(home, 4), at(D1, 4)
    expected = into.cpu() + part.cpu()
    custom[1](into, part)
    assert into.device == torch.device(home)
    assert torch.equal(into.cpu(), expected)


def test_an_operator_of_torch_library(custom):
    with torch.library._scoped_library("align_test_open", "FRAGMENT") as library:
        library.define("twice(Tensor a, Tensor b) -> Tensor")
        library.impl("twice", lambda a, b: 2 * (a + b), "CompositeExplicitAutograd")
        agree(torch.ops.align_test_open.twice, torch.randn(3), torch.randn(3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    w, x = torch.randn(8, 8), torch.randn(4, 8)
    leaves = w.clone().requires_grad_(), put(w, "cpu").requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        expected = x @ leaves[0]
    there = put(x, D1)
    with torch.autocast(DEVICE_TYPE, dtype=dtype), torch.autocast("cpu", dtype=dtype):
        result = there @ leaves[1]
    assert (result.dtype, result.device) == (dtype, torch.device(D1))
    assert torch.equal(result.cpu(), expected)
    for out in (expected, result):
        out.sum().backward()
    assert leaves[1].grad.device == leaves[1].device
    assert torch.equal(leaves[0].grad, leaves[1].grad)


def test_torchscript():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, and still used

        @torch.jit.script
        def body(x, w, b):
            for _ in range(3):
                x = torch.tanh(x @ w) + b
            return x

        agree(body, torch.randn(4, 4), torch.randn(4, 4), torch.randn(4))


def test_threads_of_cpp():
    """TorchScript's fork runs its operators on threads of torch, which Python never sees."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")

        @torch.jit.script
        def body(x, w):
            parts = [torch.jit.fork(torch.matmul, x, w) for _ in range(8)]
            return torch.stack([torch.jit.wait(p) for p in parts]).sum(0)

        agree(body, torch.randn(4, 4), torch.randn(4, 4))


def test_threads_of_python():
    there, here = spread(torch.randn(16, 16), torch.randn(16, 16), torch.randn(16))
    expected = torch.tanh(here[0] @ here[1]) + here[2]
    wrong = []

    def work():
        for _ in range(50):
            result = torch.tanh(there[0] @ there[1]) + there[2]
            if not torch.equal(result.cpu(), expected):
                wrong.append(result.cpu() - expected)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_vmap():
    agree(lambda a, b: torch.vmap(lambda x: x * b)(a), torch.randn(5, 4), torch.randn(4))


@torch_itself_scripts
def test_jacobian_and_tangent_of_a_closure_over_another_device():
    x, w = torch.randn(4), torch.randn(4)
    there = put(w, D1)
    expected = torch.func.jacrev(lambda x: (x * w).sin())(x)
    result = torch.func.jacrev(lambda x: (x.to(D1) * there).sin())(put(x, D1))
    assert torch.equal(result.cpu(), expected)
    tangent = torch.func.jvp(lambda x: x * w, (x,), (torch.ones(4),))[1]
    result = torch.func.jvp(lambda x: x * there, (put(x, D1),), (put(torch.ones(4), D1),))[1]
    assert torch.equal(result.cpu(), tangent)


def test_gradient_transform_on_one_device():
    w = at(D1, 4)
    x = at(D1, 4)
    g = torch.func.grad(lambda x: (x * w).sum())(x)
    assert g.device == x.device
    assert torch.equal(g.cpu(), w.cpu())


def test_gradient_transform_over_devices():
    x, w = at(D0, 4), at(D1, 400)
    g = torch.func.grad(lambda x: (x.repeat(100) * w).sum())(x)
    assert g.device == x.device
    assert torch.equal(g.cpu(), torch.func.grad(lambda x: (x.repeat(100) * w.cpu()).sum())(x.cpu()))


def test_sparse_operands():
    i, v = torch.tensor([[0, 1, 2], [1, 0, 2]]), torch.randn(3)
    dense = torch.randn(3, 2)
    sparse = torch.sparse_coo_tensor(i, v, (3, 3), check_invariants=True)
    agree(torch.sparse.mm, sparse, dense)
    agree(
        lambda i, v: torch.sparse_coo_tensor(i, v, (3, 3), check_invariants=True).to_dense(), i, v
    )


def test_inference_mode_then_training():
    w, x = at("cpu", 4, 4).requires_grad_(), at(D1, 4, 4)
    with torch.inference_mode():
        assert (x @ w).is_inference()
    (x @ w).sum().backward()
    assert w.grad.device == w.device


def test_results_inside_no_grad_need_no_gradient():
    w, x = at("cpu", 4, 4).requires_grad_(), at(D1, 4, 4)
    with torch.no_grad():
        out = x @ w
    assert not out.requires_grad
    assert isinstance(out, ManagedTensor)
    assert managed.stats()["copy"] > 0
