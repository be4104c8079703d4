"""Inside an operator that is not torch's own the current device is that of its operands.

Managed chooses where operands are, and a kernel's author launches on the current device.
"""

import threading
from types import SimpleNamespace

import pytest
import torch
from support.devices import D1, D2, DEVICE_TYPE, device_module, device_name
from support.pressure import on

from managed._torch_patches import launch

seen = []


def current():
    return torch.accelerator.current_device_index()


def allocated():
    """Where an allocation goes that names no index, as in the wrapper of a kernel."""
    return torch.empty(1, device=DEVICE_TYPE).device.index


@torch.library.custom_op("current::scaled", mutates_args=())
def scaled(x: torch.Tensor, y: torch.Tensor, by: float) -> torch.Tensor:
    seen.append((x.device.index, y.device.index, current(), allocated()))
    return torch.empty(x.shape, device=DEVICE_TYPE).copy_((x + y) * by)


@scaled.register_fake
def _(x, y, by):
    return torch.empty(x.shape, device=DEVICE_TYPE)


@scaled.register_autograd
def _(ctx, gradient):
    there = scaled(gradient, torch.zeros_like(gradient), 3.0)
    return there, there, None


@torch.library.custom_op("current::fill_all", mutates_args={"xs"})
def fill_all(xs: list[torch.Tensor]) -> None:
    seen.append((current(), allocated()))
    for x in xs:
        x.fill_(5)


@pytest.fixture(autouse=True)
def nothing_seen():
    before = current()
    seen.clear()
    yield
    assert current() == before, "it is the program's again"


def assert_all(index, calls):
    assert len(seen) == calls
    assert {i for one in seen for i in one} == {index}


@pytest.mark.parametrize("index", range(3))
def test_of_operands_together(index):
    x = on(torch.ones(4), device_name(index))
    assert scaled(x, x, 2.0).cpu().tolist() == [4.0] * 4
    assert_all(index, 1)


@pytest.mark.parametrize("devices", [(D2, D1), (D1, "cpu"), ("cpu", D2)])
def test_of_operands_that_managed_brings_together(devices):
    x, y = (on(torch.ones(4), d) for d in devices)
    result = scaled(x, y, 2.0)
    assert result.cpu().tolist() == [4.0] * 4
    assert_all(result.device.index, 1)


def test_a_list_has_operands():
    xs = [on(torch.ones(4), D2) for _ in range(2)]
    fill_all(xs)
    assert_all(2, 1)
    assert xs[1].cpu().tolist() == [5.0] * 4


def test_operands_on_the_host_leave_it_as_it_is():
    device_module.set_device(1)
    try:
        x = on(torch.ones(4), "cpu")
        seen.clear()
        torch.ops.current.fill_all([x])
        assert_all(1, 1)
    finally:
        device_module.set_device(0)


def test_an_operator_that_fails_leaves_the_programs_device():
    x = on(torch.ones(4), D2)
    with pytest.raises(RuntimeError, match="size"):
        scaled(x, on(torch.ones(3), D2), 1.0)  # the fixture asks which device is current


def test_operators_inside_have_theirs():
    @torch.library.custom_op("current::both", mutates_args=())
    def both(x: torch.Tensor, ys: list[torch.Tensor]) -> torch.Tensor:
        for y in ys:
            scaled(y, y, 1.0)
        seen.append((current(),))
        return x.clone()

    x, y = on(torch.ones(4), D2), on(torch.ones(4), D2)
    torch.ops.current.both(x, [y])
    assert_all(2, 2)


@pytest.mark.parametrize("index", range(3))
def test_in_a_backward_pass(index):
    x = on(torch.ones(4, requires_grad=True), device_name(index))
    scaled(x, x, 2.0).sum().backward()
    assert_all(index, 2)
    assert x.grad.cpu().tolist() == [6.0] * 4


def test_in_own_threads():
    """Each has a current device of its own."""
    found = []

    def work(index):
        x = on(torch.ones(4), device_name(index))
        found.append(scaled(x, x, 2.0).device.index == index and current() == 0)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [True] * 3
    assert all(len(set(one)) == 1 for one in seen)


def test_in_a_launcher_of_kernels():
    class JITFunction:
        def run(self, *args, grid, warmup):
            seen.append((current(), allocated(), *(t.device.index for t in args)))

    launch._wrap_triton(SimpleNamespace(JITFunction=JITFunction))
    x = on(torch.ones(4), D2)
    JITFunction().run(x, x, grid=(1,), warmup=False)
    assert_all(2, 1)
    host = on(torch.ones(4), "cpu")
    seen.clear()
    JITFunction().run(host, on(torch.ones(4), D1), grid=(1,), warmup=False)
    assert seen[0][:2] == (1, 1)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_in_a_compiled_graph(backend):
    torch._dynamo.reset()
    x = on(torch.ones(4, requires_grad=True), D2)
    compiled = torch.compile(lambda t: scaled(t * 1, t, 2.0).sum(), backend=backend)
    for _ in range(2):
        compiled(x).backward()
    assert_all(2, 4)
    assert x.grad.cpu().tolist() == [12.0] * 4
