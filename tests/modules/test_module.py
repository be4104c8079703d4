"""ManagedModule: wrapping in place, what arrives later, moving, pinning, copies and files."""

import copy
import io
import pickle

import pytest
import torch
from support.devices import D0, D1, D2, D3, DEVICE_TYPE, NEVER_FITS, device_name
from torch import nn

from managed import _C, DeviceManager, ManagedModule, ManagedTensor, device_manager
from managed.errors import OutOfMemoryError, PinConflictError

MiB = 2**20


class Block(nn.Module):
    """Importable, so that it can be pickled; tied, with a buffer and a nested module."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8, bias=False)
        self.inner = nn.Sequential(nn.BatchNorm1d(8), nn.ReLU())
        self.last = nn.Linear(8, 8)
        self.last.weight = self.first.weight
        self.register_buffer("scale", torch.full((1,), 2.0))

    def forward(self, x):
        return self.last(self.inner(self.first(x))) * self.scale


class Refusing(nn.Module):
    """A class with a say of its own about moving and pickling."""

    def __init__(self, width=3):
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.ones(width))

    def cuda(self, device=None):
        self.asked = True
        return super().cuda(device)

    def __reduce__(self):
        return (type(self), (self.width,))


def devices(module):
    tensors = [*module.parameters(), *module.buffers()]
    return {str(t.device) for t in tensors}


def all_managed(module):
    return all(t.__class__ is ManagedTensor for t in module.state_dict(keep_vars=True).values())


# ---- wrapping


def test_from_module_works_in_place_and_keeps_what_the_model_was():
    model = Block()
    keys, objects = list(model.state_dict()), list(model.parameters())
    wrapped = ManagedModule.from_module(model)
    assert wrapped is model
    assert isinstance(model, Block)
    assert isinstance(model, ManagedModule)
    assert isinstance(model.first, nn.Linear)
    assert isinstance(model.first, ManagedModule)
    assert type(model).__name__ == "Block"
    assert type(model).__qualname__ == Block.__qualname__
    assert type(model).__module__ == Block.__module__
    assert repr(model) == repr(Block())
    assert list(model.state_dict()) == keys
    assert all(a is b for a, b in zip(model.parameters(), objects, strict=True))
    assert model.last.weight is model.first.weight
    assert all_managed(model)
    assert all(isinstance(p, nn.Parameter) for p in model.parameters())


def test_from_module_is_idempotent_and_its_class_is_made_once():
    model = ManagedModule.from_module(Block())
    kind = type(model)
    assert ManagedModule.from_module(model) is model
    assert type(model) is kind
    assert type(ManagedModule.from_module(Block())) is kind


def test_from_module_of_a_bare_module():
    bare = ManagedModule.from_module(nn.Module())
    assert isinstance(bare, ManagedModule)
    assert bare.cuda(disperse=True) is bare


def test_hooks_stay():
    model, seen = Block(), []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.__class__))
    ManagedModule.from_module(model)(torch.ones(2, 8))
    assert seen == [ManagedTensor]


@pytest.mark.parametrize("thing", [3, torch.ones(2), nn.Linear, None])
def test_wrapping_a_non_module(thing):
    with pytest.raises(TypeError, match=r"from_module takes a torch\.nn\.Module"):
        ManagedModule.from_module(thing)


def test_inheriting():
    class Net(ManagedModule):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)
            self.weight = nn.Parameter(torch.ones(2))
            self.register_buffer("running", torch.zeros(2))
            self.note = torch.zeros(1)  # registered nowhere

        def forward(self, x):
            return self.fc(x) * self.weight + self.running

    net = Net()
    assert all_managed(net)
    assert isinstance(net.fc, nn.Linear)
    assert isinstance(net.fc, ManagedModule)
    assert net.note.__class__ is torch.Tensor
    net(torch.ones(3, 4)).sum().backward()
    assert net.weight.grad.__class__ is ManagedTensor


def test_what_arrives_later_is_managed():
    net = ManagedModule.from_module(nn.Sequential())
    net.append(nn.Linear(2, 2))
    net.add_module("named", nn.Linear(2, 2))
    net.attribute = nn.ModuleList([nn.Linear(2, 2)])
    net.register_parameter("p", nn.Parameter(torch.ones(1)))
    net.register_parameter("none", None)
    net.register_buffer("b", torch.ones(1))
    net.b = torch.zeros(2)
    net.p = nn.Parameter(torch.zeros(2))
    net.register_module("again", nn.Linear(1, 1))
    assert all_managed(net)
    assert all(isinstance(m, ManagedModule) for m in net.modules())


def test_existing_gradients_are_marked():
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    assert ManagedModule.from_module(model).weight.grad.__class__ is ManagedTensor


def test_a_lazy_module_becomes_managed_with_its_first_input():
    net = ManagedModule.from_module(nn.Sequential(nn.LazyLinear(3), nn.ReLU()))
    net(torch.ones(2, 5))
    assert all_managed(net)
    assert isinstance(net[0], nn.Linear)
    assert isinstance(net[0], ManagedModule)
    assert not net[0]._forward_pre_hooks


@pytest.mark.parametrize("asked", [True, False])
def test_a_lazy_module_that_was_put_somewhere_is_placed_there(asked):
    """Its parameters can carry no mark before they have their shapes."""
    net = ManagedModule.from_module(nn.LazyLinear(3, device="cpu" if asked else D1))
    if asked:
        net.to(D1)
    net(torch.ones(2, 5))
    assert [(str(p.device), _C.placed(p)) for p in net.parameters()] == [(D1, asked)] * 2
    assert not any(name.startswith("_managed") for p in net.parameters() for name in vars(p))


def test_meta_modules_are_managed_once_they_have_bytes():
    with torch.device("meta"):
        net = ManagedModule.from_module(nn.Linear(2, 2))
    net.to_empty(device="cpu")
    assert all_managed(net)


# ---- conversions and state


def test_conversions_stay_managed_and_pinned():
    net = ManagedModule.from_module(Block()).pin()
    objects = list(net.parameters())
    net.double()
    assert net.first.weight.dtype is torch.float64
    assert all_managed(net)
    assert all(p.pinned for p in net.parameters())
    assert all(a is b for a, b in zip(net.parameters(), objects, strict=True))


def test_state_dict_files_hold_nothing_of_ours():
    net, file = ManagedModule.from_module(Block()), io.BytesIO()
    torch.save(net.state_dict(), file)
    assert b"managed" not in file.getvalue()
    file.seek(0)
    state = torch.load(file, weights_only=True)
    plain = Block()
    plain.load_state_dict(state)
    assert all(v.__class__ is torch.Tensor for v in state.values())
    assert torch.equal(plain.first.weight, net.first.weight)


@pytest.mark.parametrize("assign", [False, True])
def test_loading_stays_managed(assign):
    net = ManagedModule.from_module(Block())
    net.load_state_dict(Block().state_dict(), assign=assign)
    assert all_managed(net)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"]
)
def test_copies_are_managed_and_tied(duplicate):
    net = ManagedModule.from_module(Block())
    other = duplicate(net)
    assert type(other) is type(net)
    assert type(other.inner[0]) is type(net.inner[0])
    assert all_managed(other)
    assert other.last.weight is other.first.weight
    assert other.first.weight is not net.first.weight
    x = torch.ones(4, 8)
    assert torch.equal(other.eval()(x), net.eval()(x))


def test_a_class_with_its_own_reduce_and_cuda():
    net = ManagedModule.from_module(Refusing(5))
    other = pickle.loads(pickle.dumps(net))
    assert type(other) is type(net)
    assert other.width == 5
    assert all_managed(other)
    assert net.cuda(2).asked
    assert devices(net) == {D2}


def test_a_pickle_names_the_original_class_only():
    data = pickle.dumps(ManagedModule.from_module(nn.Linear(2, 2)))
    assert b"torch.nn.modules.linear" in data
    assert b"_managed_original" not in data


# ---- moving


@pytest.mark.parametrize("train_first", [False, True])
def test_moving_keeps_identity_ties_gradients_and_the_optimizer(train_first):
    torch.manual_seed(0)
    net, plain = ManagedModule.from_module(Block()), Block()
    plain.load_state_dict(net.state_dict())
    optimizers = [torch.optim.Adam(m.parameters(), foreach=True) for m in (net, plain)]
    x = torch.randn(16, 8)

    def step():
        for model, optimizer in zip((net, plain), optimizers, strict=True):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()

    objects = list(net.parameters())
    if train_first:
        step()
    net.cuda(1)
    assert devices(net) == {D1}
    assert all(p.grad is None or p.grad.device == p.device for p in net.parameters())
    step()
    net.inner.cuda(3)
    step()
    net.cuda(disperse=True)
    step()
    net.cpu()
    step()
    assert devices(net) == {"cpu"}
    assert all(a is b for a, b in zip(net.parameters(), objects, strict=True))
    assert net.last.weight is net.first.weight
    assert all(
        a is b for a, b in zip(optimizers[0].param_groups[0]["params"], objects, strict=True)
    )
    for ours, theirs in zip(net.state_dict().values(), plain.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def test_cuda_without_a_device_puts_all_of_it_on_one():
    net = ManagedModule.from_module(Block())
    assert net.cuda() is net
    assert len(devices(net)) == 1
    assert devices(net) != {"cpu"}
    before = devices(net)
    assert devices(net.cuda().to("cuda")) == before
    net.cpu()


@pytest.mark.parametrize("argument", [2, "cuda:2", D2])
def test_to_names_a_device_in_every_form(argument):
    net = ManagedModule.from_module(Block())
    weight = net.first.weight
    assert net.to(argument) is net
    assert net.to(device=argument) is net
    assert net.to(argument, torch.float64) is net
    assert devices(net) == {D2}
    assert net.first.weight is weight
    assert weight.dtype is torch.float64
    assert net.to(torch.float16).first.weight.dtype is torch.float16
    assert net.to(torch.ones(1)).first.weight.dtype is torch.float32
    assert devices(net) == {"cpu"}


def test_recurrent_weights_move_together():
    torch.manual_seed(0)
    net = ManagedModule.from_module(nn.LSTM(4, 4))
    x = torch.randn(3, 2, 4)
    expected = net(x)[0]
    assert torch.equal(net.cuda(1)(x)[0].cpu(), expected)


def test_what_fits_nowhere_stays():
    net = ManagedModule.from_module(nn.Linear(1, 1))
    net.big = nn.Parameter(torch.zeros(300 * MiB, dtype=torch.uint8), requires_grad=False)
    for disperse in (False, True):
        with pytest.raises(torch.OutOfMemoryError, match=NEVER_FITS):
            net.cuda(disperse=disperse)
        assert devices(net) == {"cpu"}


def test_a_move_that_fails_leaves_everything_where_it_was():
    net = ManagedModule.from_module(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    net[1].big = nn.Parameter(torch.zeros(300 * MiB, dtype=torch.uint8), requires_grad=False)
    net[0].cuda(1)
    with pytest.raises(torch.OutOfMemoryError):
        net.cuda(2)
    assert devices(net[0]) == {D1}
    assert devices(net[1]) == {"cpu"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"device": "cpu"}, "names no accelerator"),
        ({"device": 1, "disperse": True}, "disperse=True chooses devices"),
        ({"device": device_name(9)}, f"there is no device {DEVICE_TYPE}:9"),
        ({"device": "gpu"}, "names no device"),
    ],
)
def test_bad_devices(arguments, text):
    net = ManagedModule.from_module(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=text):
        net.cuda(**arguments)
    assert devices(net) == {"cpu"}


# ---- pins


def test_a_pinned_module_stays():
    net = ManagedModule.from_module(Block()).cuda(1)
    assert net.pin() is net
    assert all(t.pinned for t in [*net.parameters(), *net.buffers()])
    assert net.cuda(1) is net
    assert net.cuda() is net
    for move in (net.cpu, lambda: net.cuda(2), lambda: device_manager.send(net, D3)):
        with pytest.raises(PinConflictError, match=rf"pinned to {D1}.*unpin\(\) first"):
            move()
    assert devices(net) == {D1}
    assert devices(net.unpin().cpu()) == {"cpu"}


def test_one_pinned_parameter_stops_the_whole_move():
    net = ManagedModule.from_module(Block())
    net.last.bias.pin()
    with pytest.raises(PinConflictError, match=r"Linear\.bias"):
        net.cuda(1)
    assert devices(net) == {"cpu"}


# ---- through a DeviceManager


def test_a_manager_moves_plain_modules_in_place():
    model = nn.Linear(4, 4)
    weight = model.weight
    assert device_manager.send(model, D2) is model
    assert model.weight is weight
    assert devices(model) == {D2}
    assert weight.__class__ is ManagedTensor
    assert DeviceManager(cuda_devices=[3]).cuda(nn.Linear(2, 2)).weight.device.index == 3


def test_a_module_that_a_manager_cannot_send_stays():
    small, large = nn.Linear(2, 2), nn.Linear(1, 1)
    large.big = nn.Parameter(torch.zeros(300 * MiB, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(OutOfMemoryError, match=rf"{D0} out of memory\."):
        device_manager.send([small, {"x": torch.ones(2), "m": large}], D0)
    assert devices(small) == devices(large) == {"cpu"}
