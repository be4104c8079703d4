"""Compiled graphs and launchers of kernels, which read the pointers of what they are given.

Here stand-ins read them: there is no code for simulated devices, and Triton's own are in
test_virtual_runtime.py.
"""

import ctypes
from types import SimpleNamespace

import pytest
import torch
from support.pressure import N, make, moved, nothing_left, on, spill  # noqa: F401
from torch import nn

from managed import _C
from managed._torch_patches import launch

OutputCode = pytest.importorskip("torch._inductor.output_code")
pytest.importorskip("torch._inductor.debug")  # what it imports as late as when a graph is called


@pytest.fixture(scope="module", autouse=True)
def wrapped():
    launch.wrap_inductor()
    launch.wrap_inductor()  # changes nothing


def graph(call, writes=()):
    """A compiled graph whose code is `call`."""
    made = object.__new__(OutputCode.CompiledFxGraph)
    made.current_callable = call
    made.mutated_input_idxs = set(writes)
    made._compile_context = None
    made.compiled_fn_runner = None
    made._fx_graph_cache_key = None
    return made


def test_inputs_are_home_for_the_call_and_free_after_it():
    here, x = make()
    expected = x.data_ptr  # bound, not called
    spill(x)

    def call(inputs):
        assert not _C.is_spilled(x)
        expected()
        _C.spill_all()
        assert not _C.is_spilled(x), "it is in use"
        return torch.equal(x.cpu(), here)

    assert graph(call)([x, 3])
    spill(x)
    assert torch.equal(x.cpu(), here)


def test_parameters_and_what_a_graph_makes_itself():
    p = nn.Parameter(on(torch.randn(N)))
    _C.mark(p)

    def call(inputs):
        (w,) = inputs
        inputs.clear()
        plain = torch.empty(N, device="sim:0")
        assert w.data_ptr()
        assert plain.data_ptr()

    graph(call)([p])
    spill(p)


def test_outside_of_the_call_a_pointer_keeps_its_bytes():
    _, x = make()
    _, y = make()
    graph(lambda inputs: inputs[0].data_ptr())([x])
    graph(lambda inputs: y.data_ptr())([x])  # not an input
    y.data_ptr()
    x.data_ptr()
    _C.spill_all()
    assert not _C.is_spilled(x)
    assert not _C.is_spilled(y)


def test_a_pointer_of_what_is_no_input_is_taken_for_good():
    _, x = make()
    _, y = make()
    graph(lambda inputs: y.data_ptr())([x])
    _C.spill_all()
    assert _C.is_spilled(x)
    assert not _C.is_spilled(y)


def test_what_a_graph_writes_is_written_back_and_has_no_copies():
    here, x = make()
    _, only_read = make()
    y = on(torch.ones(4, N), "sim:1")
    x * y, only_read * y
    spill(x, only_read)

    def call(inputs):
        block = inputs[0].detach().cpu().numpy() + 1
        inputs[0].data_ptr()
        write(inputs[0], block)

    def write(t, values):
        """Past every operator, as kernels do."""
        ctypes.memmove(t.data_ptr(), values.ctypes.data, values.nbytes)

    graph(call, writes=[0])([x, only_read])
    with moved() as m:
        spill(x, only_read)
    assert (m["spill"], m["drop"]) == (1, 1), "what was only read has its copy on the host still"
    assert torch.equal(x.cpu(), here + 1)
    assert torch.equal((x * y)[0].cpu(), here + 1), "the copy on the other device is new"


def test_a_call_that_fails_gives_all_back():
    _, x = make()

    def call(inputs):
        inputs[0].data_ptr()
        raise ValueError("the launcher")

    with pytest.raises(ValueError, match="the launcher"):
        graph(call)([x])
    spill(x)


def test_a_launcher_of_triton():
    class JITFunction:
        def run(self, *args, grid, warmup, **kwargs):
            assert (grid, warmup) == ((1,), False)
            return [t.data_ptr() for t in (*args, *kwargs.values())]

    launch._wrap_triton(SimpleNamespace(JITFunction=JITFunction))
    _, x = make()
    _, y = make()
    assert all(JITFunction().run(x, out=y, grid=(1,), warmup=False))
    spill(x, y)


def test_while_a_graph_is_recorded_a_pointer_stays(run_python):
    run_python("""
    import torch, managed
    from managed import _C as C
    from managed._torch_patches import launch
    managed.simulate(devices=1, memory="64MiB")
    x = torch.rand(1 << 16).as_subclass(managed.ManagedTensor).cuda(0)
    def call():
        C.private_pool(1, True)
        x.data_ptr()
        C.private_pool(-1, True)
    C.call_lent([x], None, call, ())
    assert C.spill_all() == 0
    """)
