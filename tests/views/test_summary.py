"""managed.summary: the tree, its sums, where bytes are, and the peak that it foresees."""

import copy
import gc

import pytest
import torch
from support.devices import D0, D1
from torch import nn

import managed
from managed import ManagedModule, ManagedTensor


class Tied(nn.Module):
    """Embedding and head share a weight; one buffer, one parameter of its own."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 8)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2)])
        self.head = nn.Linear(8, 32, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.scale.sum()


def test_the_tree_and_its_sums():
    net = ManagedModule.from_module(Tied()).cuda(1)
    s = managed.summary(net)
    assert [(line.depth, line.position, line.name) for line in s.lines] == [
        (0, "Tied", ""),
        (1, "Embedding: 1-1", "embedding"),
        (1, "ModuleList: 1-2", "blocks"),
        (2, "Sequential: 2-1", "blocks.0"),
        (3, "Linear: 3-1", "blocks.0.0"),
        (3, "ReLU: 3-2", "blocks.0.1"),
        (2, "Sequential: 2-2", "blocks.1"),
        (3, "Linear: 3-3", "blocks.1.0"),
        (3, "ReLU: 3-4", "blocks.1.1"),
        (1, "Linear: 1-3", "head"),
    ]
    parameters = 32 * 8 + 2 * (8 * 8 + 8) + 3
    assert (s.total_params, s.trainable_params) == (parameters, parameters)
    assert s.bytes == 4 * (parameters + 5) == sum(line.bytes for line in s.lines)
    assert s.where == {D1: s.bytes}
    assert s.lines[-1].ties
    assert s.lines[-1].bytes == 0
    assert s.lines[0].parameters == 3


def test_the_text():
    net = ManagedModule.from_module(Tied()).cuda(1)
    net.scale.requires_grad_(False)
    lines = repr(managed.summary(net)).splitlines()
    assert lines[0] == lines[2] == lines[-1] == "=" * len(lines[0])
    assert max(map(len, lines)) == len(lines[0])
    assert lines[1].split("  ")[0] == "Layer (type:depth-idx)"
    tree = [line.split("  ")[0] for line in lines[3:13]]
    assert tree[1:4] == ["├── Embedding: 1-1", "├── ModuleList: 1-2", "│"]
    assert lines[6].startswith("│   ├── Sequential: 2-1")
    assert lines[12].startswith("└── Linear: 1-3")
    assert "(tied)" in lines[12]
    assert "Total params: 403" in lines
    assert "Trainable params: 400" in lines
    assert "Non-trainable params: 3" in lines
    assert f"Parameters and buffers: 1.6 KiB on {D1}" in lines


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_what_is_cut_off_is_counted_above(depth):
    net = ManagedModule.from_module(Tied())
    s = managed.summary(net, depth=depth)
    assert max(line.depth for line in s.lines) == min(depth, 3)
    assert sum(line.bytes for line in s.lines) == s.bytes == managed.summary(net).bytes
    if depth == 1:
        assert [line.parameters for line in s.lines] == [3, 256, 144, 0]


@pytest.mark.not_under_torture("it asks where bytes are")
def test_where_the_bytes_are(not_learning):
    net = ManagedModule.from_module(nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)])).cuda(0)
    try:
        managed.budget(D0, "2500KiB")
        s = managed.summary(net)
        assert sum(s.where.values()) == s.bytes
        away = s.bytes - s.where[D0]
        assert away >= 4 * 2**20 - 2500 * 2**10
        assert {line.devices[0] for line in s.lines[1:]} == {D0}
        assert s.capacities[D0] == 2500 * 2**10
        text = repr(s)
        assert "1.0 MiB on " in text
        assert "leave at the peak" in text
        assert managed.summary(net).where == s.where, "showing brought something home"
    finally:
        managed.budget(D0, None)


# ---- the peak


def transformer():
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3)
    )


def perceptron():
    return nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64), nn.Dropout(0.1)
    )


MODELS = {
    "perceptron": (perceptron, (32, 64)),
    "convolutions": (convolutions, (8, 3, 32, 32)),
    "transformer": (transformer, (4, 32, 64)),
}


def real_peak(model, x, optimizer):
    """Peaks of a later step: its optimizer has its state."""
    made = optimizer(model.parameters()) if optimizer else None
    for _ in range(2 if made else 1):
        for i in range(2):
            torch.sim.reset_peak_memory_stats(i)
        if model.training:
            model(x).sum().backward()
        else:
            with torch.no_grad():
                model(x)
        if made:
            made.step()
            made.zero_grad()
    return {f"sim:{i}": torch.sim.max_memory_allocated(i) for i in range(2)}


@pytest.mark.only_simulated("it counts what a device held at most")
@pytest.mark.not_under_torture("what leaves is not at the peak")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", ["passes", "step", "apart"])
def test_the_peak_that_is_foreseen_is_that_of_a_step(name, way, not_learning):
    make, size = MODELS[name]
    gc.collect()
    before = {f"sim:{i}": torch.sim.memory_allocated(i) for i in range(2)}
    model = ManagedModule.from_module(make()).to(D0)
    if way == "apart":
        for child in list(model.children())[2:]:
            child.to(D1)
    optimizer = torch.optim.AdamW if way != "passes" else None
    x = torch.randn(size).as_subclass(ManagedTensor).to(D0)
    foreseen = managed.summary(model, input_data=x, optimizer=optimizer).peaks
    by_size = managed.summary(model, size, optimizer=optimizer).peaks
    real = real_peak(model, x, optimizer)
    for device in ("sim:0", "sim:1"):
        held = real[device] - before[device]
        assert abs(foreseen.get(device, 0) - held) <= max(1024, 0.02 * held), (foreseen, real)
        assert by_size.get(device, 0) == foreseen.get(device, 0)


@pytest.mark.only_simulated("it counts what a device held at most")
@pytest.mark.not_under_torture("what leaves is not at the peak")
def test_a_model_that_does_not_train_keeps_no_activations():
    model = ManagedModule.from_module(perceptron()).to(D0)
    training = managed.summary(model, (256, 64)).peaks[D0]
    model.eval()
    s = managed.summary(model, (256, 64))
    assert s.of == "a forward pass"
    assert s.peaks[D0] < training
    assert managed.summary(model).peaks[D0] == s.bytes
    model.train()
    assert managed.summary(model).peaks[D0] == 2 * s.bytes


def test_shapes_of_what_modules_give():
    model = ManagedModule.from_module(Tied())
    s = managed.summary(model, (2, 7), dtypes=[torch.long])
    shapes = {line.name: line.shape for line in s.lines}
    assert shapes["embedding"] == "[2, 7, 8]"
    assert shapes["head"] == shapes[""] == "[2, 7, 32]"
    assert "Output Shape" in repr(s)
    assert "Output Shape" in s._repr_html_()
    assert "Output Shape" not in managed.summary(model)._repr_html_()


def test_inputs_by_name_and_several():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, a, b=None):
            return {"sum": self.layer(a) + b, "none": None}

    model, a = Two(), torch.zeros(2, 3)
    for s in (
        managed.summary(model, [(2, 3), (2, 3)]),
        managed.summary(model, input_data=(a, a)),
        managed.summary(model, input_data={"a": a, "b": a}),
    ):
        assert s.lines[1].shape == "[2, 3]"


def test_foreseeing_changes_nothing():
    model = ManagedModule.from_module(convolutions()).to(D0)
    x = torch.randn(2, 3, 16, 16).as_subclass(ManagedTensor)
    state = copy.deepcopy(model.state_dict())
    figures = dict(managed.stats())
    figures.pop("devices")
    seed = torch.get_rng_state()
    used = torch.sim.memory_allocated(0) if hasattr(torch, "sim") else 0
    managed.summary(model, input_data=x, optimizer=torch.optim.AdamW)
    after = dict(managed.stats())
    after.pop("devices")
    assert after == figures
    assert torch.equal(torch.get_rng_state(), seed)
    assert used == (torch.sim.memory_allocated(0) if hasattr(torch, "sim") else 0)
    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    for name, now in model.state_dict().items():
        assert torch.equal(state[name], now), name


def test_models_without_and_with_lazy_tensors():
    assert managed.summary(nn.ReLU()).total_params == 0
    assert "Total params: 0" in repr(managed.summary(nn.ReLU()))
    lazy = managed.summary(nn.Sequential(nn.LazyLinear(3)))
    assert lazy.bytes == 0
    assert repr(lazy)


@pytest.mark.parametrize(
    ("error", "match", "arguments"),
    [
        (TypeError, "takes a torch.nn.Module", {"model": torch.ones(1)}),
        (ValueError, "depth", {"depth": 0}),
        (ValueError, "not both", {"input_size": (1, 2), "input_data": torch.ones(1, 2)}),
        (ValueError, "2 inputs and 1 dtypes", {"input_size": [(1,), (2,)], "dtypes": [torch.int]}),
        (TypeError, "goes to input_data=. This is 'Tensor'", {"input_size": torch.ones(2, 4)}),
        (TypeError, "goes to input_data=. This is 'list'", {"input_size": [torch.ones(2, 4)]}),
        (TypeError, "goes to input_data=. This is 'int'", {"input_size": 4}),
        (
            TypeError,
            "this is 'SGD' already",
            {"optimizer": torch.optim.SGD([torch.ones(1)]), "input_size": (1, 4)},
        ),
        (RuntimeError, "a step of Linear needs could not be predicted", {"input_size": (1, 9)}),
    ],
)
def test_bad_arguments(error, match, arguments):
    with pytest.raises(error, match=match):
        managed.summary(**{"model": nn.Linear(2, 2)} | arguments)


def test_a_model_that_asks_for_values():
    class Asks(nn.Linear):
        def forward(self, x):
            return x if x.sum().item() > 0 else super().forward(x)

    with pytest.raises(RuntimeError, match="it asks for values, and none are computed"):
        managed.summary(Asks(2, 2), (1, 2))
