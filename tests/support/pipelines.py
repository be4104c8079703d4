"""Models whose parts go through pipelines, and the gradients that a step must give."""

import torch
import torch.nn.functional as F
from torch import nn

from managed._parallel import parts

SEED = 20


class Residual(nn.Module):
    def __init__(self, width=32, blocks=8):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
            for _ in range(blocks)
        )

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


class UNet(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        c = channels
        self.down = nn.ModuleList(nn.Conv2d(c if i else 3, c, 3, padding=1) for i in range(4))
        self.up = nn.ModuleList(nn.Conv2d(2 * c, c, 3, padding=1) for _ in range(4))
        self.out = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        skips = []
        for layer in self.down:
            x = F.relu(layer(x), inplace=True)
            skips.append(x)
        for layer in self.up:
            x = torch.tanh(layer(torch.cat([x, skips.pop()], 1)))
        return self.out(x)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTM(8, 8, batch_first=True) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)[0]
        return x


class Convolutions(nn.Sequential):
    """In-place operators behind every layer, and so at every border."""

    def __init__(self, norm=nn.Identity):
        layer = lambda i: (nn.Conv2d(6 if i else 3, 6, 3, padding=1), norm(6), nn.ReLU(True))  # noqa: E731
        super().__init__(*(nn.Sequential(*layer(i)) for i in range(8)))


def gpt2(tied=False):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=6, n_embd=32, n_head=2, vocab_size=64, n_positions=48, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
        tie_word_embeddings=tied,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def rows(n):
    return torch.randn(n, 48, 32, dtype=torch.float64)


def images(n):
    return torch.randn(n, 3, 24, 24, dtype=torch.float64)


def tokens(n):
    return {"input_ids": torch.randint(64, (n, 48))}


MODELS = {
    "mlp": (lambda: nn.Sequential(*[nn.Linear(32, 32) for _ in range(8)]), rows),
    "residual": (Residual, rows),
    "u-net": (UNet, images),
    "lstm": (Recurrent, lambda n: torch.randn(n, 80, 8, dtype=torch.float64)),
    "in place": (Convolutions, images),
    "batch norm": (lambda: Convolutions(nn.BatchNorm2d), images),
    "gpt-2": (gpt2, tokens),
    "tied gpt-2": (lambda: gpt2(tied=True), tokens),
}


def made(name, samples=12):
    """The model, a batch and a target."""
    print("seed", SEED)
    torch.manual_seed(SEED)
    make, draw = MODELS[name]
    return make().double(), draw(samples), torch.rand(samples, dtype=torch.float64)


def copied(net, name):
    other = MODELS[name][0]().double()
    other.load_state_dict(net.state_dict())
    return other


def loss_of(output, target):
    output = getattr(output, "logits", output)
    return (output.flatten(1).mean(1) - target).square().mean() + output.square().mean()


def in_turns(net, batch, target, count):
    """What a step is by definition: the parts one after the other, weighted by their samples."""
    n = parts.samples(batch)
    sizes = parts.sizes(n, count)
    total = 0
    given = zip(parts.split(batch, n, sizes), parts.split(target, n, sizes), sizes, strict=True)
    for x, y, size in given:
        loss = loss_of(net(**x) if isinstance(x, dict) else net(x), y)
        loss.backward(torch.full_like(loss, size / n))
        total = total + loss.detach() * torch.full_like(loss, size / n)
    return total


def gradients(net):
    return {name: p.grad.cpu() for name, p in net.named_parameters() if p.grad is not None}


def same(found, wanted, tolerance):
    assert found.keys() == wanted.keys()
    for name, g in wanted.items():
        if tolerance == 0:
            assert torch.equal(found[name], g), name
        else:
            torch.testing.assert_close(found[name], g, rtol=tolerance, atol=tolerance, msg=name)


def clear(net):
    for p in net.parameters():
        p.grad = None


def stepped(pipe, batch, target, steps=2):
    """Takes so many steps, each with new gradients; returns the last loss."""
    for _ in range(steps):
        clear(pipe.module)
        loss = pipe.step(loss_of, batch, target)
    return loss
