"""Other libraries

PyTorch Geometric, skorch with scikit-learn, and safetensors.
"""

import pickle
import warnings

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file, save_model
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from support.devices import D0, D1, D2
from torch import nn

import managed
from managed import ManagedModule, ManagedTensor

from .common import DEVICES, difference, managed_on, same

with warnings.catch_warnings():
    # PyTorch Geometric scripts functions when it is imported, and skorch imports it.
    warnings.simplefilter("ignore", DeprecationWarning)
    from skorch import NeuralNetClassifier
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GATConv, GCNConv, SAGEConv, global_mean_pool

X = torch.arange(24.0).sin().reshape(6, 4)
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 0, 3, 5]])


# ---- PyTorch Geometric


@pytest.mark.row("PyTorch Geometric, message passing", note="GCNConv, SAGEConv, GATConv")
@pytest.mark.parametrize("layer", [GCNConv, SAGEConv, GATConv])
@pytest.mark.parametrize("edges_on", ["cpu", D0, D2])
def test_message_passing(place, layer, edges_on):
    conv = layer(4, 3)
    net = place.module(conv)
    x = X.clone().requires_grad_()
    there, edges = managed_on(x, D1), managed_on(EDGES, edges_on)
    y, z = conv(x, EDGES), net(there, edges)
    same(y, z)
    y.square().sum().backward()
    z.square().sum().backward()
    place.same_gradients([x, *conv.parameters()], [there, *net.parameters()])


@pytest.mark.row("PyTorch Geometric, Data, Batch and pooling", note="Tensors in them stay managed")
def test_data(place):
    graphs = [Data(x=X + i, edge_index=EDGES) for i in range(2)]
    there = [Data(*place(g.x, g.edge_index)) for g in graphs]
    moved = there[0].to(D2)
    assert str(moved.x.device) == str(moved.edge_index.device) == D2
    expected = Batch.from_data_list(graphs)
    batch = Batch.from_data_list(there)
    same([expected.x, expected.edge_index], [batch.x, batch.edge_index])
    assert torch.equal(expected.batch, batch.batch.cpu())
    same(global_mean_pool(expected.x, expected.batch), global_mean_pool(batch.x, batch.batch))


# ---- skorch


class Plain(nn.Module):
    def __init__(self, hidden=4):
        super().__init__()
        self.a = nn.Linear(5, hidden)
        self.b = nn.Linear(hidden, 2)

    def forward(self, x):
        return torch.softmax(self.b(torch.relu(self.a(x))), -1)


class Net(ManagedModule, Plain):
    """The same, managed by inheritance."""


class Scattered(Net):
    """The same, on several devices from the start."""

    def __init__(self, hidden=4):
        super().__init__(hidden)
        for p, device in zip(self.parameters(), DEVICES["mixed"], strict=True):
            managed._C.move(p, device)


ROWS = np.sin(np.arange(100, dtype=np.float32)).reshape(20, 5)
LABELS = (ROWS[:, 0] > 0).astype(np.int64)
# device=None leaves the module where it is.
CASES = {"cpu": (Net, "cpu"), "one": (Net, D1), "mixed": (Scattered, None)}


def classifier(module, device):
    torch.manual_seed(0)
    return NeuralNetClassifier(
        module, max_epochs=2, lr=0.1, batch_size=8, verbose=0, train_split=None, device=device
    )


def homes(net):
    return [str(p.device) for p in net.module_.parameters()]


@pytest.mark.row("skorch, NeuralNetClassifier", note="fit, predict_proba, clone")
@pytest.mark.parametrize("case", CASES)
def test_skorch(case):
    expected = classifier(Plain, "cpu").fit(ROWS, LABELS).predict_proba(ROWS)
    net = classifier(*CASES[case]).fit(ROWS, LABELS)
    assert np.array_equal(net.predict_proba(ROWS), expected)
    assert set(homes(net)) & set(DEVICES.get(case, ("cpu",)))
    assert case == "cpu" or any(home != "cpu" for home in homes(net))
    assert all(isinstance(p, ManagedTensor) for p in net.module_.parameters())
    torch.manual_seed(0)
    assert np.array_equal(clone(net).fit(ROWS, LABELS).predict_proba(ROWS), expected)


@pytest.mark.row("skorch, pickle")
@pytest.mark.parametrize("case", ["cpu", "one"])
def test_skorch_pickle(case):
    net = classifier(*CASES[case]).fit(ROWS, LABELS)
    again = pickle.loads(pickle.dumps(net))
    assert np.array_equal(again.predict_proba(ROWS), net.predict_proba(ROWS))
    assert homes(again) == homes(net)
    assert all(isinstance(p, ManagedTensor) for p in again.module_.parameters())


@pytest.mark.row("skorch in scikit-learn's GridSearchCV and Pipeline")
def test_grid_search():
    def search(module, device):
        grid = {"lr": [0.01, 0.1], "module__hidden": [3, 4]}
        cv = GridSearchCV(classifier(module, device), grid, cv=2, scoring="neg_log_loss")
        return Pipeline([("scale", StandardScaler()), ("search", cv)]).fit(ROWS, LABELS)

    plain = search(Plain, "cpu")
    for case in CASES.values():
        found = search(*case)
        assert found["search"].best_params_ == plain["search"].best_params_
        assert np.array_equal(found.predict_proba(ROWS), plain.predict_proba(ROWS))


# ---- safetensors


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(6, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.words.weight


@pytest.mark.row("safetensors, save_model and load_model", note="Tied weights stay tied")
def test_models_in_safetensors(place, tmp_path):
    plain, file = Tied(), tmp_path / "model"
    net = place.module(plain)
    save_model(net, file)
    assert b"anaged" not in file.read_bytes()
    for other in (Tied(), place.module(Tied())):
        before = [t.device for t in other.parameters()]
        load_model(other, file)
        assert other.head.weight is other.words.weight
        assert [t.device for t in other.parameters()] == before
        loaded = {k: t.cpu() for k, t in other.state_dict().items()}
        assert difference(dict(plain.state_dict()), loaded) is None
    assert all(isinstance(t, ManagedTensor) for t in other.parameters())


@pytest.mark.row("safetensors, save_file and load_file", note="Loaded tensors are plain")
@pytest.mark.row("safetensors, load_file onto simulated devices", "refused: SafetensorError")
def test_tensors_in_safetensors(place, tmp_path):
    tensors = dict(zip("ab", place(X, X * 2), strict=True))
    save_file(tensors, tmp_path / "file")
    found = load_file(tmp_path / "file")
    assert difference({"a": X, "b": X * 2}, found) is None
    assert not any(isinstance(t, ManagedTensor) for t in found.values())
    with pytest.raises(SafetensorError, match=f"device {D1} is invalid"):
        load_file(tmp_path / "file", device=D1)
