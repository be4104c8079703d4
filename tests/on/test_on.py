"""managed.on(): what is made inside is managed and placed, and outside nothing has changed."""

import copy
import gc
import io
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import parallel
from torch.nn.parallel import comm
from torch.utils.data import DataLoader, TensorDataset

import managed
from managed import _C as C
from managed import ManagedModule, ManagedTensor

pytestmark = pytest.mark.only_simulated("CUDA's names are mapped where devices are simulated")

OWNERS = (torch, torch.Tensor, torch.cuda, torch.cuda.memory, torch.cuda.amp, torch.amp.autocast,
          torch.amp.GradScaler, torch.serialization, nn.Module, nn.DataParallel,
          threading.Thread)  # fmt: skip


def attributes():
    return [{k: v for k, v in vars(o).items() if k != "_pin_memory_utils"} for o in OWNERS]


def is_outside():
    x = torch.ones(2)
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(1, device="cuda")
    with pytest.raises(RuntimeError):
        torch.Generator(device="cuda")
    return C.get_on() == 0 and not isinstance(x + 1, ManagedTensor)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


# ---- in and out


def test_nothing_stays():
    with managed.on():  # what torch makes of itself at the first use
        torch.ones(1, device="cuda")
    before, manager = attributes(), C.get_manager()
    with managed.on(), managed.on(disperse=False):
        assert C.get_on() == 1
        x = torch.ones(2)
    assert attributes() == before
    assert C.get_manager() is manager
    assert is_outside()
    assert isinstance(x, ManagedTensor)


def test_an_exception_leaves_and_the_same_object_enters_again():
    before = attributes()
    block = managed.on()
    for _ in range(2):
        with pytest.raises(KeyError), block, block:
            raise KeyError
    assert attributes() == before
    assert is_outside()


def test_decorated():
    @managed.on()
    def inside(n):
        """Text."""
        return C.get_on() if n == 0 else inside(n - 1)

    @managed.on(disperse=False)
    def each():
        got = yield C.get_on()
        yield got, C.get_on()

    assert inside(3) == 2
    assert inside.__doc__ == "Text."
    generator = each()
    assert next(generator) == 1
    assert C.get_on() == 0
    assert generator.send("x") == ("x", 1)
    assert is_outside()

    async def later(): ...

    with pytest.raises(TypeError, match="cannot decorate a coroutine"):
        managed.on()(later)


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"devices": 4}, TypeError, "not 4"),
        ({"devices": "17x8GiB"}, ValueError, "1 to 16 devices"),
        ({"devices": "4x8Gib!"}, ValueError, "is no size"),
        ({"devices": "cuda:0"}, ValueError, r"some that there are: \['cuda:0'\]"),
        ({"devices": lambda: None}, TypeError, r"write @managed.on\(\)"),
        ({"budget": "half"}, ValueError, "'half' is no size"),
        ({"budget": "110%"}, ValueError, "is no part of"),
        ({"disperse": "layers"}, ValueError, "True or False"),
    ],
)
def test_arguments_that_make_no_sense(arguments, error, told):
    with pytest.raises(error, match=told):
        managed.on(**arguments)
    assert is_outside()


def test_what_fails_on_the_way_in_is_undone():
    before, manager = attributes(), C.get_manager()
    for block in (managed.on(["sim:99"]), managed.on("3x1GiB"), managed.on(budget=1 << 50)):
        with pytest.raises((ValueError, RuntimeError)), block:
            pytest.fail("it went in")
    assert attributes() == before
    assert C.get_manager() is manager
    assert is_outside()


def test_devices_and_budget_last_as_long_as_the_block():
    manager, caps = C.get_manager(), [C.capacity(f"sim:{i}") for i in range(4)]
    with managed.on(["sim:1", "sim:2"], budget="25%"):
        assert [C.capacity(f"sim:{i}") for i in range(4)] == [256 << 20, 64 << 20, 64 << 20,
                                                               256 << 20]  # fmt: skip
        assert {torch.ones(1 << 18).cuda().device.index for _ in range(6)} <= {1, 2}
    assert C.get_manager() is manager
    assert [C.capacity(f"sim:{i}") for i in range(4)] == caps


# ---- threads


def test_threads_that_start_inside_are_inside_until_they_end():
    go, seen = threading.Event(), []

    def work():
        go.wait(60)
        seen.append((C.get_on(), torch.ones(2, device="cuda").device.type))

    def look():
        go.wait(60)
        seen.append((C.get_on(), isinstance(torch.ones(2), ManagedTensor)))

    older = threading.Thread(target=look)
    older.start()
    before = attributes()
    with managed.on(disperse=False):
        younger = threading.Thread(target=work)
        younger.start()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(C.get_on).result() == 1
    go.set()
    younger.join()
    older.join()
    assert sorted(seen) == [(0, False), (1, "sim")]
    assert attributes() == before
    assert is_outside()


def test_a_thread_that_cannot_start_leaves_nothing():
    before = attributes()
    with managed.on():
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
        with pytest.raises(RuntimeError, match="once"):
            thread.start()
    assert attributes() == before


def test_hooks_of_a_backward_pass_are_inside():
    seen = []
    with managed.on():
        x = torch.ones(2, device="cuda:1", requires_grad=True)
        x.register_hook(lambda g: seen.append((C.get_on(), isinstance(g, ManagedTensor))))
        (x * 2).sum().backward()
    assert seen == [(2, True)]


# ---- tensors

MADE = {
    "empty": lambda d: torch.empty(3, device=d),
    "zeros": lambda d: torch.zeros(3, device=d),
    "full": lambda d: torch.full((3,), 2.0, device=d),
    "randn": lambda d: torch.randn(3, device=d),
    "arange": lambda d: torch.arange(3, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 3, device=d),
    "eye": lambda d: torch.eye(3, device=d),
    "tril_indices": lambda d: torch.tril_indices(3, 3, device=d),
    "randperm": lambda d: torch.randperm(3, device=d),
    "tensor": lambda d: torch.tensor([1, 2], device=d),
    "as_tensor": lambda d: torch.as_tensor([1, 2], device=d),
    "asarray": lambda d: torch.asarray([1, 2], device=d),
    "zeros_like": lambda d: torch.zeros_like(torch.ones(3), device=d),
    "new_zeros": lambda d: torch.ones(3).new_zeros(3, device=d),
    "new_tensor": lambda d: torch.ones(3).new_tensor([1.0], device=d),
    "sparse": lambda d: torch.sparse_coo_tensor([[0]], [1.0], (2,), device=d).coalesce(),
    "to": lambda d: torch.ones(3).to(d),
    "to dtype": lambda d: torch.ones(3).to(d, torch.float16),
    "to named": lambda d: torch.ones(3).to(device=d, non_blocking=True),
    "cuda": lambda d: torch.ones(3).cuda(d),
    "default": lambda d: _by_default(d),
    "load": lambda d: torch.load(_saved(), map_location=d),
    "parameter": lambda d: nn.Linear(2, 2, device=d).weight,
    "generator": lambda d: torch.ones(1, device=torch.Generator(device=d).device),
}  # fmt: skip


def _by_default(device):
    with torch.device(device):
        return torch.ones(3)


def _saved():
    file = io.BytesIO()
    torch.save(torch.ones(3), file)
    file.seek(0)
    return file


@pytest.mark.parametrize("name", MADE)
def test_cuda_names_simulated_devices(name):
    with managed.on():
        one = [MADE[name](kind("cuda:2")) for kind in (str, torch.device)]
        anywhere = MADE[name]("cuda")
    assert [t.device for t in one] == [torch.device("sim:2")] * 2
    assert anywhere.device.type == "sim"
    assert all(isinstance(t, ManagedTensor) for t in (*one, anywhere))


def test_the_manager_chooses_where_no_index_is_named():
    with managed.on():
        made = [torch.zeros(1 << 18, device="cuda") for _ in range(8)]
        sent = [torch.ones(1 << 18).to("cuda") for _ in range(8)]
        assert sorted(t.device.index for t in made) == [0, 0, 1, 1, 2, 2, 3, 3]
        assert sorted(t.device.index for t in sent) == [0, 0, 1, 1, 2, 2, 3, 3]
        there = torch.zeros(3, device="cuda:3")
        assert there.to("cuda") is there
        assert torch.empty_like(there, device="cuda").device.index == 3
        drawn = torch.randn(3, device="cuda", generator=torch.Generator("cuda:1"))
        assert drawn.device.index == 1
    del made, sent
    with managed.on(disperse=False):
        made = [torch.zeros(1 << 18, device="cuda") for _ in range(4)]
        assert len({t.device for t in made}) == 1
        with pytest.raises(ValueError, match="there is no device cuda:9"):
            torch.ones(2).to("cuda:9")
        with pytest.raises(RuntimeError):
            torch.ones(2, device="cuda:9")


DRAWN = {
    "randn": lambda **to: torch.randn(3, **to),
    "rand": lambda **to: torch.rand(3, **to),
    "randint": lambda **to: torch.randint(100, (3,), **to),
    "randperm": lambda **to: torch.randperm(9, **to),
    "randn_like": lambda **to: torch.randn_like(torch.ones(3), **to),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_random_numbers_do_not_depend_on_the_device_that_is_picked(name):
    def drawn(device, index=None):
        torch.manual_seed(3)
        made = [DRAWN[name](device=device) for _ in range(4)]
        again = DRAWN[name](device=device, generator=torch.Generator("sim:0").manual_seed(5))
        return [*made, torch.dropout(made[0].float(), 0.5, True), again]

    outside = drawn("sim:0")
    with managed.on():
        torch.manual_seed(3)
        own = torch.randn(3, device="cuda:2")  # its own generator, as in plain PyTorch
        inside = drawn("cuda")
    assert len({t.device.index for t in inside[:4]}) > 1
    for a, b in zip(outside, inside, strict=True):
        assert torch.equal(a.cpu(), b.cpu())
    torch.manual_seed(3)
    assert torch.equal(torch.randn(3, device="sim:2").cpu(), own.cpu())


def test_what_no_operator_made_comes_along_at_its_first_one():
    plain = torch.from_numpy(np.arange(3.0))
    with managed.on():
        assert isinstance(plain * 2, ManagedTensor)
        assert isinstance(plain[1:], ManagedTensor)
        assert (plain.cuda(1) + plain.cuda(2)).device.index in (1, 2)  # brought together
    assert not isinstance(plain, ManagedTensor)


@pytest.mark.parametrize("alias", [torch.Tensor.detach, lambda x: x.data, torch.Tensor.view_as])
def test_a_plain_tensor_stays_where_it_was_made(alias):
    """Also if statistics in it, that an operator elsewhere writes, would rather be there."""
    x, there = torch.ones(4, 4), torch.ones(4, 4, device="sim:0").as_subclass(ManagedTensor)
    arguments = (x,) if alias is torch.Tensor.view_as else ()
    with managed.on(), torch.no_grad():
        for _ in range(5):
            there * x
            nn.functional.batch_norm(
                there, alias(x, *arguments)[0], torch.ones(4), training=True, momentum=1.0
            )
    for _ in range(5):
        there + x
    assert x.device.type == "cpu"
    assert torch.equal(x + torch.ones(4, 4), torch.full((4, 4), 2.0))


def test_numpy_of_what_is_far():
    with managed.on():
        x = torch.arange(3.0, device="cuda:1")
        assert x.numpy().tolist() == [0, 1, 2]
        assert np.asarray(x).tolist() == [0, 1, 2]
    with pytest.raises(TypeError):
        x.numpy()


# ---- modules


def test_modules_are_placed_whole():
    with managed.on():
        for send in (lambda m: m.to("cuda"), lambda m: m.cuda(), lambda m: m(torch.ones(2, 4))):
            model = net()
            send(model)
            assert isinstance(model, ManagedModule)
            assert {p.device.type for p in model.parameters()} == {"sim"}
            assert len({p.device for p in model.parameters()}) == 1
        with torch.device("cuda"):
            apart = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
        assert len({p.device for p in apart.parameters()}) > 1
        apart(torch.ones(1, 512))
        assert len({p.device for p in apart.parameters()}) == 1
        assert {p.device for p in net().to("cuda:2").parameters()} == {torch.device("sim:2")}
        del apart, model
        gc.collect()
        many = [nn.Linear(512, 512).to("cuda") for _ in range(4)]
        assert {m.weight.device.index for m in many} == {0, 1, 2, 3}
    outside = net()
    outside(torch.ones(2, 4))
    assert not isinstance(outside, ManagedModule)


@pytest.mark.parametrize("share", [lambda p: p.detach()[0], lambda p: p.data])
def test_a_module_whose_bytes_others_have_is_not_placed_by_its_first_call(share):
    with managed.on():
        model, x = nn.Linear(4, 4), torch.ones(2, 4)
        other = share(model.weight)
        model(x)
        other.fill_(3)
        assert (model.weight == 3).sum() == other.numel()
        assert model.weight.is_cpu
        assert torch.equal(model(x.to("cuda")).cpu(), model(x))


def test_a_module_that_fits_on_no_device_is_spread():
    with managed.on(budget="2MiB"):
        model = nn.Sequential(*(nn.Linear(384, 384) for _ in range(6))).to("cuda")
        assert len({p.device for p in model.parameters()}) > 1


def test_a_module_that_was_told_to_stay_on_the_host_does():
    with managed.on():
        for model in (net().cpu(), net().to("cpu")):
            assert model(torch.ones(2, 4)).device.type == "cpu"


def test_modules_that_cannot_be_managed_are_left_alone():
    class Empty(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(2, device="meta"))

        def forward(self):
            return self.weight

    with managed.on():
        model = Empty()
        assert model().is_meta
        assert not isinstance(model, ManagedModule)
        assert model.to_empty(device="cuda").weight.device.type == "sim"


def train(device):
    model = net().to(device)
    torch.manual_seed(1)
    data = DataLoader(TensorDataset(torch.randn(16, 4), torch.randn(16, 1)), batch_size=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for x, y in data:
        loss = (model(x.to(device)) - y.to(device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [p.detach().cpu().tolist() for p in model.parameters()]


@pytest.mark.parametrize("disperse", [True, False])
def test_training_has_the_numbers_of_the_host(disperse):
    with managed.on(disperse=disperse):
        inside = train("cuda")
    assert inside == train("cpu")


def test_batches_of_workers():
    with managed.on():
        data = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, num_workers=2)
        batches = [x.to("cuda:1") for (x,) in data]
    assert [b.tolist() for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert all(isinstance(b, ManagedTensor) for b in batches)


# ---- torch.cuda


def test_torch_cuda_speaks_of_simulated_devices():
    with managed.on():
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 4
        x = torch.ones(1 << 18, device="cuda:3")
        held = torch.cuda.memory_allocated("cuda:3")
        assert held == torch.sim.memory_allocated(3) >= x.nbytes
        assert torch.cuda.memory_allocated(torch.device("cuda:3")) == held
        properties = torch.cuda.get_device_properties("cuda:1")
        assert properties.total_memory == 256 << 20
        assert torch.cuda.get_device_capability(0) == (properties.major, properties.minor)
        assert torch.cuda.memory_summary().startswith("|===")
        with torch.cuda.device(2):
            assert torch.cuda.current_device() == 2
        assert torch.cuda.current_device() == 0
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        end.record()
        torch.cuda.synchronize()
        assert begin.elapsed_time(end) >= 0
        assert isinstance(begin, torch.cuda.Event)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            assert torch.cuda.current_stream() == stream
        assert isinstance(stream, torch.cuda.Stream)
        torch.cuda.manual_seed_all(5)
        first = torch.randn(3, device="cuda:0")
        torch.cuda.manual_seed_all(5)
        assert torch.equal(first, torch.randn(3, device="cuda:0"))
    assert not torch.cuda.is_available()


def test_a_module_with_hooks_at_its_accumulators_stays():
    """They belong to the accumulators of where the parameters are."""
    plain, model = net(), net()
    x = torch.randn(3, 4)
    plain(x).sum().backward()
    with managed.on():
        called = []
        ends = [p.view_as(p).grad_fn.next_functions[0][0] for p in model.parameters()]
        for end in ends:
            end.register_hook(lambda *gradients: called.append(1))
        model(x).sum().backward()
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert len(called) == len(ends)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_torchscript_knows_what_is_replaced():
    """torch.distributed.optim scripts its classes when it is imported, for example."""
    known = torch.jit._builtins._find_builtin
    names = [name for name in dir(torch) if known(getattr(torch, name))]

    def kinds() -> bool:
        return torch.is_autocast_enabled() and torch.get_autocast_dtype("cuda") == torch.float16

    before = {name: getattr(torch, name) for name in names}
    with managed.on():
        replaced = [name for name in names if getattr(torch, name) is not before[name]]
        assert {"sparse_coo_tensor", "is_autocast_enabled", "get_autocast_dtype"} <= {*replaced}
        for name in replaced:
            assert known(getattr(torch, name)) == known(before[name])
        inside = torch.jit.script(kinds)
        assert not inside()
    assert not torch.jit.script(kinds)()


def test_autocast_and_grad_scaler():
    with managed.on():
        x = torch.randn(4, 4, device="cuda")
        with torch.autocast("cuda"):
            assert torch.is_autocast_enabled()
            assert torch.is_autocast_enabled("cuda")
            assert (x @ x).dtype is torch.float16
        with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
            assert (x @ x).dtype is torch.bfloat16
        assert not torch.is_autocast_enabled("cuda")
        weight = torch.ones(3, device="cuda:1", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.5)
        for scaler in (torch.amp.GradScaler(), torch.amp.GradScaler("cuda", init_scale=4.0)):
            scaler.scale(weight.sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert scaler.get_scale() == 4.0
    assert weight.tolist() == [0, 0, 0]


# ---- nn.DataParallel


class Several(nn.Module):
    """Gives a dict of a loss, of what rows became, and of nothing; counts its calls."""

    def __init__(self):
        super().__init__()
        self.layer, self.rows = nn.Linear(3, 2), []

    def forward(self, x, scale=None, *, names=()):
        self.rows.append((len(x), names))
        y = self.layer(x) * (1 if scale is None else scale)
        return {"loss": y.square().mean(), "y": (y, [y + 1]), "nothing": None}


@pytest.mark.parametrize(("rows", "parts"), [(8, [2, 2, 2, 2]), (5, [2, 2, 1]), (1, [1])])
def test_data_parallel_has_a_part_for_each_device(rows, parts):
    torch.manual_seed(0)
    plain, x, scale = Several(), torch.randn(rows, 3), torch.rand(rows, 1)
    given = [plain(a, b) for a, b in zip(x.split(parts), scale.split(parts), strict=True)]
    with managed.on():
        assert torch.cuda.device_count() == 4
        model = nn.DataParallel(plain).cuda()
        assert model.device_ids == [0, 1, 2, 3]
        plain.rows.clear()
        got = model(x.cuda(), scale, names=["x", "y"])
    assert sorted(plain.rows) == sorted((n, ["x", "y"]) for n in parts)
    losses = torch.stack([g["loss"] for g in given])
    assert torch.equal(got["loss"].cpu(), losses if len(parts) > 1 else losses[0])
    assert torch.equal(got["y"][0].cpu(), torch.cat([g["y"][0] for g in given]))
    assert torch.equal(got["y"][1][0].cpu(), torch.cat([g["y"][1][0] for g in given]))
    assert got["nothing"] is None
    assert len({p.device for p in plain.parameters()}) == 2  # homes of weight and bias
    got["loss"].mean().backward()
    assert plain.layer.weight.grad.device == plain.layer.weight.device


def test_data_parallel_outlives_the_block_and_is_told_devices():
    with managed.on():
        model = nn.DataParallel(net(), device_ids=[0, 1]).cuda()
        first = model(torch.ones(4, 4))
        alone = nn.DataParallel(net(), device_ids=["cuda:2"])
        assert alone(torch.ones(4, 4)).device == torch.device("sim:2")
    assert isinstance(model, nn.DataParallel)
    assert torch.equal(model(torch.ones(4, 4)), first)
    assert list(model.state_dict()) == [f"module.{name}" for name in net().state_dict()]
    assert torch.equal(copy.deepcopy(model)(torch.ones(4, 4)), first)
    with managed.on():
        assert nn.DataParallel(net())(torch.ones(1, 4)).shape == (1, 1)
        empty = nn.DataParallel(Nothing())
        assert empty() == 3


class Nothing(nn.Module):
    def forward(self):
        return 3


# ---- the functions that nn.DataParallel consists of

COUNT = 3


def whole():
    torch.manual_seed(0)
    return nn.BatchNorm1d(4), torch.randn(7, 4, requires_grad=True)


@pytest.mark.parametrize("rows", [7, 6, 2])
def test_scatter_and_gather(rows):
    _, x = whole()
    x = x[:rows].detach()
    with managed.on():
        there = x.to("cuda:0").requires_grad_()
        parts = parallel.scatter({"x": there, "n": 3}, range(COUNT))
        assert [p["x"].device.index for p in parts] == list(range(len(parts)))
        assert [p["n"] for p in parts] == [3] * len(parts)
        back = parallel.gather([p["x"] * 2 for p in parts], "cuda:1")
        assert back.device == torch.device("sim:1")
        assert torch.equal(back.cpu(), x * 2)
        back.sum().backward()
    assert torch.equal(there.grad.cpu(), torch.full_like(x, 2))
    assert [len(p["x"]) for p in parts] == [len(part) for part in x.chunk(COUNT)]


def test_scatter_takes_what_is_on_the_host_and_another_dimension():
    with managed.on():
        parts = parallel.scatter(torch.arange(12.0).view(2, 6), [2, 0], dim=1)
        assert [str(p.device) for p in parts] == ["sim:2", "sim:0"]
    assert [p.tolist() for p in parts] == [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]]]


def test_replicas_are_copies_that_gradients_come_home_from():
    norm, x = whole()
    want = copy.deepcopy(norm)(x).square().sum()
    (weight_grad,) = torch.autograd.grad(want, [x])
    with managed.on():
        norm.to("cuda:1")
        copies = parallel.replicate(norm, ["cuda:1", "cuda:0", "cuda:2"])
        assert [c.weight.device.index for c in copies] == [1, 0, 2]
        assert [c.running_mean.device.index for c in copies] == [1, 0, 2]
        there = [x.detach().to(f"cuda:{c.weight.device.index}").requires_grad_() for c in copies]
        outputs = parallel.parallel_apply(copies, there)
        sum(o.square().sum().to("cuda:0") for o in outputs).backward()
    for t in there:
        assert torch.allclose(t.grad.cpu(), weight_grad)
    assert norm.weight.grad.device == torch.device("sim:1")
    with managed.on(), torch.no_grad():
        assert parallel.replicate(norm, [0, 1], detach=True)[1].weight.device.index == 1


def test_data_parallel_as_a_function():
    plain, x = nn.Linear(4, 2), torch.randn(7, 4)
    want = plain(x)
    want.sum().backward()
    grad, plain.weight.grad = plain.weight.grad, None
    with managed.on():
        module = plain.to("cuda:0")
        got = parallel.data_parallel(module, x.cuda(), range(COUNT))
        got.sum().backward()
        assert torch.allclose(got.cpu(), want)
        assert torch.allclose(plain.weight.grad.cpu(), grad)


def test_a_subclass_that_gathers_by_itself():
    """As MultiDeviceKernel of GPyTorch."""

    class Sums(nn.DataParallel):
        def gather(self, outputs, output_device):
            return sum(o.sum().to(output_device) for o in outputs)

    x = torch.randn(7, 4)
    with managed.on():
        module = nn.Linear(4, 2).to("cuda:0")
        got = Sums(module, range(COUNT))(x.cuda())
        assert torch.allclose(got.cpu(), module(x.cuda()).sum().cpu())


def test_copies_of_torch_nn_parallel_comm():
    with managed.on():
        x = torch.arange(6.0, device="cuda:1")
        for copies in (comm.broadcast(x, [0, 1, 2]), comm.broadcast(x, out=[x * 0, x.cuda(2) * 0])):
            assert all(torch.equal(c.cpu(), x.cpu()) for c in copies)
        summed = comm.reduce_add([x.to("cuda:0"), x, x.to("cuda:2")], 1)
        assert str(summed.device) == "sim:1"
        assert torch.equal(summed.cpu(), 3 * x.cpu())
        halves = comm.scatter(x, [0, 2], chunk_sizes=[2, 4])
        assert [(len(h), h.device.index) for h in halves] == [(2, 0), (4, 2)]
        comm.scatter(x + 1, out=halves)
        assert torch.equal(comm.gather(halves, destination="cpu"), x.cpu() + 1)
        out = torch.empty(6, device="cuda:0")
        assert comm.gather(halves, out=out) is out
        assert torch.equal(out.cpu(), x.cpu() + 1)
    with pytest.raises((AttributeError, AssertionError, RuntimeError)):
        comm.broadcast(torch.ones(2), [0, 1])


# ---- a part of the device's memory


def test_a_fraction_of_the_memory_is_a_budget():
    x = torch.ones(2**18)
    with managed.budget("sim:0", None), managed.on():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(0.5, "cuda:0")
        assert torch.cuda.get_per_process_memory_fraction(0) == 0.5
        assert C.capacity("sim:0") == total // 2
        torch.cuda.memory.set_per_process_memory_fraction(0.0125)  # 3.2 MiB of the current device
        kept = [x.to("cuda:0") + i for i in range(4)]
        assert sum(map(C.is_spilled, kept)) >= 2
        assert [t[0].item() for t in kept] == [1, 2, 3, 4]
        for bad, error in ((2, TypeError), (1.5, ValueError), (-0.5, ValueError)):
            with pytest.raises(error):
                torch.cuda.set_per_process_memory_fraction(bad)
    assert C.capacity("sim:0") == total
