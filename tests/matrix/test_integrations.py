"""Trainers that choose devices themselves

With `managed.integrations` they leave a model where it is, and its weights may be more than fits.
"""

import copy
import os

import pytest
import torch
import transformers
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from support.devices import D0, D1, device_module
from support.pressure import half_of
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from managed import ManagedModule, ManagedTensor, integrations

from .common import difference

WORDS = torch.randint(1, 60, (8, 16), generator=torch.Generator().manual_seed(4))
ROWS = [{"input_ids": row, "labels": row} for row in WORDS]


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cpu")  # so that what a test sets is taken back
    transformers.logging.disable_progress_bar()
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def gpt2(dropout=0.0):
    """Weights of which most can leave a device."""
    torch.manual_seed(0)
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    words = {"vocab_size": 61, "bos_token_id": 0, "eos_token_id": 60}
    return GPT2LMHeadModel(
        GPT2Config(n_positions=16, n_embd=64, n_layer=4, n_head=2, **rates, **words)
    )


PLACES = {
    "one": lambda net: net.to(D1),
    "disperse": lambda net: net.cuda(disperse=True),
}


def placed(where):
    return integrations.stay(PLACES[where](ManagedModule.from_module(gpt2())))


def fit(net, folder, steps=3, resume=None, callbacks=(), **options):
    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=2,
        max_steps=steps,
        learning_rate=0.01,
        max_grad_norm=0.0,  # a norm over several devices is added in another order
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **{"save_strategy": "no", **options},
    )
    trainer = Trainer(model=net, args=arguments, train_dataset=ROWS, callbacks=list(callbacks))
    loss = trainer.train(resume_from_checkpoint=resume).training_loss
    return loss, [p.detach().cpu() for p in net.parameters()]


def accelerated(net, steps=3):
    accelerator = Accelerator()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    net, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(ROWS, 2))
    losses = []
    for _, batch in zip(range(steps), loader, strict=False):
        loss = net(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in net.parameters()]


PROGRAMS = {"Trainer": fit, "accelerate": lambda net, folder: accelerated(net)}


@pytest.mark.row("Trainer, `integrations.stay(model)`", note="On one device or dispersed")
@pytest.mark.row("accelerate, `integrations.stay(model)`", note="On one device or dispersed")
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_model_stays_where_it_is(where, program, tmp_path):
    run = PROGRAMS[program]
    expected = run(gpt2(), tmp_path)
    net = placed(where)
    homes = [p.device for p in net.parameters()]
    assert difference(expected, run(net, tmp_path)) is None
    assert [p.device for p in net.parameters()] == homes
    assert all(isinstance(p, ManagedTensor) for p in net.parameters())


@pytest.mark.row("Trainer and accelerate, on half of the memory", note="Weights and states spill")
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.not_under_torture("all spills, whatever the budget")
def test_half_of_the_memory(program, tmp_path):
    run = PROGRAMS[program]
    expected = run(gpt2(), tmp_path)
    with half_of(lambda: run(placed("one"), tmp_path)):
        net = placed("one")
        assert difference(expected, run(net, tmp_path)) is None
        assert {str(p.device) for p in net.parameters()} == {D1}


@pytest.mark.row(
    "Trainer, resumed, `integrations.trainer_generator()`",
    note="Dropout goes on where the checkpoint was made",
)
def test_a_resumed_trainer_draws_on(tmp_path):
    def run(folder, **options):
        net = ManagedModule.from_module(gpt2(dropout=0.3)).to(D0)
        callbacks = [integrations.trainer_generator()]
        result = fit(integrations.stay(net), folder, 4, callbacks=callbacks, **options)
        return result, device_module.get_rng_state(0)

    saving = {"save_strategy": "steps", "save_steps": 2}
    (_, expected), state = run(tmp_path, **saving)
    torch.manual_seed(5)
    (_, actual), other = run(tmp_path, resume=str(tmp_path / "checkpoint-2"), **saving)
    assert difference(expected, actual) is None
    assert torch.equal(state, other)


def test_a_model_on_the_cpu_is_left_alone(monkeypatch):
    monkeypatch.delenv("ACCELERATE_TORCH_DEVICE")
    net = ManagedModule.from_module(gpt2())
    assert integrations.stay(net) is net
    assert not hasattr(net, "hf_device_map")
    assert not net._forward_hooks
    assert "ACCELERATE_TORCH_DEVICE" not in os.environ


def test_staying_twice_is_staying_once():
    net = integrations.stay(integrations.stay(ManagedModule.from_module(gpt2()).to(D1)))
    assert len(net._forward_hooks) == 1
    assert copy.deepcopy(net).hf_device_map == net.hf_device_map
