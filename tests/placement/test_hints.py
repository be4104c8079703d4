"""managed.hint: what the program says changes who leaves and where things live, never a value."""

import random

import pytest
import torch
from support.devices import D0, D1, D2, device_name
from support.pressure import nothing_left  # noqa: F401
from torch import nn

import managed
from managed import _C, ManagedModule, ManagedTensor
from managed.errors import PinConflictError

MiB = 2**20
counts = pytest.mark.not_under_torture("who leaves is decided by the torture")


def mebibyte(device=D0, value=0):
    return torch.full((MiB // 4,), float(value)).as_subclass(ManagedTensor).to(device)


def away(tensors):
    return [i for i, x in enumerate(tensors) if _C.is_spilled(x)]


def three():
    """Tensors that an operator has used in turn, so that the first leaves first."""
    made = [mebibyte(value=i) for i in range(3)]
    for x in made:
        x.add_(0)
    return made


def press(tensors, n=1):
    """Takes so much room that `n` of the tensors must leave; returns which did."""
    with managed.budget(D0, (len(tensors) - n) * MiB + MiB // 2):
        return away(tensors)


# ---- who leaves


@counts
def test_without_a_hint_the_oldest_leaves():
    tensors = three()
    assert press(tensors) == [0]


@counts
def test_what_is_used_again_stays():
    tensors = three()
    assert managed.hint(tensors[0], reuse=True) is tensors[0]
    assert press(tensors) == [1]
    assert [x[0].item() for x in tensors] == [0, 1, 2]


@counts
def test_what_must_leave_leaves_all_the_same():
    tensors = managed.hint(three(), reuse=True)
    assert press(tensors, 2) == [0, 1]


@counts
def test_what_is_used_once_leaves_first():
    tensors = three()
    managed.hint(tensors[2], reuse=False)
    tensors[2].add_(0)  # it stays so
    assert press(tensors) == [2]


@counts
def test_what_wont_be_needed_leaves_until_it_is():
    tensors = three()
    managed.hint(tensors[2], wont_need=True)
    assert press(tensors) == [2]
    tensors = three()
    managed.hint(tensors[2], wont_need=True)
    tensors[2].add_(0)
    assert press(tensors) == [0]


@counts
def test_what_is_only_read_leaves_rather():
    tensors = three()
    managed.hint(tensors[2], read_only=True)
    assert press(tensors) == [2]
    tensors[2].add_(1)  # allowed
    assert press(tensors) != []
    assert tensors[2][0].item() == 3


@counts
def test_a_hint_replaces_the_one_before():
    tensors = three()
    managed.hint(tensors[0], reuse=True)
    managed.hint(tensors[0])
    assert _C.advice(tensors[0]) == 0
    assert press(tensors) == [0]


@counts
def test_a_result_has_no_hint():
    kept = managed.hint(mebibyte(), reuse=True)
    tensors = [kept, kept + 1, kept + 2]
    assert [_C.advice(x) for x in tensors] == [_C.LAST, 0, 0]
    assert press(tensors) == [1]


# ---- whose it is


@counts
def test_a_hint_holds_after_a_move():
    net = ManagedModule.from_module(nn.Linear(512, 512, bias=False))
    managed.hint(net, reuse=True)
    net.to(D1).to(D0)
    others = three()
    net.weight.detach().add_(0)
    for x in others:
        x.add_(0)
    assert press([net.weight, *others]) == [1]
    net.double().float()
    assert _C.advice(net.weight) == _C.LAST


@counts
def test_a_hint_waits_until_the_bytes_may_leave():
    """A gradient that a copy brought home can leave once an operator has used it alone."""
    w = mebibyte(value=1).requires_grad_()
    (w * mebibyte(D1, 1).pin()).sum().backward()
    other = w.grad.detach()
    managed.hint(w.grad, reuse=True)
    before = _C.residency(D0)["storages"]
    del other
    w.grad.add_(0)
    assert _C.residency(D0)["storages"] == before + 1
    tensors = [w.grad, w.detach(), *three()]
    tensors[1].add_(0)
    for x in tensors[2:]:
        x.add_(0)
    assert press(tensors) == [1]


@counts
def test_a_nest_and_a_view():
    x = mebibyte()
    net = ManagedModule.from_module(nn.Linear(4, 4)).to(D0)
    managed.hint({"a": [x.view(2, -1)], "b": (net,)}, read_only=True, reuse=False)
    said = _C.READ | _C.FIRST
    assert [_C.advice(p) for p in net.parameters()] == [said, said]
    others = three()
    assert press([*others, x]) == [3]


# ---- values


def train(said, seed):
    torch.manual_seed(3)
    net = ManagedModule.from_module(nn.Sequential(*[nn.Linear(256, 256) for _ in range(10)]))
    net.to(D0)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    x = torch.randn(64, 256)
    losses, chance = [], random.Random(seed)
    with managed.budget(D0, 4 * MiB):
        for _ in range(6):
            if said:
                for layer in net:
                    managed.hint(
                        layer,
                        reuse=chance.choice((None, None, True, False)),
                        read_only=chance.random() < 0.5,
                        wont_need=chance.random() < 0.5,
                    )
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses, [p.detach().cpu() for p in net.parameters()]


@pytest.mark.parametrize("seed", range(3))
def test_no_hint_changes_a_value(seed):
    losses, values = train(False, seed)
    told, others = train(True, seed)
    assert told == losses
    for a, b in zip(values, others, strict=True):
        assert torch.equal(a, b)


@counts
def test_a_learned_step_leaves_alone_what_is_to_stay():
    net = ManagedModule.from_module(
        nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(10)])
    ).to(D0)
    managed.hint(net[4], reuse=True)
    x = torch.randn(8, 512)
    left = []
    with managed.budget(D0, 6 * MiB):
        for _ in range(8):
            net(x).sum().item()
            left.append(away(list(net.parameters())))
        assert _C.step_state(1)["follows"]
    assert all(left)
    assert not any(4 in gone for gone in left)


# ---- near


def test_near_moves_in_place_and_stays():
    x, leaf = mebibyte(), nn.Parameter(mebibyte(D1))
    net = ManagedModule.from_module(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))).to(D0)
    number = id(net[0].weight)
    assert managed.hint([net, leaf], near=x)[0] is net
    assert {str(t.device) for t in (*net.parameters(), *net.buffers(), leaf)} == {D0}
    managed.hint(net, near=D2)
    assert {str(t.device) for t in (*net.parameters(), *net.buffers())} == {D2}
    assert id(net[0].weight) == number
    assert net[0].weight.placed
    managed.hint(leaf, near=net)
    assert str(leaf.device) == D2
    assert leaf.placed
    managed.hint(leaf, near="cpu")
    assert leaf.is_cpu
    assert not leaf.placed


def test_near_moves_all_or_none():
    net = ManagedModule.from_module(nn.Linear(4, 4)).to(D0)
    kept = managed.hint(mebibyte(), reuse=True)
    pinned = mebibyte().pin()
    with pytest.raises(PinConflictError, match=r"the tensor is pinned to \S+ and was asked to go"):
        managed.hint([net, kept, pinned], near=D1, read_only=True)
    result = nn.Parameter(mebibyte()) * 2
    with pytest.raises(RuntimeError, match=r"the result of an operator does not move in place"):
        managed.hint([net, kept, result], near=D1, read_only=True)
    with pytest.raises(RuntimeError, match=r"a view does not move in place; use x = x.to\("):
        managed.hint([net, kept[:8]], near=D1)
    assert {str(t.device) for t in (*net.parameters(), kept)} == {D0}
    assert [_C.advice(t) for t in (net.weight, kept)] == [0, _C.LAST]


SHARERS = {
    "view": lambda x: x[3],
    "transposed": lambda x: x.t(),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "another tensor over the storage": lambda x: torch.empty(0, device=x.device).set_(x),
    "view of the gradient": lambda x: x.grad[3],
}


@pytest.mark.parametrize("where", ["cpu", D0])
@pytest.mark.parametrize("how", SHARERS)
def test_near_leaves_nothing_behind_that_shares_the_bytes(how, where):
    net = ManagedModule.from_module(nn.Linear(8, 8, bias=False)).to(where)
    x = net.weight
    x.grad = torch.zeros_like(x)
    other = SHARERS[how](x)
    for obj in (x, net, [net, x]):
        with pytest.raises(RuntimeError, match="that another object has as well"):
            managed.hint(obj, near=D1)
    assert str(x.device) == where
    with torch.no_grad():
        other.fill_(3)
    shared = x.grad if "gradient" in how else x.detach()
    assert (shared == 3).sum() == other.numel()
    del other, shared
    managed.hint(net, near=D1)
    assert str(x.device) == str(x.grad.device) == D1


def test_near_brings_a_storage_whose_parts_all_come():
    flat = torch.rand(8)
    first, last = nn.Parameter(flat[:4]), nn.Parameter(flat[4:])
    twin = nn.Parameter(flat[2:6])
    del flat
    net = ManagedModule.from_module(nn.ParameterList([first, last]))
    with pytest.raises(RuntimeError, match="that another object has as well"):
        managed.hint(net, near=D1)
    with pytest.raises(RuntimeError, match="that another object has as well"):
        managed.hint([net, ManagedModule.from_module(nn.ParameterList([twin]))], near=D1)
    del twin
    want = [p.tolist() for p in net]
    managed.hint(net, near=D1)
    assert [p.tolist() for p in net] == want
    assert {str(p.device) for p in net} == {D1}


def test_near_takes_buffers_that_are_views_of_what_is_gone():
    class Positions(nn.Module):
        def __init__(self, ids):
            super().__init__()
            self.register_buffer("ids", ids[None].expand(2, -1))

    kept = torch.arange(4)
    net = ManagedModule.from_module(Positions(kept))
    with pytest.raises(RuntimeError, match="that another object has as well"):
        managed.hint(net, near=D1)
    del kept
    managed.hint(net, near=D1)
    assert str(net.ids.device) == D1
    assert net.ids.tolist() == [[0, 1, 2, 3]] * 2


# ---- what is refused


def test_nonsense_is_refused():
    x = mebibyte()
    with pytest.raises(TypeError, match=r"a nest of them .*, not 'str'$"):
        managed.hint([x, "x"], reuse=True)
    with pytest.raises(ValueError, match="the tensor is not managed; use as_subclass"):
        managed.hint([x, torch.ones(3)], reuse=True)
    with pytest.raises(ValueError, match=r"Linear\.weight is not managed"):
        managed.hint(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="not 'generator'; make a list of it"):
        managed.hint(nn.Linear(2, 2).parameters(), reuse=True)
    for name in ("reuse", "read_only", "wont_need"):
        with pytest.raises(TypeError, match=f"{name} is True or False, not 'no'"):
            managed.hint(x, **{name: "no"})
    with pytest.raises(ValueError, match="names no single device"):
        managed.hint(x, near="cuda")
    with pytest.raises(ValueError, match="this module is on no device"):
        managed.hint(x, near=nn.ReLU())
    two = ManagedModule.from_module(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    two[0].to(D0)
    two[1].to(D1)
    with pytest.raises(ValueError, match=f"this module is on {D0}, {D1}"):
        managed.hint(x, near=two)
    with pytest.raises(ValueError, match="9"):
        managed.hint(x, near=device_name(9))
    assert _C.advice(x) == 0
    assert str(x.device) == D0
