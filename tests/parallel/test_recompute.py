"""recomputing(): a module runs again in the backward pass, and nothing else is another number.

The program with recompute is compared, bit by bit, with the same program without it.
"""

import copy
import functools
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from support.devices import D0, D1, D2, D3
from torch import nn
from torch.utils.checkpoint import checkpoint

from managed import ManagedModule, ManagedTensor
from managed._parallel import recompute
from managed._parallel.recompute import recomputing

STEPS, PARTS = 20, 3


class Counter(nn.Module):
    """Counts in all the ways that modules count, and reads what it has counted."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("assigned", torch.zeros(1, dtype=torch.long))
        self.register_buffer("mask", torch.ones(3))
        self.attribute, self.number = torch.zeros(()), 0
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        self.calls += 1
        self.assigned = self.assigned + 2
        self.attribute.add_(0.5)
        self.number += 1
        scale = self.calls.clone() + self.assigned + self.attribute.clone() + self.number
        return x * self.weight * self.mask * scale.rsqrt()


class Codebook(nn.Module):
    """A vector quantizer whose codes follow the data. `how` writes the buffer of codes."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.register_buffer("codes", torch.randn(5, 3))
        self.register_buffer("sizes", torch.ones(5))

    def forward(self, x):
        nearest = torch.cdist(x.detach(), self.codes.clone()).argmin(1)
        chosen = self.codes[nearest]
        hot = F.one_hot(nearest, 5).to(x.dtype)
        with torch.no_grad():
            sizes = self.sizes * 0.9 + hot.sum(0) * 0.1
            codes = self.codes * 0.9 + (hot.T @ x) * 0.1 / sizes[:, None]
        for name, value in (("sizes", sizes), ("codes", codes)):
            if self.how == "assigned":
                setattr(self, name, value)
            elif self.how == "data":  # no version counter sees it
                getattr(self, name).data.copy_(value)
            else:
                getattr(self, name).copy_(value)
        return torch.tanh(x * chosen) + (chosen - x).detach()


class Recurrent(nn.Module):
    """Keeps its last result as an attribute that is no buffer."""

    def __init__(self):
        super().__init__()
        self.layer, self.state = nn.Linear(3, 3), (torch.zeros(3),)

    def forward(self, x):
        out = torch.tanh(self.layer(x) + self.state[0])
        self.state = (out.detach().mean(0),)
        return out


def weight_of_a_hook(module=nn.Linear):
    return nn.utils.spectral_norm(module(3, 3))


def parametrized():
    return nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))


LAYERS = {
    "BatchNorm1d": (functools.partial(nn.BatchNorm1d, 3), (4, 3)),
    "BatchNorm2d": (functools.partial(nn.BatchNorm2d, 3), (4, 3, 2, 2)),
    "BatchNorm3d": (functools.partial(nn.BatchNorm3d, 3), (4, 3, 2, 2, 2)),
    "BatchNorm1d, average": (functools.partial(nn.BatchNorm1d, 3, momentum=None), (4, 3)),
    **{
        f"InstanceNorm{d}d": (
            functools.partial(kind, 3, affine=True, track_running_stats=True),
            (4, 3, *(3,) * d),
        )
        for d, kind in enumerate((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), 1)
    },
    "spectral_norm": (parametrized, (4, 3)),
    "spectral_norm, hook": (weight_of_a_hook, (4, 3)),
    "counter": (Counter, (4, 3)),
    "codebook": (functools.partial(Codebook, "in place"), (4, 3)),
    "codebook, assigned": (functools.partial(Codebook, "assigned"), (4, 3)),
    "codebook, data": (functools.partial(Codebook, "data"), (4, 3)),
    "recurrent": (Recurrent, (4, 3)),
    "dropout": (functools.partial(nn.Dropout, 0.4), (4, 3)),
}


class Block(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.rand(3, 1) + 0.5), layer

    def forward(self, x):
        scale = self.scale.view(3, *(1,) * (x.dim() - 2))
        return torch.sin(self.layer(torch.sin(x * scale)))


def make(name, blocks=2):
    make_layer, shape = LAYERS[name]
    torch.manual_seed(7)
    return nn.Sequential(*(Block(make_layer()) for _ in range(blocks))), shape


ORDERS = {  # forward passes, and backward passes with a minus, of micro-batches 1 to 3
    "forwards first": (1, 2, 3, -1, -2, -3),
    "backwards reversed": (1, 2, 3, -3, -2, -1),
    "interleaved": (1, 2, -1, 3, -3, -2),
}


def on_the_host(tensors):
    return [t.detach().cpu().clone() for t in tensors]


def train(model, shape, what, order, steps=STEPS, wrap=lambda x: x):
    """Returns what a program sees: losses, gradients, buffers, parameters, random numbers."""
    torch.manual_seed(11)
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), []
    for _ in range(steps):
        inputs, losses = [torch.randn(shape) for _ in range(PARTS)], {}
        with recomputing(model, what):
            for part in ORDERS[order]:
                if part > 0:
                    losses[part] = model(wrap(inputs[part - 1])).square().mean()
                else:
                    losses[-part].backward()
        seen += on_the_host([losses[i] for i in sorted(losses)])
        seen += on_the_host(p.grad for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        seen += on_the_host([*model.buffers(), *model.parameters()])
    numbers = [vars(m).get("number") for m in model.modules()]
    return [*seen, torch.rand(3), torch.tensor([n for n in numbers if n is not None])]


def same(one, other):
    assert len(one) == len(other)
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@functools.cache
def reference(name, order, steps=STEPS):
    """Trains without recompute, on the host."""
    return train(*make(name), None, order, steps)


def parts(model, how):
    return [Block] if how == "in a block" else [block.layer for block in model]


def further(*values):
    return pytest.param(*values, marks=pytest.mark.sweep)


@pytest.mark.parametrize(
    ("how", "order"),
    [
        ("in a block", "forwards first"),
        ("by itself", "interleaved"),
        further("in a block", "interleaved"),
        further("in a block", "backwards reversed"),
        further("by itself", "forwards first"),
    ],
)
@pytest.mark.parametrize("name", LAYERS)
def test_nothing_is_another_number(name, how, order):
    model, shape = make(name)
    assert same(reference(name, order), train(model, shape, parts(model, how), order))


class Checkpointed(Block):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


def test_a_checkpoint_alone_fails_the_same_test():
    """The test above can fail: torch.utils.checkpoint writes the buffers twice."""
    name, order = "BatchNorm1d", "forwards first"
    model, shape = make(name)
    for block in model:
        block.__class__ = Checkpointed
    assert not same(reference(name, order), train(model, shape, None, order))
    assert model[0].layer.num_batches_tracked == 2 * STEPS * PARTS


# ---- devices


def there(name, devices, blocks=4):
    """Makes a managed module and puts one block after the other on the devices."""
    model, shape = make(name, blocks)
    model = ManagedModule.from_module(model)
    for i, block in enumerate(model):
        block.to(devices[i * len(devices) // blocks])
    return model, shape


def managed_tensor(x):
    return x.as_subclass(ManagedTensor)


@pytest.mark.parametrize("how", ["in a block", further("by itself")])
@pytest.mark.parametrize("name", LAYERS)
def test_nothing_is_another_number_on_devices(name, how):
    found = []
    for recomputed in (False, True):
        model, shape = make(name, 4)
        ManagedModule.from_module(model).cuda(disperse=True)
        what = parts(model, how) if recomputed else None
        found.append(train(model, shape, what, "interleaved", 3, managed_tensor))
    assert same(*found)


@functools.cache
def dropout_on_one_device():
    return train(*there("dropout", [D0]), None, "interleaved", 3, managed_tensor)


@pytest.mark.parametrize("devices", [[D0], [D0, D2], [D0, D1, D2, D3]], ids=len)
@pytest.mark.parametrize("given", [managed_tensor, lambda x: x], ids=["managed", "plain"])
def test_dropout_draws_the_same_on_any_number_of_devices(devices, given):
    model, shape = there("dropout", devices)
    found = train(model, shape, [Block], "interleaved", 3, given)
    assert same(dropout_on_one_device(), found)


# ---- what is recomputed


class Noted(nn.Module):
    """Notes the passes of all of its kind."""

    def __init__(self, inner=None):
        super().__init__()
        self.inner, self.passes = inner or nn.Tanh(), []

    def forward(self, x):
        self.passes.append(torch._C._current_graph_task_id() != -1)
        return torch.sin(self.inner(torch.sin(x)))


def run(model, what):
    with recomputing(model, what):
        model(torch.randn(2, 3, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("what", ["class", "module"])
def test_what_is_named_runs_again(what):
    model = nn.Sequential(Noted(), nn.Tanh(), Noted())
    run(model, [Noted] if what == "class" else [model[2]])
    assert model[0].passes == ([False, True] if what == "class" else [False])
    assert model[2].passes == [False, True]


def test_its_activations_are_not_kept():
    model = nn.Sequential(*(nn.Sequential(nn.Tanh(), nn.Sigmoid(), nn.Tanh()) for _ in range(4)))

    def kept(what):
        seen, x = [], torch.randn(3, requires_grad=True)
        note = torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t)
        with recomputing(model, what), note:
            model(x)
        return sum(t.numel() > 0 for t in seen)  # torch 2.11 saves an empty one with the others

    assert kept(None) == 12
    assert kept([*model]) == 4  # what the four begin with


@pytest.mark.parametrize("what", [None, [], ()])
def test_nothing_named_is_nothing_done(what):
    model = nn.Sequential(Noted())
    with recomputing(model, what):
        assert "forward" not in vars(model[0])
    run(model, what)
    assert model[0].passes == [False]


def test_of_nested_modules_the_outermost_runs_again():
    model = nn.Sequential(Noted(Noted(Noted())))
    run(model, [Noted])
    assert model[0].passes == model[0].inner.passes == [False, True]
    assert model[0].inner.inner.passes == [False, True]


def test_an_inner_module_that_also_runs_alone_is_recomputed_there():
    inner = Noted()
    model = nn.Sequential(Noted(inner), inner)
    run(model, [Noted])
    assert sorted(inner.passes) == [False, False, True, True]


class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, x, *rest, scale, flag=False, nothing=None):
        assert (rest, flag, nothing) == (("text", None), True, None)
        y = self.norm(self.layer(x) * scale)
        return {"all": (y, y.sin()), "flag": flag}


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_keywords_results_and_autocast(dtype):
    found = []
    for what in (None, [Keywords]):
        torch.manual_seed(3)
        model, x = Keywords(), torch.randn(4, 3)
        scale = torch.rand(4, 1).requires_grad_()
        with recomputing(model, what):
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                out = model(x, "text", None, scale=scale, flag=True)
            assert out["flag"] is True
            (out["all"][0].square() * out["all"][1]).sum().backward()
        gradients = [scale.grad, *(p.grad for p in model.parameters())]
        found.append(on_the_host([*gradients, *model.buffers()]))
    assert same(*found)


def test_without_gradients_nothing_is_copied(monkeypatch):
    monkeypatch.setattr(recompute, "_Pass", None)
    model, shape = make("BatchNorm1d")
    for without in (torch.no_grad, torch.inference_mode):
        with recomputing(model, [Block]), without():
            model(torch.randn(shape))
    assert model[0].layer.num_batches_tracked == 2


# ---- the modules stay what they are


def test_modules_are_as_before():
    model, shape = make("spectral_norm")
    own = model[1].layer.forward
    model[1].layer.forward = own  # an attribute of the program's
    before = [(m, type(m), vars(m), list(vars(m)), dict(m._buffers)) for m in model.modules()]
    with recomputing(model, [nn.Linear, Block]):
        loss = model(torch.randn(shape)).sum()
    for within in (False, True):
        for module, kind, attributes, names, buffers in before:
            assert type(module) is kind
            assert vars(module) is attributes
            assert list(attributes) == names
            assert module._buffers.keys() == buffers.keys()
            assert all(module._buffers[n] is b for n, b in buffers.items())
        assert model[1].layer.forward is own
        if not within:
            loss.backward()  # the context has closed; the recompute uses what was there


def test_hooks_run_once():
    model, told = nn.Sequential(Noted(), Noted()), []
    for module in model:
        module.register_forward_pre_hook(lambda m, i: told.append("before"))
        module.register_forward_hook(lambda m, i, out: told.append("after"))
        module.register_full_backward_hook(lambda m, i, out: told.append("back"))
    run(model, [Noted])
    assert model[0].passes == [False, True]
    assert told == ["before", "after"] * 2 + ["back"] * 2


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fails = nn.BatchNorm1d(3), lambda: False

    def forward(self, x):
        y = torch.sin(self.norm(torch.sin(x)))
        if self.fails():
            raise ValueError("of the module")
        return torch.sin(y)


@pytest.mark.parametrize("when", ["forward", "recompute"])
def test_an_error_leaves_modules_as_they_were(when):
    model, x = nn.Sequential(Failing()), torch.randn(4, 3, requires_grad=True)
    buffers, attributes = dict(model[0].norm._buffers), vars(model[0].norm)
    in_recompute = lambda: torch._C._current_graph_task_id() != -1  # noqa: E731
    with recomputing(model, [Failing]):
        if when == "forward":
            model[0].fails = lambda: True
            with pytest.raises(ValueError, match="of the module"):
                model(x)
            model[0].fails = lambda: False
        else:
            model[0].fails = in_recompute
            loss = model(x).sum()
            with pytest.raises(ValueError, match="of the module"):
                loss.backward()
    assert vars(model[0].norm) is attributes
    assert all(model[0].norm._buffers[n] is b for n, b in buffers.items())
    assert model[0].norm.num_batches_tracked == 1
    assert "forward" not in vars(model[0])
    model[0].fails = lambda: False
    run(model, [Failing])  # no lock is held, and the thread is outside
    assert model[0].norm.num_batches_tracked == 2


def test_a_copy_that_is_made_while_it_is_open_is_a_module_of_its_own():
    model, shape = make("BatchNorm1d")
    with recomputing(model, [Block]):
        other = copy.deepcopy(model)
    other(torch.randn(shape)).sum().backward()
    assert model[0].layer.num_batches_tracked == 0
    assert other[0].layer.num_batches_tracked == 1


# ---- which buffers are written


def test_a_buffer_that_is_not_written_is_copied_once(monkeypatch):
    copied, copy_of = [], recompute._copy
    monkeypatch.setattr(recompute, "_copy", lambda t: copied.append(t) or copy_of(t))
    counter = Counter()
    with recomputing(counter, [Counter]):
        for _ in range(3):
            counter(torch.randn(4, 3))
    assert len([t for t in copied if t is counter.mask]) == 1
    assert len([t for t in copied if t is counter.calls]) == 3


def test_values_are_compared_in_the_first_pass_alone(monkeypatch):
    """A comparison waits for the device."""
    compared, equal = [], recompute._equal
    monkeypatch.setattr(recompute, "_equal", lambda *both: compared.append(both) or equal(*both))
    model = nn.Sequential(Counter(), nn.BatchNorm1d(3), Codebook("assigned"))
    for _ in range(2):
        with recomputing(model, [nn.Sequential]):
            for _ in range(2):
                model(torch.randn(4, 3))
                assert len(compared) == 3  # the mask, and what batch_norm writes


class Late(nn.Module):
    """Writes its buffers from the third pass on."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(3))
        self.number = 0

    def forward(self, x):
        self.number += 1
        y = torch.sin(x * self.scale.clone())
        if self.number > 2:
            self.scale.mul_(1.5)
        return torch.sin(y)


def passes(make_model, what, between=lambda model, i: None, at_once=False):
    """Runs five passes, and their backward passes `at_once` or in reverse after all of them."""
    torch.manual_seed(5)
    model, x = make_model(), torch.randn(4, 3, requires_grad=True)
    with recomputing(model, what):
        losses, gradients = [], []
        for i in range(5):
            between(model, i)
            losses.append(model(x * (i + 1)).square().sum())
            if at_once:
                gradients += torch.autograd.grad(losses[-1], x)
        if not at_once:
            gradients += [torch.autograd.grad(loss, x)[0] for loss in losses[::-1]][::-1]
    return [*gradients, *losses, *on_the_host(model.buffers())]


def test_a_buffer_that_is_written_later_is_found():
    assert same(passes(Late, None), passes(Late, [Late]))


def test_a_buffer_that_the_program_writes_between_passes():
    def between(late, i):
        late.scale.add_(i)

    assert same(passes(Late, None, between), passes(Late, [Late], between))


@pytest.mark.parametrize("plain_pass", [False, True])
def test_training_and_evaluation_take_turns(plain_pass):
    """In evaluation, torch itself differentiates with the statistics that later passes write."""

    def between(model, i):
        if plain_pass:
            with torch.no_grad():
                model.train()(torch.randn(4, 3, generator=torch.Generator().manual_seed(i)))
        model.train(i % 2 == 1 and not plain_pass)

    def norm():
        return nn.Sequential(nn.BatchNorm1d(3), nn.Tanh())

    expected = passes(norm, None, between, at_once=True)
    assert same(expected, passes(norm, [nn.Sequential], between))


def test_training_writes_data_after_an_evaluation():
    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            y = torch.sin(x - self.mean.clone())
            if self.training:
                self.mean.data.lerp_(x.detach().mean(0), 0.1)
            return torch.sin(y)

    def between(model, i):
        model.train(i > 1)

    assert same(passes(Average, None, between), passes(Average, [Average], between))


def test_a_result_that_is_an_attribute_keeps_no_earlier_pass():
    class Keeping(nn.Module):
        def forward(self, x, note):
            self.last = torch.sin(torch.sin(x))
            return self.last

    class Note:
        """An argument, which the graph keeps for the recompute."""

    model, notes = Keeping(), []
    with recomputing(model, [Keeping]):
        for _ in range(3):
            note = Note()
            notes.append(weakref.ref(note))
            model(torch.ones(3, requires_grad=True), note)
            del note
        assert [note() is None for note in notes] == [True, True, False]
        model.last.sum().backward()


def test_one_buffer_under_two_names():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Module()
            self.register_buffer("scale", torch.ones(3))
            self.inner.register_buffer("scale", self.scale)

        def forward(self, x):
            self.inner.scale.mul_(1.5)
            return torch.sin(torch.sin(x) * self.scale.clone())

    assert same(passes(Tied, None), passes(Tied, [Tied]))


def test_a_buffer_that_the_first_pass_makes():
    class Making(nn.Module):
        def forward(self, x):
            if not hasattr(self, "scale"):
                self.register_buffer("scale", x.detach().mean(0))
            self.scale.mul_(1.5)
            return torch.sin(torch.sin(x) * self.scale.clone())

    assert same(passes(Making, None), passes(Making, [Making]))


def test_lazy_modules_get_their_shapes():
    def lazy():
        return nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d(), nn.Tanh())

    assert same(passes(lazy, None), passes(lazy, [nn.Sequential]))


def test_a_graph_that_is_kept_runs_twice():
    found = []
    for what in (None, [Block]):
        model, shape = make("counter")
        with recomputing(model, what):
            x = torch.ones(shape, requires_grad=True)
            loss = model(x).square().sum()
            (first,) = torch.autograd.grad(loss, x, retain_graph=True)
            (again,) = torch.autograd.grad(loss, x)
        assert torch.equal(first, again)
        found.append([first, *model.buffers()])
    assert same(*found)


class Force(nn.Module):
    """Differentiates inside of its forward pass."""

    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(3), nn.Linear(3, 3)

    def forward(self, x):
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            energy = torch.tanh(self.layer(self.norm(y))).square().sum()
            (force,) = torch.autograd.grad(energy, y, create_graph=True)
        return torch.sin(x + force)


@pytest.mark.parametrize("placed", ["plain", "on devices"])
def test_a_backward_pass_inside_of_the_forward_pass(placed):
    def force():
        model = Force()
        return ManagedModule.from_module(model).to(D2) if placed == "on devices" else model

    one, other = passes(force, None), passes(force, [Force])
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b)
    assert same(one[-3:], other[-3:])


# ---- threads


def test_threads_run_one_module_at_once():
    """Passes of one thread run beside recomputes of another: no count is lost or comes twice."""
    model, x = nn.Sequential(Counter(), nn.BatchNorm1d(3)), torch.randn(4, 3)
    per_thread, errors = 20, []

    def work():
        try:
            for _ in range(per_thread):
                model(x.clone().requires_grad_()).square().sum().backward()
        except BaseException as error:  # an assertion in a thread would be lost
            errors.append(error)

    with recomputing(nn.Sequential(model), [nn.Sequential]):
        threads = [threading.Thread(target=work) for _ in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
    assert not errors
    assert model[0].number == model[0].calls.item() == 4 * per_thread
    assert model[1].num_batches_tracked == 4 * per_thread


def test_the_engine_s_threads_recompute_at_once():
    """One backward pass recomputes blocks of four devices, which share a module."""
    shared = Counter()
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(3, 3), shared, nn.Tanh()) for _ in range(4))
    blocks = ManagedModule.from_module(blocks)
    for block, device in zip(blocks, (D0, D1, D2, D3), strict=True):
        block[0].to(device)
    x = managed_tensor(torch.randn(4, 3))
    with recomputing(blocks, [nn.Sequential]):
        for _ in range(5):
            losses = [block(x).square().sum() for block in blocks for _ in range(3)]
            torch.autograd.backward(losses)
    assert shared.number == shared.calls.item() == 5 * 4 * 3


# ---- what cannot be named


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ([3], TypeError, r"such as \[nn.TransformerEncoderLayer, model.head\], not 3"),
        (["Block"], TypeError, "takes classes and modules.*not 'Block'"),
        ("Block", TypeError, "takes a list"),
        (Block, TypeError, "takes a list"),
        (nn.Sequential(nn.Tanh()), TypeError, "takes a list"),
        ([nn.Tanh()], ValueError, r"a Tanh that is no part of the Sequential; .*modules\(\)"),
    ],
    ids=str,
)
def test_what_cannot_be_named(what, error, words):
    model, _ = make("dropout")
    with pytest.raises(error, match=words), recomputing(model, what):
        pass
    assert all("forward" not in vars(m) for m in model.modules())
