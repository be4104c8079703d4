"""A small GPT-2 learns random tokens, with dropout and from a DataLoader: a plain script."""

import hashlib

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel


def main(place):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = GPT2Config(vocab_size=128, n_positions=32, n_embd=32, n_layer=3, n_head=2)
    model = place(GPT2LMHeadModel(config), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randint(128, (24, 32))), batch_size=8, shuffle=True)
    losses = []
    for (tokens,) in loader:
        tokens = tokens.to(device)
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    weights = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    devices = sorted({str(p.device) for p in model.parameters()})
    print(*devices, [loss.hex() for loss in losses], hashlib.sha256(weights).hexdigest())


if __name__ == "__main__":
    main(lambda model, device: model.to(device))
