"""Every causal language model of transformers that has a tiny form: the CPU's loss and gradients.

The parameters are spread over three devices. The loss is bitwise that of the CPU. The gradient of a
tensor that is used three times is a sum in another order where two uses are on another device.
"""

import copy

import numpy
import pytest
import torch
import transformers
from support.slices import slice_of
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from managed import ManagedModule, ManagedTensor

WORDS = 100
LARGEST = 3_000_000  # elements of all parameters; what has no tiny form by these names is larger
SHORT = dict.fromkeys(
    [
        "num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers",
        "encoder_layers", "num_experts_per_tok", "num_key_value_heads",
    ],
    2,
)  # fmt: skip
SIZES = SHORT | {
    **dict.fromkeys(["hidden_size", "n_embd", "d_model", "embed_dim", "word_embed_proj_dim"], 32),
    **dict.fromkeys(["intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim"], 64),
    **dict.fromkeys(["max_position_embeddings", "n_positions", "n_ctx"], 64),
    **dict.fromkeys(["num_attention_heads", "n_head", "n_heads", "num_heads"], 4),
    **dict.fromkeys(["decoder_attention_heads", "encoder_attention_heads", "time_step_rank"], 4),
    **dict.fromkeys(["num_local_experts", "num_experts", "n_routed_experts", "rotary_dim"], 4),
    **dict.fromkeys(["moe_intermediate_size", "shared_expert_intermediate_size"], 16),
    **dict.fromkeys(["head_dim", "sliding_window", "state_size"], 8),
    "vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
FIRST = ["mixtral", "gpt_oss", "mamba"]  # of `make test`: experts and a scan
NAMES = FIRST + sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} - {*FIRST})


def tiny(name):
    """A small model without dropout, or a skip: transformers has none by the names above."""
    kind = CONFIG_MAPPING[name]
    try:
        known = kind()
        given = {k: v for k, v in SIZES.items() if hasattr(known, k)}
        config = kind(**{k: v for k, v in given.items() if not is_property(kind, k)})
        with torch.device("meta"):
            size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
        if size > LARGEST:
            pytest.skip(f"{size} elements")
        net = AutoModelForCausalLM.from_config(config).float().train()
    except Exception as error:
        pytest.skip(f"{type(error).__name__}: {error}"[:200])
    for holder in (net.config, *net.modules()):
        for key, value in vars(holder).items():
            if isinstance(value, float) and ("drop" in key or isinstance(holder, torch.nn.Dropout)):
                setattr(holder, key, 0.0)
    return net


def is_property(kind, name):
    return isinstance(getattr(kind, name, None), property)


def results(net):
    numpy.random.seed(0)  # BigBird chooses blocks
    words = torch.randint(3, WORDS, (2, 8), generator=torch.Generator().manual_seed(1))
    out = net(input_ids=words, labels=words)
    out.loss.backward()
    return [
        out.loss.detach().cpu(),
        *(p.grad.cpu() for p in net.parameters() if p.grad is not None),
    ]


@pytest.mark.only_simulated("there transformers takes kernels that are CUDA's alone")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", slice_of(NAMES, len(FIRST)))
def test_a_language_model_has_the_gradients_of_the_cpu(name):
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    net = tiny(name)
    spread = copy.deepcopy(net)
    try:
        expected = results(net)
    except Exception as error:
        pytest.skip(f"on the CPU: {type(error).__name__}: {error}"[:200])
    found = results(ManagedModule.from_module(spread).cuda(disperse="parameters"))
    assert isinstance(next(spread.parameters()), ManagedTensor)
    assert len({p.device for p in spread.parameters()}) > 1
    assert len(found) == len(expected)
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1:], expected[1:], rtol=1e-4, atol=1e-6)
