"""Libraries that choose devices themselves train a little: a plain script. Prints their losses."""

import sys
import tempfile

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def trainer():
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    whole = {"vocab_size": 64, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    sure = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(**whole, **sure, bos_token_id=0, eos_token_id=0))
    data = [{"input_ids": torch.arange(16) + i, "labels": torch.arange(16) + i} for i in range(16)]
    with tempfile.TemporaryDirectory() as folder:
        told = {"max_steps": 3, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
        each = 8 // max(1, torch.cuda.device_count())
        arguments = TrainingArguments(folder, per_device_train_batch_size=each, **told)
        return Trainer(model, arguments, train_dataset=data).train().training_loss, model


def accelerate():
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    accelerator = Accelerator()
    model = nn.Linear(4, 1)
    data = DataLoader(TensorDataset(torch.randn(16, 4), torch.randn(16, 1)), batch_size=4)
    optimizer = torch.optim.Adam(model.parameters())
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for x, y in data:
        loss = (model(x) - y).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return loss.item(), model


def skorch():
    from skorch import NeuralNetClassifier

    x = np.random.RandomState(0).randn(40, 5).astype("float32")
    net = NeuralNetClassifier(
        lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2), nn.Softmax(-1)),
        max_epochs=3,
        lr=0.1,
        device=DEVICE,
        verbose=0,
    )
    net.fit(x, (x[:, 0] > 0).astype("int64"))
    return net.history[-1]["train_loss"], net.module_


def geometric():
    from torch_geometric.data import Data
    from torch_geometric.nn import GCNConv

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = GCNConv(4, 8), GCNConv(8, 2)

        def forward(self, x, edges):
            return self.second(self.first(x, edges).relu(), edges)

    edges = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
    data = Data(x=torch.randn(6, 4), edge_index=edges, y=torch.tensor([0, 1] * 3)).to(DEVICE)
    model = Net().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        loss = cross_entropy(model(data.x, data.edge_index), data.y)
        loss.backward()
        optimizer.step()
    return loss.item(), model


def generate():
    """Sent to the device by its loader, as `device_map` says."""
    from transformers import GPT2Config, GPT2LMHeadModel

    whole = {"vocab_size": 64, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
    with tempfile.TemporaryDirectory() as folder:
        made = GPT2LMHeadModel(GPT2Config(**whole, bos_token_id=0, eos_token_id=0))
        made.save_pretrained(folder)
        model = GPT2LMHeadModel.from_pretrained(folder, device_map="auto")
    words = torch.randint(1, 60, (2, 5)).to(model.device)
    greedy = model.generate(words, max_new_tokens=8, do_sample=False, pad_token_id=0)
    beams = model.generate(words, max_new_tokens=8, num_beams=2, pad_token_id=0)
    loss = model(greedy, labels=greedy).loss + model(beams, labels=beams).loss
    return loss.item(), model


def neuralop():
    """The library's own trainer, losses and optimizer."""
    from neuralop import Trainer
    from neuralop.losses import LpLoss
    from neuralop.models import FNO
    from neuralop.training import AdamW
    from torch.utils.data import DataLoader

    model = FNO((8, 8), 1, 1, hidden_channels=8, n_layers=2).to(DEVICE)
    fields = torch.randn(8, 1, 16, 16)
    rows = [{"x": x, "y": x.flip(-1)} for x in fields]
    optimizer, loss = AdamW(model.parameters(), lr=0.01), LpLoss(d=2, p=2)
    trainer = Trainer(model=model, n_epochs=2, device=DEVICE)
    told = trainer.train(
        train_loader=DataLoader(rows, 4),
        test_loaders={"16": DataLoader(rows, 4)},
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1),
        regularizer=False,
        training_loss=loss,
        eval_losses={"l2": loss},
    )
    return float(told["train_err"]), model


def lightning():
    import pytorch_lightning
    from torch.utils.data import DataLoader, TensorDataset

    class Net(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.0), nn.Linear(32, 16))

        def training_step(self, batch, index):
            (x,) = batch
            loss = (self.layers(x) - x).square().mean()
            self.log("loss", loss)
            self.last, self.there = loss.item(), [p.detach() for p in self.parameters()]
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    net = Net()
    with tempfile.TemporaryDirectory() as folder:
        shown = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
        trainer = pytorch_lightning.Trainer(
            default_root_dir=folder, max_epochs=2, devices=1, **shown
        )
        trainer.fit(net, DataLoader(TensorDataset(torch.randn(24, 16)), 8))
    return net.last, nn.ParameterList(net.there)  # Lightning has sent the model to the CPU


def botorch():
    from botorch.acquisition import LogExpectedImprovement
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.optim import optimize_acqf
    from gpytorch.mlls import ExactMarginalLogLikelihood

    x = torch.rand(12, 2, dtype=torch.float64).to(DEVICE)
    y = (x - 0.4).square().sum(-1, keepdim=True).neg()
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64, device=DEVICE)
    model = SingleTaskGP(x, y)
    few = {"options": {"maxiter": 5}}
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs=few)
    gain = LogExpectedImprovement(model, best_f=y.max())
    best, value = optimize_acqf(gain, bounds, 1, num_restarts=2, raw_samples=8, **few)
    return best.sum().item() + value.item(), model


def gpytorch():
    import gpytorch

    class Process(gpytorch.models.ExactGP):
        def __init__(self, x, y, likelihood):
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    x = torch.linspace(0, 1, 40).to(DEVICE)
    y = torch.sin(6 * x)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(DEVICE)
    model = Process(x, y, likelihood).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    for _ in range(3):
        optimizer.zero_grad()
        loss = -marginal(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        seen = likelihood.eval()(model(torch.linspace(0, 1, 11, device=DEVICE)))
    return loss.item() + seen.mean.sum().item() + seen.variance.sum().item(), model


def torchdiffeq():
    from torchdiffeq import odeint, odeint_adjoint

    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))

        def forward(self, t, y):
            return self.net(y**3)

    field = Field().to(DEVICE)
    y, t = torch.randn(3, 4).to(DEVICE), torch.linspace(0, 1, 5).to(DEVICE)
    optimizer = torch.optim.RMSprop(field.parameters())
    for solve in (odeint, odeint_adjoint):
        for method in ("dopri5", "rk4"):
            optimizer.zero_grad()
            loss = solve(field, y, t, method=method).abs().mean()
            loss.backward()
            optimizer.step()
    return loss.item(), field


def pyro():
    import pyro
    import pyro.distributions as dist
    from pyro.infer import SVI, Trace_ELBO

    seen = torch.randn(20, device=DEVICE) + 3  # a device's generator has begun with the same seed

    def model(seen):
        mean = pyro.sample("mean", dist.Normal(torch.zeros((), device=DEVICE), 10.0))
        with pyro.plate("rows", len(seen)):
            pyro.sample("x", dist.Normal(mean, 1.0), obs=seen)

    def guide(seen):
        middle = pyro.param("middle", torch.tensor(0.0, device=DEVICE))
        width = pyro.param(
            "width", torch.tensor(1.0, device=DEVICE), constraint=dist.constraints.positive
        )
        pyro.sample("mean", dist.Normal(middle, width))

    steps = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    losses = [steps.step(seen) for _ in range(5)]
    return sum(losses), nn.ParameterList(pyro.param(n).detach() for n in ("middle", "width"))


def torchmetrics():
    from torchmetrics.classification import MulticlassAccuracy

    model, metric = nn.Linear(4, 3).to(DEVICE), MulticlassAccuracy(num_classes=3).to(DEVICE)
    for _ in range(3):
        x, y = torch.randn(8, 4).to(DEVICE), torch.randint(0, 3, (8,)).to(DEVICE)
        metric.update(model(x), y)
    return metric.compute().item(), model


def tensorly():
    import tensorly
    from tensorly.decomposition import parafac, tucker

    tensorly.set_backend("pytorch")
    x = torch.randn(6, 7, 8).to(DEVICE)
    core, factors = tucker(x, rank=[3, 3, 3])
    more = parafac(x, rank=3, n_iter_max=5, init="svd").factors
    return sum(t.abs().sum().item() for t in (core, *more)), nn.ParameterList([*factors, *more])


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        torch.manual_seed(0)
        loss, model = globals()[name]()
        kinds = sorted({p.device.type for p in model.parameters()})
        print("library", name, loss.hex(), *kinds)
