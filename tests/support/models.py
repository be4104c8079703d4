"""The models of the training sweeps: small, without dropout, each with its data and its loss."""

import torch
import torch.nn.functional as F
from torch import nn

WORDS = 30


class Recurrent(nn.Module):
    def __init__(self, cell, packed=False):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 12)
        self.cell = cell(12, 16, 2, batch_first=True)
        self.out = nn.Linear(16, WORDS)
        self.packed = packed

    def forward(self, words):
        x = self.embedding(words)
        if not self.packed:
            return self.out(self.cell(x)[0])
        x = nn.utils.rnn.pack_padded_sequence(x, [7, 5, 3, 2], batch_first=True)
        x = nn.utils.rnn.pad_packed_sequence(self.cell(x)[0], batch_first=True)[0]
        return self.out(x)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.out = nn.Linear(16, WORDS)

    def forward(self, words):
        return self.out(self.encoder(self.embedding(words)))


def mlp():
    return nn.Sequential(
        nn.Linear(8, 32),
        nn.GELU(),
        nn.LayerNorm(32),
        nn.Linear(32, 32),
        nn.ReLU(),
        nn.Linear(32, 5),
    )


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    quiet = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0)
    shape = {"vocab_size": WORDS, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 1}
    return GPT2LMHeadModel(GPT2Config(**shape, **quiet, **ends))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=32,
        )
    )


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    shape = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    ends = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    return T5ForConditionalGeneration(T5Config(vocab_size=WORDS, dropout_rate=0.0, **shape, **ends))


def classes(shape):
    return lambda: (torch.randn(16, *shape), torch.randint(0, 5, (16,)))


def sentences():
    return torch.randint(0, WORDS, (4, 7)), torch.randint(0, WORDS, (4, 7))


def cross_entropy(model, x, y):
    out = model(x)
    return F.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))


def own_loss(model, x, y):
    return model(input_ids=x, labels=y).loss


MODELS = {
    "mlp": (mlp, classes((8,)), cross_entropy),
    "cnn": (cnn, classes((3, 12, 12)), cross_entropy),
    "lstm": (lambda: Recurrent(nn.LSTM), sentences, cross_entropy),
    "gru": (lambda: Recurrent(nn.GRU), sentences, cross_entropy),
    "packed lstm": (lambda: Recurrent(nn.LSTM, packed=True), sentences, cross_entropy),
    "encoder": (Encoder, sentences, cross_entropy),
    "gpt2": (gpt2, sentences, own_loss),
    "llama": (llama, sentences, own_loss),
    "t5": (t5, sentences, own_loss),
}


def make(name, seed, steps):
    """(model, batches, loss) from a seed alone."""
    build, batch, loss = MODELS[name]
    torch.manual_seed(seed)
    model = build()
    return model.train(), [batch() for _ in range(steps)], loss
