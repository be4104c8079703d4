"""hint(on_host=True), budget(fallback="host"): an operator that does not fit runs on the host."""

import pytest
import torch
from support.devices import D0, D1
from support.pressure import MiB, moved, nothing_left, on, spill  # noqa: F401
from torch import nn

import managed
from managed import ManagedTensor

N = 3 * MiB  # elements: 12 MiB, of which two and their sum do not fit into ROOM
ROOM = "30MiB"
CASES = {
    "cat": lambda a, b: torch.cat((a, b)),
    "stack": lambda a, b: torch.stack((b, a)),
    "add": lambda a, b: a + b,
    "where": lambda a, b: torch.where(a > 0, a, b),
    "index_select": lambda a, b: torch.cat((a, b)).index_select(0, torch.arange(0, N, 3)),
    "addcmul": lambda a, b: torch.addcmul(a, a, b),
    "a view": lambda a, b: a.view(2, -1) * b.view(2, -1),
    "a cast": lambda a, b: (a + b).double(),
}
# By what autocast does: casts to half precision, to float, to the widest operand, nothing; and
# how much room is too little for a cast, or for the operator. Operands have 24 MiB, or 12 in half
# precision, which CUDA's allocator rounds by little.
CAST = {
    "mm": ("33MiB", lambda a, b: a.view(-1, 2048) @ b.view(2048, -1)),
    "exp": ("42MiB", lambda a, b: a.bfloat16().exp()),
    "cat": ("42MiB", lambda a, b: torch.cat((a.bfloat16(), b))),
    "relu": ("42MiB", lambda a, b: torch.relu(a + b)),
}


@pytest.fixture(autouse=True)
def room():
    with managed.budget(D0, ROOM):
        managed.stats(reset=True)
        yield


def values():
    return torch.linspace(-1, 1, N), torch.linspace(3, -2, N)


def on_host():
    return managed.stats()["calls_on_host"]


@pytest.mark.parametrize("name", CASES)
def test_it_runs_on_the_host(name):
    a, b = values()
    x, y = managed.hint(on(a), on_host=True), on(b)
    made = CASES[name](x, y)
    assert made.device.type == "cpu"
    assert isinstance(made, ManagedTensor)
    assert torch.equal(made, CASES[name](a, b))
    assert on_host() >= 1
    assert x.device == y.device == torch.device(D0)


@pytest.mark.parametrize("name", CASES)
def test_it_needs_permission(name):
    x, y = (on(t) for t in values())
    with pytest.raises(managed.OutOfMemoryError, match=r"x\.cpu\(\).*hint\(x, on_host=True\)"):
        CASES[name](x, y)
    assert on_host() == 0


@pytest.mark.parametrize("name", CASES)
def test_a_budget_allows_it_for_all_tensors_of_its_device(name):
    a, b = values()
    x, y = on(a), on(b)
    with managed.budget(D0, ROOM, fallback="host") as budget:
        assert "falls back to the host" in repr(budget)
        made = CASES[name](x, y)
        assert made.device.type == "cpu"
        assert isinstance(made, ManagedTensor)
        assert torch.equal(made, CASES[name](a, b))
        assert torch.equal(made * 2, CASES[name](a, b) * 2)
    with pytest.raises(managed.OutOfMemoryError):
        CASES[name](x, y)


@pytest.mark.parametrize("name", CAST)
def test_autocast_casts_as_on_the_device(name):
    a, b = (torch.cat((t, t)) for t in values())
    too_little, run = CAST[name]
    found = []
    for room in ("100%", too_little):
        with (
            managed.budget(D0, room, fallback="host"),
            torch.autocast(torch.device(D0).type, torch.bfloat16),
        ):
            made = run(on(a), on(b))
            found.append((made.dtype, made.float().cpu(), on_host() > 0))
    assert [used for _, _, used in found] == [False, True]
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


def test_a_budget_of_another_device_allows_nothing():
    x, y = (on(t) for t in values())
    with managed.budget(D1, "100%", fallback="host"), pytest.raises(managed.OutOfMemoryError):
        x + y


def test_a_training_under_such_a_budget_has_its_bits():
    """As long as all fits, nothing runs on the host."""

    def weights(**options):
        generator = torch.Generator().manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        for p in net.parameters():
            nn.init.normal_(p, generator=generator)
        with managed.budget(D0, ROOM, **options):
            net = managed.ManagedModule.from_module(net).to(D0)
            optimizer = torch.optim.SGD(net.parameters(), 0.01)
            for _ in range(3):
                x = on(torch.randn(16, 64, generator=generator))
                optimizer.zero_grad()
                net(x).square().mean().backward()
                optimizer.step()
        return [p.detach().cpu() for p in net.parameters()]

    assert all(map(torch.equal, weights(), weights(fallback="host")))
    assert on_host() == 0


def test_what_grows():
    """A loop gathers results until they are larger than the device: they stay, new ones come."""
    managed.budget(D0, "64MiB")
    parts = [torch.full((N,), float(i)) for i in range(6)]
    logits = managed.hint(on(parts[0]), on_host=True)
    devices = [logits.device.type]
    for part in parts[1:]:
        with moved() as found:
            logits = torch.cat((logits, on(part)))
        devices.append(logits.device.type)
        assert found["restore"] == 0  # what stays on the host does not come back
    assert devices == [torch.device(D0).type] * 2 + ["cpu"] * 4  # as long as there is room
    assert on_host() == 4
    assert torch.equal(logits, torch.cat(parts))


def test_each_copy_has_a_reason():
    x, y = (on(t) for t in values())
    managed.hint(x, on_host=True)
    assert (x + y).device.type == "cpu"
    copies = [e for e in managed.explain(x) if e.kind == "copy"]
    assert [(e.operator, e.target, e.bytes) for e in copies] == [("aten::add.Tensor", "cpu", 4 * N)]
    assert copies[0].reason == "its device has no room, and the program allows the host"


def test_bytes_that_are_away_are_read_where_they_are():
    a, b = values()
    x, y = managed.hint(on(a), on_host=True), on(b)
    spill(x, y)
    made = torch.cat((x, y))
    assert torch.equal(made, torch.cat((a, b)))


def test_what_fits_stays_on_the_device():
    a, _ = values()
    x = managed.hint(on(a), on_host=True)
    made = x * 2
    assert made.device == torch.device(D0)
    assert on_host() == 0
    assert torch.cat((made, x)).device.type == "cpu"


def test_a_result_has_the_hint_until_another_one_is_given():
    x, y = (on(t) for t in values())
    made = managed.hint(x, on_host=True) * 1
    managed.hint(x)
    with pytest.raises(managed.OutOfMemoryError):
        x + y
    del y
    assert torch.cat((made, x)).device.type == "cpu"


def test_operators_run_beside_what_stays():
    a, b = values()
    made = managed.hint(on(a), on_host=True) + on(b)
    small = on(torch.ones(1))
    assert (made * small).device.type == "cpu"
    mean = made.mean()
    assert (mean * on(torch.ones(8))).device == torch.device(D0)  # a number goes where it is needed


def test_gradients_go_home():
    a, b = values()
    found = []
    for move in (lambda t: t, lambda t: on(t).requires_grad_()):
        x, y = move(a.clone().requires_grad_()), move(b.clone().requires_grad_())
        if x.device.type != "cpu":
            managed.hint(x, on_host=True)
        torch.cat((x, y)).sum().backward()
        found += [x.grad.cpu(), y.grad.cpu()]
        assert x.grad.device == x.device
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


def test_what_writes_or_draws_does_not_run_twice():
    x, y = (on(t) for t in values())
    out = torch.empty_like(x)
    half = on(torch.full((N,), 0.5))
    managed.hint([x, y, out, half], on_host=True)
    with pytest.raises(managed.OutOfMemoryError):
        torch.add(x, y, out=out)
    with managed.budget(D0, "20MiB"), pytest.raises(managed.OutOfMemoryError):
        torch.bernoulli(half)
    assert on_host() == 0


def test_not_where_nothing_moves():
    x, y = (on(t) for t in values())
    managed.hint(x, on_host=True)
    with managed.frozen(), pytest.raises(managed.OutOfMemoryError):
        x + y
    assert on_host() == 0


def test_wrong_values():
    with pytest.raises(TypeError, match="on_host is True or False, not 1"):
        managed.hint(on(torch.ones(1)), on_host=1)


def test_an_operator_that_the_host_has_not_fails_for_want_of_room():
    x = on(torch.ones(1, 1, 1, 1, 6 * MiB, dtype=torch.float16))
    with (
        managed.budget(D0, "20MiB", fallback="host"),
        pytest.raises(managed.OutOfMemoryError, match="in aten::avg_pool3d"),
    ):
        nn.functional.avg_pool3d(x, 1)
    assert on_host() == 0
    assert nn.functional.avg_pool3d(x, 1).numel() == x.numel()


def test_wrong_fallbacks():
    with pytest.raises(ValueError, match="fallback is \"host\" or None, not 'peer'"):
        managed.budget(D0, ROOM, fallback="peer")
    with pytest.raises(ValueError, match="fallback takes a device"):
        managed.budget("cpu", "1GiB", fallback="host")
