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
        arguments = TrainingArguments(folder, per_device_train_batch_size=8, **told)
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


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        torch.manual_seed(0)
        loss, model = globals()[name]()
        kinds = sorted({p.device.type for p in model.parameters()})
        print("library", name, loss.hex(), *kinds)
