"""Models that train on several devices at once, and the plain training that they must equal."""

import torch
import torch.nn.functional as F
from torch import nn

import managed
from support.devices import device_name
from support.pipelines import gpt2

SEED = 38


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layers = nn.GRU(16, 24, 2, batch_first=True)
        self.out = nn.Linear(24, 10)

    def forward(self, x):
        return self.out(self.layers(self.embed(x))[0][:, -1])


class Images(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16),
            nn.ReLU(True), nn.Flatten(), nn.Linear(256, 10),
        )  # fmt: skip


def mlp():
    layers = [nn.Linear(32, 64), nn.Tanh()]
    for _ in range(3):
        layers += [nn.Linear(64, 64), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def labels(n):
    return torch.randint(10, (n,))


def tokens(n):
    return torch.randint(64, (n, 12))


def of_classes(net, x, y):
    return F.cross_entropy(net(x), y)


def of_tokens(net, x, y):
    return F.cross_entropy(net(input_ids=x).logits.flatten(0, 1), y.flatten())


#: Model, inputs, targets and loss.
MODELS = {
    "mlp": (mlp, lambda n: torch.randn(n, 32, dtype=torch.float64), labels, of_classes),
    "cnn": (Images, lambda n: torch.randn(n, 1, 8, 8, dtype=torch.float64), labels, of_classes),
    "gru": (Recurrent, lambda n: torch.randint(50, (n, 7)), labels, of_classes),
    "tied gpt-2": (lambda: gpt2(tied=True), tokens, tokens, of_tokens),
}


def made(name):
    print("seed", SEED)
    torch.manual_seed(SEED)
    return MODELS[name][0]().double()


def parallel(name, devices=4, **given):
    norm = "sync" if name == "cnn" else "first"
    names = [device_name(i) for i in range(devices)]
    return managed.DataParallel(made(name), names, batch_norm=norm, **given)


def train(net, name, steps=20, samples=18, clip=0.5, passes=1):
    """Steps of AdamW; net may be plain. Returns the losses."""
    _, draw, target, loss_of = MODELS[name]
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    torch.manual_seed(SEED + 1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(passes):
            x, y = draw(samples), target(samples)
            is_ours = isinstance(net, managed.DataParallel)
            loss = net.each(loss_of, x, y) if is_ours else loss_of(net, x, y)
            loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        losses.append(loss.detach().cpu())
    return losses


def stepper(net, x, make_optimizer=torch.optim.SGD, lr=0.1):
    """A step on the same batch, whose loss is made where each part is."""
    optimizer = make_optimizer(net.parameters(), lr)

    def step():
        net.each(lambda net, x: net(x).square().mean(), x).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def weights(net):
    return [t.detach().cpu().clone() for t in net.state_dict().values()]
