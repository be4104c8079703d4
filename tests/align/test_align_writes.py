"""Operands that an operator writes: they stay where they are and hold what the CPU would hold."""

import pytest
import torch
import torch.nn.functional as F
from support.apart import at, put
from support.devices import D0, D1, D2, DEVICE_TYPE
from torch import nn

import managed
from managed import ManagedTensor

DEVICES = ("cpu", D0, D1)


def write_backs(function):
    before = managed.stats()["write_back"]
    function()
    return managed.stats()["write_back"] - before


# ---- in place


@pytest.mark.parametrize("home", DEVICES)
@pytest.mark.parametrize("away", DEVICES)
def test_the_written_operand_decides(home, away):
    x, y = at(home, 4), at(away, 4)
    expected = x.cpu().clone().mul_(y.cpu())
    address, identity = x.data_ptr(), id(x)
    x *= y
    assert (id(x), x.device, x.data_ptr()) == (identity, torch.device(home), address)
    assert torch.equal(x.cpu(), expected)


def test_a_view_writes_into_its_base():
    base = at(D0, 3, 4)
    expected = base.cpu().clone()
    row = at(D1, 4)
    base[1].add_(row)
    expected[1] += row.cpu()
    assert torch.equal(base.cpu(), expected)


def test_assignment_through_indices_on_every_device():
    x = at(D0, 4, 4)
    here = x.cpu().clone()
    where = torch.tensor([0, 2])
    rows, row = torch.randn(2, 4), torch.randn(4)
    for target, place in ((here, lambda t, d: t), (x, put)):
        target[place(where, D1)] = place(rows, "cpu")
        target[0] = place(row, D2)
        target[place(here > 0, D1)] = place(torch.tensor(1.0), "cpu")
        target.index_add_(0, place(where, "cpu"), place(rows, D2))
        target.scatter_(1, place(torch.zeros(4, 1, dtype=torch.long), "cpu"), 5.0)
    assert x.device == torch.device(D0)
    assert torch.equal(x.cpu(), here)


# ---- out=


@pytest.mark.parametrize("out", DEVICES)
def test_out_decides_and_is_resized(out):
    a, b = at(D2, 3, 4), at("cpu", 4)
    result = put(torch.empty(0), out)
    assert torch.add(a, b, out=result) is result
    assert (result.device, result.shape) == (torch.device(out), (3, 4))
    assert torch.equal(result.cpu(), a.cpu() + b)


def test_several_written_operands_each_stay_and_are_resized():
    x = at(D2, 3, 5)
    values = put(torch.empty(0), "cpu")
    indices = put(torch.empty(0, dtype=torch.long), D1)
    returned = torch.max(x, 0, out=(values, indices))
    expected = torch.max(x.cpu(), 0)
    assert (values.device, indices.device) == (torch.device("cpu"), torch.device(D1))
    assert torch.equal(values, expected.values)
    assert torch.equal(indices.cpu(), expected.indices)
    assert torch.equal(returned.values.cpu(), expected.values)


def test_what_is_returned_for_several_written_operands_is_what_was_given():
    x, values = at(D2, 3, 5), put(torch.empty(5), "cpu")
    indices = put(torch.empty(5, dtype=torch.long), D1)
    returned = torch.max(x, 0, out=(values, indices))
    assert returned.values is values
    assert returned.indices is indices


def test_a_second_written_operand_is_written_back_once():
    x = at(D0, 3, 5)
    values = put(torch.empty(5), D0)
    indices = put(torch.empty(5, dtype=torch.long), D1)
    assert write_backs(lambda: torch.sort(x[0], out=(values, indices))) == 1
    assert torch.equal(indices.cpu(), torch.sort(x[0].cpu()).indices)


def test_out_of_the_wrong_dtype_is_refused_and_unchanged():
    a, out = at(D0, 4), put(torch.zeros(4, dtype=torch.long), D1)
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.add(a, a, out=out)
    assert torch.equal(out.cpu(), torch.zeros(4, dtype=torch.long))


MATRIX = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)) + 4 * torch.eye(4)
COMPOSITES_WITH_OUT = {
    "linalg.norm": torch.linalg.norm,
    "linalg.matrix_norm": torch.linalg.matrix_norm,
    "linalg.cond": torch.linalg.cond,
    "linalg.vecdot": lambda x, out: torch.linalg.vecdot(x, x.mT, out=out),
    "linalg.matrix_power": lambda x, out: torch.linalg.matrix_power(x, 3, out=out),
    "linalg.tensorinv": lambda x, out: torch.linalg.tensorinv(x, ind=1, out=out),
    "linalg.tensorsolve": lambda x, out: torch.linalg.tensorsolve(x, x[0], out=out),
    "norm(nuc)": lambda x, out: torch.norm(x, "nuc", out=out),
    "tensordot": lambda x, out: torch.tensordot(x, x, dims=1, out=out),
    "quantile": lambda x, out: torch.quantile(x, 0.3, dim=0, out=out),
    "nanquantile": lambda x, out: torch.nanquantile(x, 0.3, dim=0, out=out),
    "special.ndtr": torch.special.ndtr,
    "diff": torch.diff,
}


@pytest.mark.parametrize("name", COMPOSITES_WITH_OUT)
@pytest.mark.parametrize(("x", "out"), [(D0, D1), (D0, "cpu"), ("cpu", D1)])
def test_out_of_composites(name, x, out):
    function, matrix = COMPOSITES_WITH_OUT[name], MATRIX.clone()
    expected = function(matrix, out=torch.empty(0))
    result = put(torch.empty(0), out)
    assert function(put(matrix, x), out=result) is result
    assert result.device == torch.device(out)
    assert torch.equal(result.cpu(), expected)
    gaps = put(torch.zeros(*expected.shape, 2), out)  # every other element is not its own
    function(put(matrix, x), out=gaps[..., 0])
    assert torch.equal(gaps.cpu(), torch.stack([expected, torch.zeros_like(expected)], -1))


def test_results_written_back_have_the_strides_that_the_kernel_gave_them():
    x, q, r = at(D1, 3, 5), put(torch.empty(0), "cpu"), put(torch.empty(0), D0)
    torch.linalg.qr(x, out=(q, r))
    expected = torch.empty(0), torch.empty(0)
    torch.linalg.qr(x.cpu(), out=expected)
    assert [t.stride() for t in (q, r)] == [t.stride() for t in expected]
    assert [t.device.type for t in (q, r)] == ["cpu", DEVICE_TYPE]
    assert torch.equal(q, expected[0])
    assert torch.equal(r.cpu(), expected[1])


# ---- writes that the schema does not tell


@pytest.mark.parametrize("statistics", DEVICES)
def test_running_statistics_are_written_back(statistics):
    x = torch.randn(6, 3, 5)
    mean, var = torch.zeros(3), torch.ones(3)
    there = put(mean.clone(), statistics), put(var.clone(), D1)
    expected = F.batch_norm(x, mean, var, training=True)
    result = F.batch_norm(put(x, D0), *there, training=True)
    assert result.device == torch.device(D0)
    assert torch.equal(result.cpu(), expected)
    assert [t.device for t in there] == [torch.device(statistics), torch.device(D1)]
    assert torch.equal(there[0].cpu(), mean)
    assert torch.equal(there[1].cpu(), var)


def test_statistics_do_not_vote():
    norm = nn.BatchNorm1d(2000).to(D2)
    for buffer in norm.buffers():
        managed._C.mark(buffer)
    x = at(D0, 4, 2000)[:, :2000]
    weight, bias = (put(p.detach(), "cpu") for p in norm.parameters())
    out = F.batch_norm(x, norm.running_mean, norm.running_var, weight, bias, training=True)
    assert out.device == torch.device(D0)


def test_instance_norm_writes_its_statistics_back():
    x = torch.randn(2, 3, 5)
    mean, var = torch.zeros(3), torch.ones(3)
    there = put(mean.clone(), D1), put(var.clone(), "cpu")
    F.instance_norm(x, mean, var)
    F.instance_norm(put(x, D0), *there)
    assert torch.equal(there[0].cpu(), mean)
    assert torch.equal(there[1], var)


def test_evaluation_reads_statistics_and_writes_nothing():
    x, mean, var = at(D0, 6, 3), at(D1, 3), put(torch.ones(3), "cpu")
    assert write_backs(lambda: F.batch_norm(x, mean, var)) == 0


def test_evaluation_on_a_second_device_leaves_the_first_graph_valid():
    mean, var = at(D0, 3), put(torch.ones(3), D0)
    first = at(D0, 6, 3).requires_grad_()
    out = F.batch_norm(first, mean, var)
    F.batch_norm(at(D1, 60, 3), mean, var)
    out.sum().backward()  # would raise if the statistics had been written, even with equal values
    assert first.grad.device == first.device


def test_noise_of_rrelu_is_written_back():
    x, noise = torch.randn(8), torch.zeros(8)
    there = put(noise.clone(), D1)
    torch.manual_seed(1)
    expected = torch.ops.aten.rrelu_with_noise(x, noise, 0.1, 0.3, True)
    torch.manual_seed(1)
    result = torch.ops.aten.rrelu_with_noise(put(x, D0), there, 0.1, 0.3, True)
    assert torch.equal(result.cpu(), expected)
    assert torch.equal(there.cpu(), noise)


# ---- list operators go device by device


def lists(devices=DEVICES, n=6):
    return [at(devices[i % len(devices)], 3) for i in range(n)]


def test_a_list_operator_keeps_every_row_where_it_is():
    a, b = lists(), lists()
    before = managed.stats()["copy"]
    result = torch._foreach_add(a, b)
    assert managed.stats()["copy"] == before
    for x, y, r in zip(a, b, result, strict=True):
        assert isinstance(r, ManagedTensor)
        assert r.device == x.device
        assert torch.equal(r.cpu(), x.cpu() + y.cpu())


def test_a_list_operator_in_place_keeps_its_tensors():
    a, b = lists(), lists((D1, "cpu"))
    expected = [x.cpu() + 2 * y.cpu() for x, y in zip(a, b, strict=True)]
    places = [(x.device, x.data_ptr()) for x in a]
    torch._foreach_add_(a, b, alpha=2)
    assert places == [(x.device, x.data_ptr()) for x in a]
    assert all(torch.equal(x.cpu(), y) for x, y in zip(a, expected, strict=True))


def test_a_list_operator_with_one_tensor_for_all_rows():
    a, factor = lists(), at(D2)
    expected = [x.cpu() * factor.cpu() for x in a]
    torch._foreach_mul_(a, factor)
    assert all(torch.equal(x.cpu(), y) for x, y in zip(a, expected, strict=True))


def test_list_operators_return_their_results_in_order():
    a = [at(d, n) for n, d in enumerate((D1, "cpu", D0, D1, "cpu"), 1)]
    for got, x in zip(torch._foreach_norm(a), a, strict=True):
        assert torch.equal(got.cpu(), torch._foreach_norm([x.cpu()])[0])
        assert got.device == x.device


def test_a_shared_flag_is_written_over_all_groups():
    gradients = [put(torch.full((4,), 8.0), d) for d in DEVICES]
    found, scale = put(torch.zeros(1), D0), put(torch.tensor(0.5), D0)
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, scale)
    assert found.item() == 0
    assert [g[0].item() for g in gradients] == [4.0] * 3
    for bad in range(3):
        found.zero_()
        gradients[bad][1] = float("inf")
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, scale)
        assert found.item() == 1, DEVICES[bad]
        gradients[bad].fill_(1.0)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_an_optimizer_over_devices(kind, fused):
    torch.manual_seed(0)
    values = [torch.randn(5) for _ in range(4)]
    here = [nn.Parameter(v.clone()) for v in values]
    there = [nn.Parameter(put(v, DEVICES[i % 3])) for i, v in enumerate(values)]
    for parameters in (here, there):
        optimizer = kind(parameters, lr=0.1, **({"fused": True} if fused else {"foreach": True}))
        for _ in range(3):
            for i, p in enumerate(parameters):
                p.grad = torch.full_like(p, 0.1 * (i + 1))
            optimizer.step()
    for i, (p, q) in enumerate(zip(here, there, strict=True)):
        assert q.device == torch.device(DEVICES[i % 3])
        assert torch.equal(p, q.cpu())
