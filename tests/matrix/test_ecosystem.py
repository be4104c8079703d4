"""Libraries of an environment of their own

neuraloperator, Lightning, GPyTorch, botorch and torchdiffeq: `make ecosystem` installs them and
runs this.
"""

import contextlib
import copy
import warnings

import pytest
import torch
from support.devices import D1, D2, device_module, device_name
from support.pressure import KiB, counted, half_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import managed
from managed import ManagedModule, ManagedTensor, integrations

from .common import difference, managed_on

# Warnings of these libraries about themselves, and about what they find missing.
pytestmark = pytest.mark.filterwarnings("ignore")


def library(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=f"{name} is not installed: make ecosystem")


def values(module):
    return [p.detach().cpu() for p in module.parameters()]


# ---- neuraloperator


def fno():
    neuralop = library("neuralop")
    torch.manual_seed(0)
    return neuralop.models.FNO((8, 8), 1, 1, hidden_channels=16, n_layers=3)


def operate(net, device="cpu"):
    """Three steps of training; losses and weights."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    x = torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(1)).to(device)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = (net(x) - x.flip(-1)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, values(net)


@pytest.mark.row("neuraloperator, FNO", note="On one device; dispersed to the order of sums")
@pytest.mark.parametrize("place", ["one", "disperse"])
def test_fno(place):
    known = dict(vars(library("neuralop.models.base_model").BaseModel)["_models"])
    net = ManagedModule.from_module(fno())
    net = net.cuda(1) if place == "one" else net.cuda(disperse=True)
    assert known == library("neuralop.models.base_model").BaseModel._models
    assert len({p.device for p in net.parameters()}) == (1 if place == "one" else 4)
    expected, actual = operate(fno()), operate(net)
    if place == "one":
        assert difference(expected, actual) is None
    else:  # gradients of an input's two uses are summed where they arise
        assert actual[0][0] == expected[0][0]
        assert actual[0] == pytest.approx(expected[0], rel=1e-6)
    assert all(isinstance(p, ManagedTensor) for p in net.parameters())


@pytest.mark.row("neuraloperator, FNO on half of the memory")
@pytest.mark.not_under_torture("all spills, whatever the budget")
def test_fno_on_half_of_the_memory():
    expected = operate(fno())
    with half_of(lambda: operate(ManagedModule.from_module(fno()).cuda(1), D1)):
        assert difference(expected, operate(ManagedModule.from_module(fno()).cuda(1))) is None


# ---- Lightning

X = torch.randn(24, 64, generator=torch.Generator().manual_seed(2))


def lightning():
    return library("pytorch_lightning")


def network(dropout=0.0):
    class Net(lightning().LightningModule):
        def __init__(self):
            super().__init__()
            layers = [(nn.Linear(64, 64), nn.Dropout(dropout), nn.ReLU()) for _ in range(4)]
            self.layers = nn.Sequential(*(layer for group in layers for layer in group))
            self.seen = []

        def training_step(self, batch, index):
            self.seen.append(self.device)
            (x,) = batch
            return (self.layers(x) - x).square().mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    torch.manual_seed(0)
    return Net()


def fit(net, folder, steps=3, resume=None, **options):
    trainer = lightning().Trainer(
        default_root_dir=folder,
        max_steps=steps,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **({"enable_checkpointing": False} | options),
    )
    trainer.fit(net, DataLoader(TensorDataset(X), 8), ckpt_path=resume)
    return values(net)


@pytest.mark.row(
    "Lightning, `from_module(model).cuda(disperse=True)`",
    note="`self.device` is the first parameter's",
)
def test_a_lightning_module_is_dispersed():
    net = ManagedModule.from_module(network()).cuda(disperse=True)
    assert len({p.device for p in net.parameters()}) == 4
    assert net.device == next(net.parameters()).device
    expected = network()
    x = X.clone()  # a copy of it on a device is kept as long as it lives
    assert torch.equal(net.layers(x).cpu(), expected.layers(x))
    assert net.cpu().device == torch.device("cpu")
    assert net.to(D2).device == torch.device(D2)


PLACES = {"one": lambda net: net.cuda(1), "disperse": lambda net: net.cuda(disperse=True)}


@pytest.mark.row(
    "Lightning's Trainer, `integrations.lightning_strategy()`", note="On one device or dispersed"
)
@pytest.mark.parametrize("place", PLACES)
def test_lightning_trains_where_the_model_is(place, tmp_path):
    expected = fit(network(), tmp_path)
    net = PLACES[place](ManagedModule.from_module(network()))
    homes = [p.device for p in net.parameters()]
    actual = fit(net, tmp_path, strategy=integrations.lightning_strategy())
    assert difference(expected, actual) is None
    assert [p.device for p in net.parameters()] == homes
    assert set(net.seen) == {homes[0]}
    assert all(isinstance(p, ManagedTensor) for p in net.parameters())


@pytest.mark.row("Lightning's Trainer on half of the memory")
@pytest.mark.not_under_torture("all spills, whatever the budget")
def test_lightning_on_half_of_the_memory(tmp_path):
    def program():
        net = ManagedModule.from_module(network()).cuda(1)
        return fit(net, tmp_path, strategy=integrations.lightning_strategy())

    expected = fit(network(), tmp_path)
    with half_of(program):
        assert difference(expected, program()) is None


@pytest.mark.row("Lightning, a checkpoint each epoch, resumed on half of the memory")
@pytest.mark.not_under_torture("all spills, whatever the budget")
def test_lightning_saves_and_resumes_on_half_of_the_memory(tmp_path):
    def program(resume=None):
        net = ManagedModule.from_module(network()).cuda(1)
        saving = lightning().callbacks.ModelCheckpoint(
            tmp_path, filename="{step}", every_n_train_steps=3, save_top_k=-1
        )
        options = {"enable_checkpointing": True, "callbacks": [saving]}
        return fit(net, tmp_path, 6, resume, strategy=integrations.lightning_strategy(), **options)

    expected = fit(network(), tmp_path, 6)
    with half_of(program):
        assert difference(expected, program()) is None
        checkpoint = tmp_path / "step=3-v1.ckpt"  # the second of that name
        assert difference(expected, program(checkpoint)) is None


@pytest.mark.row(
    "Lightning, resumed, `integrations.lightning_generator()`",
    note="Dropout goes on where the checkpoint was made",
)
def test_a_resumed_lightning_draws_on(tmp_path):
    def run(resume=None):
        net = ManagedModule.from_module(network(dropout=0.3)).cuda(0)
        saving = lightning().callbacks.ModelCheckpoint(
            tmp_path, filename="at-{step}", every_n_train_steps=3, save_top_k=-1
        )
        callbacks = [integrations.lightning_generator(), saving]
        strategy = integrations.lightning_strategy()
        options = {"enable_checkpointing": True, "callbacks": callbacks, "strategy": strategy}
        return fit(net, tmp_path, 6, resume, **options), device_module.get_rng_state(0)

    expected, state = run()
    (checkpoint,) = tmp_path.glob("at-step=3*.ckpt")
    torch.manual_seed(5)
    actual, other = run(checkpoint)
    assert difference(expected, actual) is None
    assert torch.equal(state, other)


def searching(asked):
    class Net(lightning().LightningModule):
        batch_size = 2

        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))

        def train_dataloader(self):
            row = torch.randn(1, 1024, 16, generator=torch.Generator().manual_seed(3))  # 64 KiB
            return DataLoader(TensorDataset(row.expand(512, -1, -1)), self.batch_size)

        def training_step(self, batch, index):
            (x,) = batch
            asked.append(len(x))
            return (self.layers(x) - x).square().mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    return Net()


@pytest.mark.row(
    "Lightning, `BatchSizeFinder` and `Tuner.scale_batch_size`",
    note="Managed's memory error tells them that a batch is too large",
)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", ["power", "binsearch"])
@pytest.mark.not_under_torture("all spills, whatever the budget")
def test_lightning_finds_a_batch_size(place, mode, tmp_path):
    """A step needs four storages of its batch's size at once, and there is room for 160 rows."""
    asked = []
    finder = lightning().callbacks.BatchSizeFinder(mode, margin=0.0)
    trainer = lightning().Trainer(
        default_root_dir=tmp_path,
        strategy=integrations.lightning_strategy(),
        max_steps=2,
        callbacks=[finder] if mode == "power" else [],
        **dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False),
        enable_checkpointing=False,
    )
    net = PLACES[place](ManagedModule.from_module(searching(asked)))
    with contextlib.ExitStack() as budgets:
        for name in map(device_name, range(4)):
            budgets.enter_context(managed.budget(name, counted(name) + 160 * 64 * KiB))
        if mode == "power":
            trainer.fit(net)
            found = finder.optimal_batch_size
            assert asked[-3:] == [64, 32, 32]  # too large; then two steps with what was found
            assert trainer.global_step == 2
        else:
            tuner = library("pytorch_lightning.tuner").Tuner(trainer)
            found = tuner.scale_batch_size(net, mode=mode, margin=0.0)
            done = {n for n in asked if asked.count(n) == 3}  # steps of a trial
            assert found == max(done)
            assert found + 1 in set(asked) - done
    assert net.batch_size == found
    assert 32 <= found < 48


# ---- GPyTorch


def in_parts(kernel, parts):
    """What MultiDeviceKernel computes, on one device."""
    gpytorch, operators = library("gpytorch"), library("linear_operator.operators")

    class InParts(gpytorch.kernels.Kernel):
        def forward(self, x1, x2, diag=False, **options):
            if diag or len(x1) <= parts or parts == 1:
                return kernel.forward(x1, x2, diag=diag, **options)
            with gpytorch.settings.lazily_evaluate_kernels(False):
                rows = [operators.to_linear_operator(kernel(r, x2)) for r in x1.chunk(parts)]
            return operators.CatLinearOperator(*rows, dim=-2, output_device=x1.device)

    result = InParts()
    result.kernel = kernel
    return result


def regress(over, there):
    """An exact process as in GPyTorch's example for several GPUs; `over` makes its kernel of parts.

    The loss by preconditioned conjugate gradients; gradients, means and variances; the devices on
    which the kernel was computed.
    """
    gpytorch = library("gpytorch")
    used = set()

    class Noted(gpytorch.kernels.RBFKernel):
        def forward(self, x1, x2, **options):
            used.add(x1.device)
            return super().forward(x1, x2, **options)

    class Process(gpytorch.models.ExactGP):
        def __init__(self, x, y, likelihood):
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = over(gpytorch.kernels.ScaleKernel(Noted()))

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    numbers = torch.Generator().manual_seed(4)
    x = torch.randn(40, 3, generator=numbers).to(there)
    asked = torch.randn(7, 3, generator=numbers).to(there)
    y = x.sum(-1).sin()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(there)
    process = Process(x, y, likelihood).to(there)
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, process)
    torch.manual_seed(0)  # of the probes that estimate the determinant
    settings = gpytorch.settings
    with settings.max_cholesky_size(0), settings.min_preconditioning_size(10):
        loss = -objective(process(x), y)
        loss.backward()
        with torch.no_grad():
            seen = likelihood.eval()(process.eval()(asked))
    gradients = [p.grad.item() for p in process.parameters()]
    return loss.item(), gradients + seen.mean.tolist() + seen.variance.tolist(), used


@pytest.mark.row(
    "GPyTorch, `MultiDeviceKernel` in `managed.on()`",
    note="An exact process over one to four devices; all but the loss to the order of sums",
)
@pytest.mark.parametrize("devices", [1, 2, 3, 4])
def test_a_kernel_over_several_devices(devices):
    kernels, first = library("gpytorch").kernels, torch.device("cuda:0")
    loss, numbers, _ = regress(lambda kernel: in_parts(kernel, devices), "cpu")
    with managed.on():
        found, others, used = regress(
            lambda kernel: kernels.MultiDeviceKernel(kernel, range(devices), first), first
        )
    assert len(used) == devices
    assert found == loss
    assert others == pytest.approx(numbers, rel=1e-4)


# ---- botorch


@pytest.mark.row("botorch, `optimize_acqf`", note="Model and bounds on one device, or apart")
@pytest.mark.parametrize("bounds_on", ["cpu", D1, D2])
def test_optimize_acqf(bounds_on):
    library("botorch")
    from botorch.acquisition import LogExpectedImprovement
    from botorch.models import SingleTaskGP
    from botorch.optim import optimize_acqf

    x = torch.rand(12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    y = (x - 0.4).square().sum(-1, keepdim=True).neg()
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)

    def optimum(x, y, bounds, change=lambda model: model):
        model = change(SingleTaskGP(x, y)).eval()
        acquisition = LogExpectedImprovement(model, best_f=y.max())
        torch.manual_seed(0)
        options = {"batch_limit": 4, "maxiter": 20}
        return optimize_acqf(
            acquisition, bounds, 1, num_restarts=4, raw_samples=16, options=options
        )

    expected = optimum(x, y, bounds)
    there = [managed_on(t, d) for t, d in ((x, D1), (y, D1), (bounds, bounds_on))]
    actual = optimum(*there, lambda model: ManagedModule.from_module(model).to(D1))
    for wanted, got in zip(expected, actual, strict=True):
        assert torch.equal(wanted, got.cpu())


# ---- torchdiffeq


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, t, y):
        return self.net(y**3)


@pytest.mark.row(
    "torchdiffeq, `odeint`, `odeint_adjoint`",
    note="Model and state on two devices; gradients of `odeint` to the order of sums",
)
@pytest.mark.parametrize("function", ["odeint", "odeint_adjoint"])
@pytest.mark.parametrize("method", ["dopri5", "rk4"])
@pytest.mark.parametrize(("model_on", "state_on"), [(D1, D2), (D1, "cpu")])
def test_odeint(function, method, model_on, state_on):
    solve = getattr(library("torchdiffeq"), function)
    torch.manual_seed(0)
    field, y, t = Field(), torch.randn(3, 4).requires_grad_(), torch.linspace(0.0, 1.0, 5)
    net = ManagedModule.from_module(copy.deepcopy(field)).to(model_on)
    there = managed_on(y, state_on)
    expected = solve(field, y, t, method=method)
    actual = solve(net, there, managed_on(t, state_on), method=method)
    assert actual.device == there.device
    assert torch.equal(expected, actual.cpu())
    assert isinstance(actual, ManagedTensor)  # torchdiffeq wrote it row by row
    expected.square().sum().backward()
    actual.square().sum().backward()
    for p, q in zip([y, *field.parameters()], [there, *net.parameters()], strict=True):
        assert q.grad.device == q.device
        if function == "odeint_adjoint":
            assert torch.equal(p.grad, q.grad.cpu())
        else:  # a state's gradients of several uses are summed where they arise
            torch.testing.assert_close(p.grad, q.grad.cpu(), rtol=1e-5, atol=1e-5)
