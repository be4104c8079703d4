"""A copy of a plain operand serves one operator call: some writes to plain tensors leave no trace.

Such a write passes no operator of managed and bumps no version counter, so nothing could tell that
a copy which was kept is old. Each test uses the tensor, writes it so, and uses it again.
"""

import warnings

import pytest
import torch
from support.devices import D0, D1
from torch import nn
from torch.nn import functional as F

import managed
from managed import ManagedModule, ManagedTensor
from managed.errors import CopyWarning


@pytest.fixture
def there():
    """Zeros on a device, to which sums with operands of the host go."""
    return torch.zeros(4, device=D0).as_subclass(ManagedTensor)


def fused_adamw(x):
    states = [[torch.ones(4)], [torch.zeros(4)], [torch.zeros(4)], [], [torch.tensor(1.0)]]
    told = {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1e-8}
    torch._fused_adamw_([x], *states, lr=0.1, amsgrad=False, maximize=False, **told)


def fused_sgd(x, *more):
    told = {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "maximize": False}
    gradients = [torch.ones_like(y) if y.grad is None else y.grad for y in (x, *more)]
    torch._fused_sgd_(
        [x, *more], gradients, [], weight_decay=0.0, lr=0.1, is_first_step=True, **told
    )


def batch_norm(x):
    F.batch_norm(torch.arange(8.0).view(2, 4), x, torch.ones(4), training=True)


def unscale(x):
    torch._amp_foreach_non_finite_check_and_unscale_([x], torch.zeros(1), torch.tensor(0.5))


def exchange_storage(x):
    x.set_(torch.full((4,), 9.0))


def inference(write):
    def written(x):
        with torch.inference_mode():
            write(x)

    return written


WRITES = {
    "fused AdamW": fused_adamw,
    "fused SGD": fused_sgd,
    "running statistics": batch_norm,
    "unscale_": unscale,
    "data": lambda x: x.data.mul_(3),
    "a view of data": lambda x: x.data[1:].mul_(3),
    "detach in inference mode": inference(lambda x: x.detach().mul_(3)),
    "set_": exchange_storage,
    "apply_": lambda x: x.apply_(lambda value: value + 1),
    "map_": lambda x: x.map_(torch.ones(4), lambda value, other: value + other),
    "numpy": lambda x: x.numpy().fill(7),
    "an operator that tells": lambda x: x.mul_(3),
}


def plain(x):
    return x


def view(x):
    return x[:]


def part(x):
    return x[1:]


def turned(x):
    return x.view(2, 2).t()


def wrapped(x):
    return x.as_subclass(ManagedTensor)


def wrapped_part(x):
    return x.as_subclass(ManagedTensor)[1:]


@pytest.mark.parametrize("use", [plain, view, part, turned, wrapped, wrapped_part])
@pytest.mark.parametrize("way", WRITES)
def test_no_write_goes_unseen(way, use, there):
    x = torch.arange(1.0, 5.0)
    operand = use(x)
    for _ in range(3):
        zeros = there.narrow(0, 0, operand.numel()).view(operand.shape)
        assert torch.equal((operand + zeros).cpu(), operand)
        WRITES[way](x)
        if way == "set_":
            operand = use(x)  # views keep the bytes of before


@pytest.mark.parametrize("way", ["copy_", "index", "fill_"])
def test_inference_tensors_have_no_version_counter(way, there):
    with torch.inference_mode():
        x = torch.zeros(4)
        for step in range(1, 4):
            assert torch.equal((x + there).cpu(), x)
            if way == "copy_":
                x.copy_(torch.full((4,), float(step)))
            elif way == "index":
                x[step] = step
            else:
                x.fill_(step)


def test_a_plain_model_is_validated_with_managed_data():
    def losses(put):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        x, held_out, out = torch.randn(16, 8), put(torch.randn(4, 8)), []
        for _ in range(3):
            model.zero_grad()
            model.train()(x).square().mean().backward()
            with torch.no_grad():
                fused_sgd(*model.parameters())
                out.append(model.eval()(held_out).square().mean().item())
        return out

    assert losses(lambda t: t.as_subclass(ManagedTensor).to(D0)) == losses(lambda t: t)


def test_collectives_write_plain_tensors(tmp_path, there):
    dist = torch.distributed
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for number, write in enumerate(
            (
                lambda x, new: dist.scatter(x, [new]),
                lambda x, new: dist.all_to_all_single(x, new),
                lambda x, new: dist.all_gather([x], new),
            )
        ):
            x = torch.zeros(4)
            assert (x + there).tolist() == [0.0] * 4
            write(x, torch.full((4,), number + 1.0))
            assert (x + there).tolist() == [number + 1.0] * 4
    finally:
        dist.destroy_process_group()


def copies(function):
    managed.stats(reset=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CopyWarning)
        function()
    return managed.stats()["copy"]


def test_one_call_has_one_copy(there):
    x = torch.rand(4)
    assert copies(lambda: torch.addcmul(there, x, x)) == 1
    assert copies(lambda: torch.stack([x, x, there])) == 1
    assert copies(lambda: [x + there for _ in range(5)]) == 5


def test_uses_in_one_forward_pass_have_the_gradients_of_the_host():
    def gradients(put, k):
        torch.manual_seed(0)
        w, b = torch.rand(8, 8).requires_grad_(), torch.rand(8).requires_grad_()
        x = put(torch.rand(4, 8))
        for _ in range(k):
            x = torch.addmm(b, x, w.t() * 1).tanh() + x @ w
        (x.sum() + (w[2:] * put(torch.rand(6, 8))).sum()).backward()
        return w.grad, b.grad

    for k in (1, 2, 5):
        want = gradients(lambda t: t, k)
        got = gradients(lambda t: t.as_subclass(ManagedTensor).to(D0), k)
        for one, other in zip(got, want, strict=True):
            assert one.device.type == "cpu"
            assert (one - other).abs().max() <= 1e-5 * other.abs().max()


def test_a_step_of_a_plain_model_on_managed_data_has_the_bits_of_the_host():
    def step(put):
        torch.manual_seed(0)
        w, x = torch.rand(8, 8, requires_grad=True), put(torch.rand(4, 8))
        for _ in range(3):
            (x @ w).tanh().sum().backward()
            fused_sgd(w)
        return w.detach().cpu()

    assert torch.equal(step(lambda t: t.as_subclass(ManagedTensor).to(D0)), step(lambda t: t))


def test_what_is_wrapped_is_copied_once_when_nothing_holds_the_plain_tensor(there):
    x = torch.rand(4)
    y = x.as_subclass(ManagedTensor)
    assert copies(lambda: [y + there for _ in range(5)]) == 5
    del x
    assert copies(lambda: [y + there for _ in range(5)]) == 1
    layer = ManagedModule.from_module(nn.Linear(4, 4))
    with torch.no_grad():
        assert copies(lambda: [layer(there) for _ in range(5)]) == 2


def test_the_warning_says_how_to_wrap(there):
    x = torch.rand(4)
    managed._C.begin_step()
    old, managed.COPY_WARNING = managed.COPY_WARNING, 3
    try:
        with pytest.warns(CopyWarning, match="plain tensor.*as_subclass.*from_module"):
            torch.stack([x + there for _ in range(5)])
    finally:
        managed.COPY_WARNING = old
        managed._C.begin_step()


def test_inside_of_on_one_copy_serves_until_the_block_ends(there):
    x = torch.zeros(4)

    def block():
        with managed.on():
            for _ in range(3):
                x + there

    assert copies(block) == 1
    assert copies(block) == 1  # of the block before nothing serves
    with managed.on():
        x.data.mul_(2)
        assert torch.equal((x + there).cpu(), x)
    fused_sgd(x)
    assert torch.equal((x + there).cpu(), x)
    fused_sgd(x)
    with managed.on():
        assert torch.equal((x + there).cpu(), x)
        fused_sgd(x)
        assert torch.equal((x + there).cpu(), x)


def test_plain_tensors_on_another_device(there):
    x = torch.zeros(4, device=D1)
    for step in range(1, 4):
        assert torch.equal((x + there).cpu(), x.cpu())
        x.data.fill_(step)


@pytest.mark.parametrize("managed_input", [True, False], ids=["managed", "plain"])
def test_running_statistics_without_a_version_counter(managed_input):
    """Plain torch writes them unseen; so does managed, whose copy goes home after the operator."""
    with torch.inference_mode():
        mean, variance = torch.zeros(4), torch.ones(4)
    x = torch.arange(8.0).view(2, 4)
    if managed_input:
        x = x.as_subclass(ManagedTensor).to(D0)
    F.batch_norm(x, mean, variance, training=True)
    assert torch.equal(mean, torch.arange(4.0) * 0.1 + 0.2)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        mean.add_(x[0])
