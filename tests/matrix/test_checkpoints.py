"""Checkpoints under memory pressure

Models that are saved and resumed where weights, gradients and states have no room together.
"""

import copy

import pytest
import torch
import transformers
from accelerate.state import AcceleratorState, GradientState, PartialState
from safetensors.torch import load_model, save_model
from support.compare import difference
from support.devices import D0, device_module
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import managed
from managed import _C, ManagedModule, ManagedTensor

WORDS = torch.randint(1, 60, (16, 12), generator=torch.Generator().manual_seed(4))
ROWS = [{"input_ids": row, "labels": row} for row in WORDS]


@pytest.fixture
def budget():
    """Sets how much sim:0 may use beyond what was there before the test."""
    budgets, before = [], device_module.memory_allocated(0)

    def use(size):
        budgets.append(managed.budget(D0, before + int(size)))

    yield use
    for used in reversed(budgets):
        used.__exit__()


def gpt2(seed=1):
    torch.manual_seed(seed)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=128, n_positions=16, n_embd=96, n_layer=3, n_head=2,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )
    )  # fmt: skip


@pytest.fixture
def on_simulated_devices(monkeypatch):
    """accelerate reads the device for its Trainer from the environment, once."""
    transformers.logging.disable_progress_bar()
    states = AcceleratorState, GradientState, PartialState
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", D0)
    for state in states:
        state._reset_state()
    yield
    for state in states:
        state._reset_state()


def fit(net, folder, steps, resume=None):
    """Weights, losses and the optimizer's states after a Trainer's run."""
    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=4,
        max_steps=steps,
        learning_rate=0.01,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="steps",
        save_steps=2,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model=net, args=arguments, train_dataset=ROWS)
    trainer.train(resume_from_checkpoint=resume)
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    states = [s["exp_avg"].cpu() for s in trainer.optimizer.state.values()]
    return losses, [p.detach().cpu() for p in net.parameters()], states


@pytest.mark.row(
    "Trainer, a checkpoint every two steps, resumed",
    note="In 0.6 and 0.4 of the room; bit by bit the uninterrupted run",
)
@pytest.mark.parametrize("fraction", [1.0, 0.6, 0.4])
def test_trainer(on_simulated_devices, budget, fraction, tmp_path):
    device_module.reset_peak_memory_stats(0)
    before = device_module.memory_allocated(0)
    expected = fit(ManagedModule.from_module(gpt2()), tmp_path / "whole", 4)
    budget(fraction * (device_module.max_memory_allocated(0) - before))
    net = ManagedModule.from_module(gpt2())
    assert difference(expected[0][:2], fit(net, tmp_path / "parts", 2)[0]) is None
    again = ManagedModule.from_module(gpt2(seed=2))
    found = fit(again, tmp_path / "parts", 4, resume=str(tmp_path / "parts" / "checkpoint-2"))
    assert difference(expected, found) is None
    assert {p.device for p in again.parameters()} == {torch.device(D0)}


@pytest.mark.row("save_pretrained", note="Also when the device has no room for the model")
@pytest.mark.row("safetensors, save_model and load_model", note="Nothing comes home to be saved")
def test_a_model_without_room(budget, tmp_path):
    plain = gpt2()
    net = ManagedModule.from_module(copy.deepcopy(plain)).to(D0)
    size = sum(p.nbytes for p in net.parameters())
    budget(size / 3)
    away = [_C.is_spilled(p) for p in net.parameters()]
    assert sum(p.nbytes for p, gone in zip(net.parameters(), away, strict=True) if gone) > size / 2
    managed.stats(reset=True)
    net.save_pretrained(tmp_path)
    save_model(net, str(tmp_path / "model"))
    again = GPT2LMHeadModel.from_pretrained(tmp_path)
    assert difference(dict(plain.state_dict()), dict(again.state_dict())) is None
    assert again.lm_head.weight is again.transformer.wte.weight
    other = ManagedModule.from_module(gpt2(seed=2)).to(D0)
    load_model(other, str(tmp_path / "model"))
    found = {k: t.cpu() for k, t in other.state_dict().items()}
    assert difference(dict(plain.state_dict()), found) is None


@pytest.mark.row(
    "torch.load onto a device that runs short",
    note="Tensors of 16 KiB and more come managed, so that they may leave",
)
@pytest.mark.not_under_torture("smaller tensors come managed, too")
def test_loading_where_room_is_short(budget, tmp_path):
    plain = nn.ModuleList(nn.Linear(128, 128) for _ in range(8))
    net = ManagedModule.from_module(copy.deepcopy(plain)).to(D0)
    torch.save(net.state_dict(), tmp_path / "state")
    torch.save(net.state_dict(), tmp_path / "old", _use_new_zipfile_serialization=False)
    budget(4 * 2**16)
    for file in ("state", "old"):
        for where in (None, D0):
            found = torch.load(tmp_path / file, map_location=where)
            assert {t.device for t in found.values()} == {torch.device(D0)}
            kinds = {k: isinstance(t, ManagedTensor) for k, t in found.items()}
            assert kinds == {k: "weight" in k for k in found}
            net.load_state_dict(found)
            values = {k: t.cpu() for k, t in found.items()}
            assert difference(dict(plain.state_dict()), values) is None
