"""Programs for memory pressure, each with something that storages may trip over.

A program takes `put`, which gives a tensor or module its place (plain programs pass the identity),
and returns tensors that must be the same bit for bit wherever it ran.
"""

import copy
import io

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from support import models
from support.devices import DEVICE_TYPE

STEPS = 3
PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def _results(losses, model):
    found = [*losses, *model.parameters(), *model.buffers()]
    return found + [p.grad for p in model.parameters() if p.grad is not None]


def mse(model, x, y):
    return F.mse_loss(model(x), y)


def entropy(model, x, y):
    out = model(x)
    return F.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))


def fit(put, model, batch, loss=mse, optimizer=None, clip=None, steps=STEPS):
    """Trains and returns losses, parameters, buffers and gradients."""
    model = put(model)
    optimizer = (optimizer or (lambda p: torch.optim.AdamW(p, 1e-2)))(model.parameters())
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model, *map(put, batch()))
        value.backward()
        if clip:
            losses.append(nn.utils.clip_grad_norm_(model.parameters(), clip))
        optimizer.step()
        losses.append(value.detach())
    return _results(losses, model)


def net():
    return nn.Sequential(
        nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32),
        nn.Linear(32, 8), nn.Softmax(-1),
    )  # fmt: skip


def pairs():
    return torch.randn(8, 16), torch.randn(8, 8)


# ---- models


def _model(name):
    def run(put):
        build, batch, loss = models.MODELS[name]
        return fit(put, build(), batch, loss)

    return run


PROGRAMS |= {name: _model(name) for name in models.MODELS}


@program
def cnn_with_dropout(put):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout(0.3),
        nn.Conv2d(8, 8, 3, stride=2), nn.BatchNorm2d(8), nn.MaxPool2d(2), nn.Flatten(),
        nn.Dropout1d(0.1), nn.Linear(32, 5),
    )  # fmt: skip
    batch = models.classes((3, 12, 12))
    return fit(put, model, batch, entropy, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9))


class Recurrences(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 10, 2, batch_first=True, dropout=0.2, bidirectional=True)
        self.gru = nn.GRU(6, 10)
        self.out = nn.Linear(20, 3)

    def forward(self, x):
        h, (a, b) = self.lstm(x)
        return self.out(h).sum(1) + self.gru(x)[0].sum() + a.mean() * b.std()


@program
def recurrences(put):
    return fit(put, Recurrences(), lambda: (torch.randn(4, 7, 6), torch.randn(4, 3)))


@program
def transformer_with_dropout(put):
    layer = nn.TransformerEncoderLayer(16, 4, 32, 0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    batch = lambda: (torch.randn(3, 6, 16), torch.randn(3, 6, 16))  # noqa: E731
    return fit(put, model, batch, clip=1.0)


@program
def attention_in_one_kernel(put):
    layer = nn.TransformerEncoderLayer(16, 4, 32, 0.1, batch_first=True)
    model = put(nn.TransformerEncoder(layer, 2)).eval()
    with torch.no_grad():
        return [model(put(torch.randn(3, 6, 16)))]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.middle = nn.Linear(16, 16)
        self.out = nn.Linear(16, 20, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x):
        return self.out(torch.tanh(self.middle(self.words(x))))


@program
def tied_weights(put):
    batch = lambda: (torch.randint(0, 20, (4, 5)), torch.randint(0, 20, (4, 5)))  # noqa: E731
    return fit(put, Tied(), batch, entropy)


# ---- optimizers

OPTIMIZERS = {
    f"{kind.__name__}, {form}": (kind, {form: True} if form != "single" else {"foreach": False})
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
    for form in ("foreach", "fused", "single")
} | {
    name: (getattr(torch.optim, name), {})
    for name in ("Adagrad", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "ASGD", "Adadelta")
}


def _optimizer(kind, options):
    extra = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        extra = {"amsgrad": True}
    make = lambda p: kind(p, lr=1e-2, **options, **extra)  # noqa: E731
    return lambda put: fit(put, net(), pairs, optimizer=make, clip=0.5)


PROGRAMS |= {name: _optimizer(*how) for name, how in OPTIMIZERS.items()}


@program
def lbfgs(put):
    model = put(nn.Linear(16, 8))
    x, y = map(put, pairs())
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def closure():
        optimizer.zero_grad()
        value = mse(model, x, y)
        value.backward()
        return value

    return _results([optimizer.step(closure) for _ in range(2)], model)


# ---- what surrounds training


def _checkpoint(reentrant):
    def run(put):
        dropout = nn.Dropout(0.2)

        def loss(model, x, y):
            x = x.requires_grad_() if reentrant else x
            middle = checkpoint(lambda z: dropout(model[:4](z)), x, use_reentrant=reentrant)
            return F.mse_loss(model[4:](middle), y)

        return fit(put, net(), pairs, loss)

    return run


PROGRAMS["checkpoint, reentrant"] = _checkpoint(True)
PROGRAMS["checkpoint"] = _checkpoint(False)


@program
def autocast(put):
    def loss(model, x, y):
        with torch.autocast("cpu", torch.bfloat16), torch.autocast(DEVICE_TYPE, torch.bfloat16):
            return mse(model, x, y)

    return fit(put, net(), pairs, loss, clip=1.0)


@program
def grad_scaler(put):
    model = put(net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    device = next(model.parameters()).device.type
    scaler, losses = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=2), []
    for step in range(4):
        optimizer.zero_grad()
        value = mse(model, *map(put, pairs())) * (float("inf") if step == 1 else 1)
        scaler.scale(value).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        losses.append(value.detach())
    return _results(losses, model)


@program
def accumulation(put):
    model = put(net())
    optimizer, losses = torch.optim.AdamW(model.parameters(), 1e-2), []
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(3):
            value = mse(model, *map(put, pairs())) / 3
            value.backward()
            losses.append(value.detach())
        optimizer.step()
    return _results(losses, model)


@program
def double_backward(put):
    model, losses = put(net()), []
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        x, y = map(put, pairs())
        value = mse(model, x.requires_grad_(), y)
        (slope,) = torch.autograd.grad(value, x, create_graph=True)
        penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
        value.backward(retain_graph=True)
        (value + penalty).backward()
        losses += [value.detach(), penalty.detach()]
        optimizer.step()
    return _results(losses, model)


@program
def saved_and_loaded(put):
    model = put(net())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    mse(model, *map(put, pairs())).backward()
    optimizer.step()
    files = io.BytesIO(), io.BytesIO()
    for file, part in zip(files, (model, optimizer), strict=True):
        torch.save(part.state_dict(), file)
        file.seek(0)
    other = put(net())
    again = torch.optim.Adam(other.parameters(), 1e-2)
    other.load_state_dict(torch.load(files[0]))
    again.load_state_dict(torch.load(files[1]))
    assigned = net()
    assigned.load_state_dict(model.state_dict(), assign=True)
    value = mse(other, *map(put, pairs()))
    value.backward()
    again.step()
    return [*_results([value.detach()], other), *assigned.parameters()]


@program
def deep_copies(put):
    model = put(net())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    mse(model, *map(put, pairs())).backward()
    optimizer.step()
    other, again = copy.deepcopy(model), copy.deepcopy(optimizer)
    state = [v for s in again.state.values() for v in s.values()]
    return [*other.parameters(), *state, mse(other, *map(put, pairs()))]


def _generate(name):
    def run(put):
        model = put(models.MODELS[name][0]()).eval()
        words = put(torch.randint(2, models.WORDS, (2, 4)))
        settings = {"max_new_tokens": 4, "min_new_tokens": 4, "pad_token_id": 0}
        greedy = model.generate(words, do_sample=False, **settings)
        return [greedy, model.generate(words, num_beams=2, **settings)]

    return run


PROGRAMS |= {f"generate, {name}": _generate(name) for name in ("gpt2", "llama", "t5")}
