"""One test for each bug that was fixed in the binding and in the package."""

import copy
import gc
import inspect
import threading
import time

import pytest
import torch
from support.devices import D0, D1
from support.paths import PROGRAMS
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import managed
from managed import DeviceManager, ManagedModule, ManagedTensor
from managed._modules import walk

MIB = 2**20


def wrap(tensor):
    return tensor.as_subclass(ManagedTensor)


@pytest.fixture
def hold():
    """Reservations on the first device alone, given back at the end."""
    from managed import _C

    manager = DeviceManager(cuda_devices=[D0], reserved=0.0, retry_limit=30, wait_time=0.1)
    taken = []

    def take(keep):
        gc.collect()
        [(_, (free, _, _))] = _C.rooms(manager)
        taken.append(_C.admit(manager, free - keep, False))
        return taken[-1]

    take.manager = manager
    yield take
    for reservation in taken:
        reservation.release()


def test_the_manager_that_is_asked_lives_until_it_has_answered(run_python):
    """cuda() borrowed device_manager, and freed memory was read once another one was assigned."""
    run_python(
        PROGRAMS / "manager_replaced.py",
        PYTHONMALLOC="debug",  # fills what is freed, so that reading it is noticed
    )


def test_frees_elsewhere_do_not_use_up_the_patience(hold):
    """Every free ended a pause, and retry_limit pauses ended the wait after a few ms."""
    held = hold(MIB)
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            torch.empty(1024, device=D1)
            time.sleep(0.001)

    threads = [threading.Thread(target=churn), threading.Timer(0.5, held.release)]
    for thread in threads:
        thread.start()
    found = hold.manager.find_device(16 * MIB)
    stop.set()
    for thread in threads:
        thread.join()
    assert found == torch.device(D0)


def test_a_buffer_that_is_a_view_is_replaced_when_its_module_moves():
    """It moved in place, and its base stayed on the old device."""

    class Net(ManagedModule):
        def __init__(self):
            super().__init__()
            self.register_buffer("b", wrap(torch.zeros(3)))
            self.w = nn.Parameter(torch.ones(3))

    net = Net()
    net.tied = nn.Module()
    net.tied.register_buffer("b", net.b)
    old, base = net.b, net.b._base
    net.cuda(1)
    assert net.b.device == net.w.device == torch.device(D1)
    assert net.tied.b is net.b
    assert isinstance(net.b, ManagedTensor)
    assert old.device.type == base.device.type == "cpu"
    net.b.mul_(2).add_(net.w)
    net.b.sum().backward()
    assert net.w.grad.tolist() == [1, 1, 1]
    assert net.b.tolist() == [1, 1, 1]


def test_parameters_of_one_flat_tensor_move_and_keep_their_objects():
    """Parameters over a view are no views: each gets memory of its own, as in torch."""
    flat = torch.arange(6.0)
    net = nn.Module()
    net.a, net.b = nn.Parameter(flat[:3]), nn.Parameter(flat[3:])
    a, b = net.a, net.b
    ManagedModule.from_module(net).cuda(1)
    assert [net.a is a, net.b is b] == [True, True]
    assert a.device == b.device == torch.device(D1)
    assert [a.tolist(), b.tolist()] == [[0, 1, 2], [3, 4, 5]]
    assert flat.device.type == "cpu"


def test_a_sent_module_is_managed_where_buffers_were_replaced():
    """The buffer that was replaced was marked, and not the one that took its place."""
    net, base = nn.Module(), torch.zeros(4)
    net.register_buffer("b", base[:2])
    plain = net.b
    managed.device_manager.send(net, D1)
    assert isinstance(net.b, ManagedTensor)
    assert not isinstance(plain, ManagedTensor)


def test_conversions_keep_pins_and_histories():
    """double() lost the pins of floating buffers, and moves after it were not in the history."""
    net = ManagedModule.from_module(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))).cuda(0)
    net.pin()
    for convert in (net.double, net.half, lambda: net.to(torch.float64)):
        convert()
        kept = [*net.parameters(), *net.buffers()]
        assert all(t.pinned for t in kept)
    net.unpin()
    events = len(managed.explain(net))
    net.cuda(1)
    moves = [e for e in list(managed.explain(net))[events:] if e.kind == "move"]
    assert {e.tensor for e in moves} == set(net.state_dict(keep_vars=True))


class Failing:
    """Stands before the compiled module: one move forth and one move back fail."""

    def __init__(self, real, forth, back):
        self.real, self.forth, self.back, self.count = real, forth, back, 0

    def __getattr__(self, name):
        return getattr(self.real, name)

    def move(self, *arguments):
        self.count += 1
        if self.count == self.forth:
            raise managed.OutOfMemoryError("the first thing that went wrong")
        if self.count == self.back:
            raise RuntimeError("no way back")
        return self.real.move(*arguments)


def test_a_step_that_cannot_be_undone_neither_stops_the_others_nor_hides_the_error(monkeypatch):
    """The first undo that failed ended the rollback, and its error took the original's place."""
    layers = [nn.Linear(2, 2, bias=False) for _ in range(4)]
    net = ManagedModule.from_module(nn.Sequential(*layers)).cuda(0)
    monkeypatch.setattr(walk, "C", Failing(walk.C, forth=4, back=5))
    with pytest.raises(managed.OutOfMemoryError, match="the first thing") as caught:
        net.cuda(1)
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert f"Linear.weight stays on {D1} (no way back)" in told
    assert [str(p.device) for p in net.parameters()] == [D0, D0, D1, D0]


def test_a_model_that_cannot_be_managed_is_left_as_it_was():
    """from_module had adopted what came before the tensor that it refused."""
    net = nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(2), nn.Linear(2, 2))
    net[0].weight.grad = torch.ones(2, 2)
    net[2].weight = nn.Parameter(TwoTensor(torch.rand(2, 2), torch.rand(2, 2)))
    hooks, types = len(net[1]._forward_pre_hooks), [type(m) for m in net.modules()]
    with pytest.raises(TypeError, match="__torch_dispatch__"):
        ManagedModule.from_module(net)
    assert [type(m) for m in net.modules()] == types
    assert len(net[1]._forward_pre_hooks) == hooks
    kept = [net[0].weight, net[0].weight.grad, net[0].bias, net[2].bias]
    assert not any(isinstance(t, ManagedTensor) for t in kept)


@pytest.mark.parametrize("plain", [False, True])
def test_a_tensor_that_stands_twice_in_a_nest_stays_one(hold, plain):
    """Each place got a copy of its own, and room was asked for both."""
    x = torch.empty(8 * MIB, dtype=torch.uint8)
    x = x if plain else wrap(x)
    hold(12 * MIB)
    manager = DeviceManager(reserved=0.0, retry_limit=0)
    a, (b, other) = manager.send([x, (x, "other")], D0)
    assert a is b
    assert (a.device, other) == (torch.device(D0), "other")
    del a, b
    a, b = hold.manager.cuda([x, x])
    assert a is b
    assert a.device == torch.device(D0)


def test_the_signature_of_a_manager_can_be_read_and_its_defaults_given():
    """The signature named the time module, which is no literal: inspect raised ValueError."""
    signature = inspect.signature(DeviceManager)
    defaults = {name: p.default for name, p in signature.parameters.items()}
    assert list(defaults) == [
        "comm_interface",
        "cuda_devices",
        "reserved",
        "retry_limit",
        "wait_time",
    ]
    assert repr(DeviceManager(**defaults)) == repr(DeviceManager())
    assert DeviceManager(**defaults).comm_interface is time


def test_views_in_inference_mode_on_simulated_devices():
    """A view of a normal tensor was made an inference tensor: "Cannot set version_counter"."""
    x = torch.arange(4.0, device=D1).reshape(2, 2)
    with torch.inference_mode():
        views = [x.t(), x.view(4), x[0], x.as_strided((2,), (1,))]
        made = x + 1
        assert made.is_inference()
        assert made.t().is_inference()
    assert not any(view.is_inference() for view in views)
    views[1].mul_(2)
    assert x.tolist() == [[0.0, 2.0], [4.0, 6.0]]


def test_deterministic_programs_find_the_same_in_uninitialised_memory():
    """Simulated devices left torch.use_deterministic_algorithms' promise about empty() open."""
    torch.use_deterministic_algorithms(True)
    try:
        made = torch.empty(3, device=D1)
        strided = torch.empty_strided((3,), (2,), dtype=torch.int16, device=D1)
    finally:
        torch.use_deterministic_algorithms(False)
    assert made.isnan().all()
    assert strided.tolist() == [torch.iinfo(torch.int16).max] * 3


def test_everything_leaves_however_much_it_is():
    """A plan of 256 steps was carried out, and what did not fit into it stayed."""
    from managed import _C

    held = [wrap(torch.zeros(2**12)).to(D0) for _ in range(600)]
    assert _C.spill_all() >= 600
    assert all(_C.is_spilled(t) for t in held)


# ---- writes that no operator of ours sees, to bytes that the host has a copy of


class SumMode(TorchDispatchMode):
    """Adds what every operator gives to a tensor of its own."""

    def __init__(self, total):
        super().__init__()
        self.total = total

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.total.add_(result)
        return result


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        how = {"dtype": inner.dtype, "device": inner.device}
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, **how)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        function(*(a.inner if isinstance(a, cls) else a for a in args), **(kwargs or {}))
        return args[0]


def by_mode(x):
    with SumMode(x):
        torch.ones_like(x) * 1


UNSEEN = {
    "copy": lambda x: copy.copy(x).add_(1),
    "set": lambda x: torch.empty(0, device=D1).set_(x.untyped_storage(), 0, x.shape).add_(1),
    "mode": by_mode,
    "wrapper": lambda x: Wrapper(x).add_(1),
}


@pytest.mark.not_under_torture("what a mode keeps for itself is not brought home")
@pytest.mark.parametrize("write", UNSEEN.values(), ids=UNSEEN)
def test_writes_past_the_hook_stay(write):
    """Bytes that had come home unchanged were dropped for their old copy on the host."""
    from managed import _C

    x = wrap(torch.zeros(2**14)).to(D1)
    _C.spill_all()
    x + 0
    write(x)
    _C.spill_all()
    assert _C.is_spilled(x)
    assert x.tolist()[0] >= 1


def test_an_alias_that_is_kept_and_written_later():
    """The loan was noted when it was made, and not what was written long after."""
    from managed import _C

    x = wrap(torch.zeros(2**14)).to(D1)
    alias = copy.copy(x)
    for round in range(3):
        _C.spill_all()
        x + 0
        alias.add_(1)
        _C.spill_all()
        assert x.tolist()[0] == round + 1


# ---- results that are their operands' bytes


ALIASES = {
    "unsafe_chunk": lambda x: torch.unsafe_chunk(x, 2),
    "unsafe_split": lambda x: torch.unsafe_split(x, 100),
    "lift": torch.ops.aten.lift,
    "coo": lambda x: torch.sparse_coo_tensor(torch.arange(2**14)[None].to(D1), x, (2**14,)),
    "csr": lambda x: torch.sparse_csr_tensor(
        torch.tensor([0, 2**14], device=D1),
        torch.arange(2**14, device=D1),
        x,
        (1, 2**14),
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("make", ALIASES.values(), ids=ALIASES)
def test_results_that_are_their_operands_do_not_take_the_bytes_away(make):
    """Their schemas promise new results; a plain tensor over the same bytes found them gone."""
    from managed import _C

    plain = torch.ones(2**14, device=D1)
    x = wrap(plain)
    result = make(x)
    _C.spill_all()
    assert (plain + 1)[0].item() == 2
    del result


def test_a_view_whose_base_was_given_other_bytes():
    """To ask whether two storages are aliases read their pointers, and one of them had left."""
    from managed import _C

    base = wrap(torch.ones(128, 128)).to(D0)
    view = base[64:]
    base.data = wrap(torch.zeros(128, 128)).to(D0)
    other = wrap(torch.ones(1024, 64)).to(D1)
    _C.spill_all()
    assert (other @ view).sum().item() == 1024 * 64 * 128


# ---- list operators with a tensor of numbers


@pytest.mark.parametrize("devices", [[D0] * 3, [D0, D1, D0]])
def test_list_operators_with_a_tensor_of_scalars(devices):
    """It was brought to the tensors, and belongs to the CPU; each device needs its own rows."""
    made = [[wrap(torch.full((4,), v)).to(d) for d in devices] for v in (1.0, 2.0, 4.0)]
    torch._foreach_addcdiv_(*made, torch.tensor([1.0, 2.0, 3.0]))
    assert [t[0].item() for t in made[0]] == [1.5, 2.0, 2.5]


# ---- higher-order operators


@pytest.mark.parametrize("device", ["cpu", D1])
def test_higher_order_operators(device):
    """They had no kernel for the key."""
    x = wrap(torch.ones(4)).to(device).requires_grad_()
    y = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
    y.sum().backward()
    assert torch.equal(y.cpu(), torch.ones(4).sin())
    assert torch.equal(x.grad.cpu(), torch.ones(4).cos())


# ---- storages of a symbolic size


def test_results_of_a_symbolic_size():
    """A storage was asked for its bytes that has a formula for them, in exports of torch 2.15."""
    sizes = ShapeEnv()
    b = wrap(torch.ones(64, 64)).to(D1)
    with FakeTensorMode(shape_env=sizes, allow_non_fake_inputs=True):
        n = sizes.create_unbacked_symint()
        a = torch.empty(n, 64, device=D1)
        assert (a @ b).shape == (n, 64)
        assert b.expand(n, 64, 64).clone().shape == (n, 64, 64)


# ---- sparse tensors


@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta state:UserWarning")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_what_is_a_view_of_a_strided_tensor_reads_a_sparse_one(layout):
    """The simulated kernel was given indices and values without memory, and crashed."""
    plain = torch.rand(128, 128).to_sparse(layout=layout)  # members large enough to leave
    there = wrap(plain).to(D1)
    if layout == torch.sparse_coo:
        assert torch.equal(there.unsqueeze(0).to_dense().cpu(), plain.unsqueeze(0).to_dense())
        assert torch.equal(
            torch.stack([there, there]).to_dense().cpu(), torch.stack([plain] * 2).to_dense()
        )
    assert torch.equal(there[2].to_dense().cpu(), plain[2].to_dense())
    assert torch.equal(there.transpose(0, 1).to_dense().cpu(), plain.transpose(0, 1).to_dense())


@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta state:UserWarning")
@pytest.mark.parametrize("reduction", ["sum", "mean", "amax", "amin"])
@pytest.mark.parametrize("managed_too", [False, True])
def test_reduced_products_with_gradients_of_the_dense_operand_alone(reduction, managed_too):
    """The simulated kernel did not note which entries it had chosen, and backward read them."""
    a, b = (torch.eye(6) + torch.eye(6).roll(1, 1)).to_sparse_csr(), torch.rand(6, 5)
    there, dense = a.to(D1), b.to(D1)
    if managed_too:
        there, dense = wrap(there), wrap(dense)
    b.requires_grad_()
    dense.requires_grad_()
    torch.sparse.mm(a, b, reduction).sum().backward()
    torch.sparse.mm(there, dense, reduction).sum().backward()
    assert torch.equal(dense.grad.cpu(), b.grad)


def test_torchs_list_of_what_can_be_overridden_has_none_of_ours(run_python):
    """PyTorch's own test_overrides.py stopped at attributes that it does not know.

    Torch makes the list once a process, and libraries of other tests put functions of their own
    into torch (torch_geometric: `torch.select`), so this has a process of its own.
    """
    run_python("""
        import torch

        def not_tested():
            tested = torch.overrides.get_testing_overrides()
            listed = torch.overrides.get_overridable_functions().values()
            return {f.__name__ for functions in listed for f in functions if f not in tested}

        # Torch keeps both in caches; what it does not test itself is no fault of ours.
        before = not_tested()
        for made in vars(torch.overrides).values():
            getattr(made, "cache_clear", lambda: None)()
        import managed
        assert not_tested() == before, not_tested() ^ before
    """)


def test_synchronize_waits_before_torch_has_made_a_tensor_there(run_python):
    """Torch takes a device that it has not initialised for idle, and our copies initialise none."""
    run_python("""
        import torch, managed
        from managed import ManagedTensor, _C

        managed.simulate(devices=1, memory="64MiB")
        x = torch.zeros(2**20).as_subclass(ManagedTensor).to("sim:0")
        event = torch.Event("sim", enable_timing=True)
        _C.spill_all()
        x[:1].add_(1.0)
        event.record()
        assert not event.query()
        torch.accelerator.synchronize()
        assert event.query()
    """)


def test_a_plain_tensor_that_moves_stays_readable():
    """Its new storage could leave, and nobody brings home what a plain tensor uses."""
    from managed import _C

    state = torch.arange(2.0**18)  # as an optimizer holds it
    _C.move(state, D1)
    assert state.device == torch.device(D1)
    assert not _C.is_managed(state)
    _C.spill_all()
    assert torch.equal(state.cpu(), torch.arange(2.0**18))


def test_a_copy_on_another_device_is_made_once():
    """to(device, copy=True) copied there, and then once more."""
    x = wrap(torch.ones(MIB // 4)).cuda(0)
    for call in (
        lambda: x.to(D1, copy=True),
        lambda: x.to(D1, None, False, True),
        lambda: x.to(device=D1, copy=True, memory_format=torch.preserve_format),
    ):
        torch.sim.reset_peak_memory_stats(D1)
        before = torch.sim.memory_allocated(D1)
        there = call()
        assert torch.sim.max_memory_allocated(D1) == before + MIB
        assert there is not x
        del there
    same = x.to(D0, copy=True)
    assert same.data_ptr() != x.data_ptr()
    assert torch.equal(same.cpu(), x.cpu())


def test_the_profiler_of_cuda_programs_says_nothing_of_each_operator(run_python):
    """Torch wrote a C++ trace for each operator, since no card could record an event."""
    said = run_python(
        """
        import torch, managed
        from torch.profiler import ProfilerActivity, profile

        with managed.on("1x64MiB"):
            x = torch.ones(4, 4, device="cuda")
            for kinds in ([ProfilerActivity.CPU, ProfilerActivity.CUDA], [ProfilerActivity.CUDA]):
                with profile(activities=kinds, acc_events=True) as p:
                    x @ x
                assert "aten::mm" in p.key_averages().table(sort_by="cuda_time_total")
            with torch.autograd.profiler.profile(use_device="cuda") as p:
                x @ x
            assert "aten::mm" in p.key_averages().table()
    """,
        stderr="",
    )  # torch 2.13 writes some lines of its own
    assert "Failed to record CUDA event" not in said


def test_no_stream_is_a_context_that_does_nothing():
    """As torch.cuda.stream(None) is, which programs write for devices without a second stream."""
    with managed.on():
        before = torch.cuda.current_stream()
        with torch.cuda.stream(None) as stream:
            assert stream is None
            assert torch.cuda.current_stream() == before


def test_fork_does_not_hold_what_a_move_needs(run_python):
    """It took the lock of points, then waited two seconds for moves that waited for that lock.

    The child found bytes on their way in a thread that it lacked.
    """
    said = run_python(PROGRAMS / "pressed" / "fork_beside_moves.py")
    assert said == "end\n"
