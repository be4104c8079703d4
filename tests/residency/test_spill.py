"""The life of one storage: its bytes leave and come back, and nobody can tell."""

import copy
import ctypes
import weakref
from contextlib import ExitStack

import pytest
import torch
from support.devices import D0, D3, device_module, device_name
from support.pressure import (  # noqa: F401
    BYTES,
    KiB,
    N,
    make,
    module_on,
    moved,
    nothing_left,
    on,
    snapshot,
    spill,
)
from torch import nn

import managed
import managed.debug
from managed import _C, ManagedTensor

# ---- the bytes


@pytest.mark.not_under_torture("it counts what leaves and comes back")
@pytest.mark.parametrize("device", [D0, D3])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8, torch.bool, torch.cfloat]
)
def test_bytes_come_back_bit_by_bit(dtype, device):
    here, x = make(device, dtype)
    allocated = device_module.memory_allocated(device)
    spill(x)
    assert device_module.memory_allocated(device) == allocated - BYTES
    assert torch.equal(x.clone().cpu(), here)
    assert not _C.is_spilled(x)


def test_nan_payloads_and_signs_of_zero_come_back():
    bits = torch.randint(-(2**31), 2**31, (N,), dtype=torch.int32)
    x = on(bits).view(torch.float32)
    spill(x)
    assert torch.equal(x.view(torch.int32).cpu(), bits)


def test_strides_come_back():
    here = torch.randn(64, 2, 64).permute(2, 0, 1)
    x = on(here)
    assert x.stride() == here.stride()
    spill(x)
    assert torch.equal(x + 0, on(here) + 0)
    assert x.stride() == here.stride()
    assert torch.equal(x[:, 3].cpu(), here[:, 3])


@pytest.mark.not_under_torture("what is small leaves, too")
def test_what_is_small_stays():
    x = on(torch.randn(16 * KiB // 4 - 1))
    _C.spill_all()
    assert not _C.is_spilled(x)


def test_storages_without_bytes():
    x = on(torch.empty(0, 5))
    with managed.debug.torture():
        y = x * 2
        _C.spill_all()
        assert y.sum().item() == 0
        assert (y + 1).shape == (0, 5)
    assert not _C.is_spilled(y)


# ---- who is still who


def test_objects_stay_what_they_are():
    _, x = make(requires_grad=True)
    tensor, address = id(x), x._cdata
    storage = x.untyped_storage()._cdata
    called = []
    x.register_hook(lambda g: called.append(g.device))
    x.register_post_accumulate_grad_hook(lambda p: called.append(id(p)))
    x.label = "mine"
    for _ in range(3):
        spill(x)
        assert x.device == torch.device(D0)
        x.sum().backward()
    assert (id(x), x._cdata, x.untyped_storage()._cdata) == (tensor, address, storage)
    assert x.label == "mine"
    assert called == [torch.device(D0), tensor] * 3
    assert x.grad.tolist() == [3.0] * N
    spill(x, x.grad)


def test_a_look_at_what_it_is_brings_nothing_home():
    _, x = make(requires_grad=True)
    spill(x)
    assert (x.shape, x.dtype, x.stride()) == ((N,), torch.float32, (1,))
    assert x.device == torch.device(D0)
    assert x.__class__ is ManagedTensor
    assert (x._version, x.is_leaf, x.grad, x.requires_grad) == (0, True, None, True)
    assert (x.nbytes, x.is_contiguous(), x.storage_offset()) == (BYTES, True, 0)
    assert hash(x) == id(x)
    assert _C.is_spilled(x)


VIEWS = {
    "view": lambda x: x.view(2, -1),
    "detach": lambda x: x.detach(),
    "slice": lambda x: x[3:9],
    "select": lambda x: x.view(2, -1)[1],
    "transpose": lambda x: x.view(2, -1).t(),
    "split": lambda x: x.split(N // 2)[1],
    "expand": lambda x: x.expand(2, -1),
    "strided": lambda x: x.as_strided((5,), (7,), 3),
    "bytes": lambda x: x.view(torch.int32),
    "shape": lambda x: torch.zeros_like(x),
}


@pytest.mark.not_under_torture("it counts what leaves and comes back")
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_brings_nothing_home(view):
    here, x = make()
    spill(x)
    with moved() as figures:
        y = VIEWS[view](x)
    assert figures["restore"] == 0
    assert _C.is_spilled(x)
    assert torch.equal(y.cpu(), VIEWS[view](here))
    assert _C.is_spilled(x) == (view == "shape")


@pytest.mark.not_under_torture("it counts what leaves and comes back")
def test_the_state_of_a_module_is_listed_where_it_is():
    there = module_on(nn.Sequential(nn.Linear(128, 128), nn.BatchNorm1d(128)))
    with moved() as figures:
        spill(there[0].weight)
        state = there.state_dict()
        assert [p.shape for p in there.parameters()] == [p.shape for p in list(state.values())[:4]]
    assert figures["restore"] == 0


@pytest.mark.not_under_torture("it counts what leaves and comes back")
def test_views_and_bases_share_what_leaves():
    here, x = make()
    row, grid = x[100:200], x.view(-1, 64)
    with moved() as m:
        spill(x, row, grid)
        row.mul_(2)  # one storage comes home, for all
        assert not _C.is_spilled(x)
        assert not _C.is_spilled(grid)
    assert (m["spill"], m["restore"]) == (1, 1)
    here[100:200].mul_(2)
    spill(x)
    assert torch.equal(grid.t().cpu(), here.view(-1, 64).t())
    del x, row
    spill(grid)
    assert torch.equal(grid.cpu().flatten(), here)


def test_versions_do_not_change():
    _, x = make()
    for k in range(3):
        spill(x)
        assert x._version == k
        x.add_(1)
        assert x._version == k + 1


def test_the_engine_still_finds_a_saved_tensor_that_was_changed():
    _, x = make(requires_grad=True)
    y = x.exp()
    spill(x, y)
    y.mul_(2)
    spill(x, y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("form", [{"foreach": True}, {"fused": True}, {"foreach": False}])
def test_optimizer_state_leaves_and_stays_the_same(form):
    here, x = make(requires_grad=True)
    for t, leave in ((here, lambda: None), (x, lambda: _C.spill_all())):
        optimizer = torch.optim.Adam([t], 0.1, **form)
        for _ in range(3):
            optimizer.zero_grad()
            leave()
            (t * t).sum().backward()
            leave()
            optimizer.step()
    state = optimizer.state[x]
    first = state["exp_avg"]
    spill(x, x.grad, first, state["exp_avg_sq"])
    assert state["exp_avg"] is first
    assert torch.equal(x.detach().cpu(), here.detach())


def test_gradients_of_what_left_between_forward_and_backward():
    here, x = make(requires_grad=True)
    w = torch.randn(64, 64, requires_grad=True)
    v = on(w)
    results = []
    for a, b, leave in ((here, w, lambda: None), (x, v, _C.spill_all)):
        out = torch.tanh(a.view(-1, 64) @ b).softmax(-1)
        leave()
        (out * out).sum().backward()
        results.append((snapshot(a.grad), snapshot(b.grad)))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert (x.grad.device, v.grad.device) == (x.device, v.device)


def attention(x):
    q = x.view(4, 4, 64, 64)
    return nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)


@pytest.mark.not_under_torture("all has left before")
@pytest.mark.parametrize("composite", [nn.functional.dropout, attention])
def test_what_a_composite_saves_for_the_backward_pass_leaves(composite):
    x = on(torch.randn(2**16, requires_grad=True))
    _C.spill_all()
    before = device_module.memory_allocated(D0)
    gradients = []
    for leave in (lambda: None, _C.spill_all):
        torch.manual_seed(0)
        out = composite(x)
        leave()
        left = device_module.memory_allocated(D0) - before
        out.sum().backward()
        gradients.append(snapshot(x.grad))
        x.grad = out = None
    assert left < 16 * KiB
    assert torch.equal(*gradients)


# ---- pin and unpin


def test_pin_keeps_and_unpin_lets_go():
    here, x = make()
    spill(x)
    x.pin()
    assert not _C.is_spilled(x)
    pinned = _C.residency(D0)["pinned"]
    assert pinned >= BYTES
    _C.spill_all()
    assert not _C.is_spilled(x)
    x.pin()  # once is enough, and so is one unpin
    x.unpin()
    assert _C.residency(D0)["pinned"] == pinned - BYTES
    spill(x)
    assert torch.equal(x.cpu(), here)


def test_a_pinned_tensor_that_dies_frees_its_bytes():
    for _ in range(3):
        _, x = make()
        x.pin()
    before = device_module.memory_allocated(0)
    del x
    assert device_module.memory_allocated(0) == before - BYTES


def test_pinned_modules_stay():
    net = module_on(nn.Linear(128, 128))
    net.pin()
    _C.spill_all()
    assert not _C.is_spilled(net.weight)
    net.unpin()
    spill(net.weight)


# ---- exact figures


def test_figures_of_one_storage():
    _, x = make()
    idle = _C.residency(D0)
    host = _C.host_memory()["used"]
    with moved() as m:
        spill(x)
    assert (m["spill"], m.bytes("spill")) == (1, BYTES)
    assert m["links"][f"{D0}->cpu"] == BYTES
    away = _C.residency(D0)
    assert idle["idle"] - away["idle"] == BYTES
    assert away["spilled"] - idle["spilled"] == BYTES
    assert away["storages"] == idle["storages"]
    assert _C.host_memory()["used"] - host == BYTES
    with moved() as m:
        x.sum()
    assert (m["restore"], m.bytes("restore"), m["spill"]) == (1, BYTES, 0)
    assert m["links"][f"cpu->{D0}"] == BYTES
    assert _C.residency(D0) == idle


@pytest.mark.not_under_torture("it counts what leaves and comes back")
def test_the_history_of_a_tensor_tells_of_its_bytes():
    x = torch.randn(N).as_subclass(ManagedTensor)
    there = x.to(D0)  # its history goes on under the same name
    spill(there)
    there.sum()
    assert [e.kind for e in managed.explain(there)] == ["move", "spill", "restore"]


def test_unchanged_bytes_leave_at_no_cost():
    _, x = make()
    spill(x)
    x.sum()
    with moved() as m:
        spill(x)
    assert (m["spill"], m["drop"], m.bytes("drop")) == (0, 1, BYTES)
    assert not any(m["links"].values())
    x.add_(1)
    with moved() as m:
        spill(x)
    assert (m["spill"], m["drop"]) == (1, 0)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.add_(1),
        lambda x: x[5:6].fill_(2),
        lambda x: x.view(2, -1)[1].zero_(),
        lambda x: torch.add(x, 1, out=x),
        lambda x: x.copy_(torch.ones(N)),
        lambda x: x.data.mul_(3),
        lambda x: torch._foreach_add_([x], 1),
        lambda x: x.detach().index_fill_(0, torch.tensor([3], device=x.device), 7),
        lambda x: x.__setitem__(slice(3, 9), 4.0),
        lambda x: x.untyped_storage().fill_(1),
        lambda x: nn.functional.relu_(x),
        lambda x: ctypes.memset(x.data_ptr(), 1, BYTES),
    ],
    ids=[
        *("add_", "slice", "view", "out", "copy_", "data"),
        *("foreach", "index", "setitem", "storage", "functional", "pointer"),
    ],
)
def test_what_was_written_is_not_dropped(write):
    here, x = make()
    spill(x)
    x.sum()  # home again, with a copy on the host
    write(here)
    write(x)
    _C.spill_all()
    assert torch.equal(x.cpu(), here)


@pytest.mark.not_under_torture("it counts what leaves and comes back")
@pytest.mark.only_simulated("a budget of 1 MiB is half a segment of CUDA's allocator")
@pytest.mark.parametrize(("settled", "peers"), [(1, False), (2, True)])
@pytest.mark.usefixtures("not_learning")
def test_inference_of_a_model_four_times_the_device(settled, peers):
    """Each weight comes in once a pass, and from the second pass on none goes out.

    What idle peers took at first goes to the host once, which keeps a copy.
    """
    width, depth = 256, 16
    here = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(depth)))
    weights = depth * width * width * 4
    batch = torch.randn(8, width)  # small enough to stay
    with torch.no_grad(), ExitStack() as budgets:
        for i in range(1, 1 if peers else device_module.device_count()):
            budgets.enter_context(managed.budget(device_name(i), device_module.memory_allocated(i)))
        budgets.enter_context(managed.budget(D0, weights // 4))
        device_module.reset_peak_memory_stats(0)
        expected = here(batch)
        net = module_on(copy.deepcopy(here))
        x = on(batch)
        for k in range(4):
            with moved() as m:
                result = net(x)
            assert torch.equal(result.cpu(), expected)
            if k >= settled:
                assert m.bytes("restore") == weights
                assert (m["spill"], m["drop"]) == (0, depth)
        assert device_module.max_memory_allocated(0) <= weights // 4


@pytest.mark.not_under_torture("it counts what leaves and comes back")
def test_what_dies_while_it_is_away_gives_everything_back():
    before = _C.host_memory()["used"], device_module.memory_allocated(0)
    kept = [on(torch.randn(N)) for _ in range(8)]
    spill(*kept)
    assert _C.host_memory()["used"] == before[0] + 8 * BYTES
    kept.clear()
    assert (_C.host_memory()["used"], device_module.memory_allocated(0)) == before


def test_the_hosts_memory_is_given_back_when_nothing_is_away():
    kept = [on(torch.randn(N)) for _ in range(8)]
    spill(*kept)
    del kept
    if _C.host_memory()["used"] == 0:
        assert _C.host_memory()["kept"] == 0


def test_a_graph_that_dies_while_it_is_away():
    _, x = make(requires_grad=True)
    y = x.exp().tanh().softmax(0)
    gone = weakref.ref(y)
    spill(x, y)
    del x, y
    assert gone() is None


@pytest.mark.not_under_torture("what is on the host stays there, and nothing else comes")
@pytest.mark.only_simulated("a budget that ends within a segment of CUDA's")
def test_many_copies_on_the_host_make_way_for_one_that_is_large():
    """More than two plans hold: each gives some up, which is progress, and nobody leaves yet."""
    many = [on(torch.randn(N), D3) for _ in range(100)]
    spill(*many)
    sums = [float(x.sum()) for x in many]  # home again, with a copy on the host
    host = _C.host_memory()["used"]
    large = on(torch.randn(100 * N))
    expected = large.cpu()
    with ExitStack() as budgets:
        for i in range(1, device_module.device_count()):
            there = device_module.memory_allocated(i)
            budgets.enter_context(managed.budget(device_name(i), there + N))
        budgets.enter_context(managed.budget("cpu", host))
        there = device_module.memory_allocated(0)
        budgets.enter_context(managed.budget(D0, there + N))
        fresh = on(torch.zeros(100 * N))
        assert _C.is_spilled(large)
        assert _C.host_memory()["used"] == host
        assert not any(_C.is_spilled(x) for x in many)
        del fresh
        assert torch.equal(large.cpu(), expected)
    assert [float(x.sum()) for x in many] == sums


def test_a_budget_of_nothing_for_the_host_keeps_everything_on_devices():
    _, x = make()
    with managed.budget("cpu", 0):
        with moved() as m:
            _C.spill_all()
        assert not _C.is_spilled(x)
        assert m["spill"] == 0
    spill(x)
