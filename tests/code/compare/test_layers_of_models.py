"""Code beside one layer of a model: which module it is compared with, and what that reads."""

import pytest
import torch
from torch import nn
from transformers import BloomConfig, BloomModel, GPTJConfig, GPTJModel, LlamaConfig, LlamaModel

from attnscope import AttnscopeError, compare

SIZES = {"vocab_size": 9, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2}
CODE = "transformers.models.llama.modeling_llama"
IDS = [1, 2, 3, 4, 5]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("llama")
    LlamaModel(LlamaConfig(**SIZES)).save_pretrained(folder)
    return str(folder)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "module"),
    [("LlamaAttention", "layers.1.self_attn"), ("LlamaDecoderLayer", "layers.1")],
)
def test_a_class_of_the_model_equals_the_module_of_its_kind(llama, name, module):
    result = compare(f"{CODE}:{name}", llama, layer=1, ids=IDS)
    assert (result.status, result.divergences) == ("equal", [])
    assert result.a.endswith(f", {module}")


class Attention(nn.Module):
    """Llama's attention as people write it, with the names of the configuration."""

    def __init__(
        self, hidden_size, num_attention_heads, num_key_value_heads, rms_norm_eps, rope_theta=1e4
    ):
        super().__init__()
        self.eps, self.theta, d = rms_norm_eps, rope_theta, hidden_size // num_attention_heads
        self.sizes, self.n = (num_attention_heads, num_key_value_heads), hidden_size
        widths = (hidden_size, d * num_key_value_heads, d * num_key_value_heads, hidden_size)
        self.q, self.k, self.v, self.o = (nn.Linear(hidden_size, each, bias=False) for each in widths)

    def rotated(self, y):
        n, d = y.shape[-2:]
        angle = torch.arange(n)[:, None] * self.theta ** (-torch.arange(d // 2) * 2 / d)
        first, second = y.chunk(2, -1)
        cos, sin = angle.cos().to(y), angle.sin().to(y)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    def attend(self, x):
        h, g = self.sizes
        q, k, v = (
            lin(x).unflatten(-1, (-1, self.n // h)).transpose(1, 2) for lin in (self.q, self.k, self.v)
        )
        q, k = self.rotated(q), self.rotated(k)
        k, v = (each.repeat_interleave(h // g, 1) for each in (k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))

    def forward(self, x):
        return self.attend(x)


class WithNorm(Attention):
    """Norm, attention and residual connection: the first half of a layer."""

    def __init__(self, hidden_size, num_attention_heads, num_key_value_heads, rms_norm_eps):
        super().__init__(hidden_size, num_attention_heads, num_key_value_heads, rms_norm_eps)
        self.norm = nn.RMSNorm(hidden_size, rms_norm_eps)

    def forward(self, x):
        return x + self.attend(self.norm(x))


class WithNormOfZero(WithNorm):
    """Wrong: it normalises with another epsilon."""

    def forward(self, x):
        return x + self.attend(nn.functional.rms_norm(x, (self.n,), self.norm.weight, 0.1))


def test_arguments_of_the_constructor_are_fields_of_the_configuration(llama):
    result = compare(Attention, llama, layer=0, ids=IDS)
    assert (result.status, result.divergences) == ("equal", [])


@pytest.mark.sweep
def test_code_with_a_norm_gets_the_input_of_the_layer_that_contains_the_norm(llama):
    result = compare(WithNorm, llama, layer=0, ids=IDS)
    assert (result.status, result.divergences) == ("equal", [])
    assert result.a.endswith(", layers.0")
    assert any("both are compared up to x" in each for each in result.notices)
    assert compare(WithNormOfZero, llama, layer=0, ids=IDS).divergences[0].role == "Q_feat"


@pytest.mark.few(1)
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_a_class_of_transformers_gets_the_rotary_positions_that_its_model_would_give_it(kv_heads):
    sizes = SIZES | {"num_key_value_heads": kv_heads}
    config = LlamaConfig(**sizes, attn_implementation="sdpa")
    init = {"config": config, "layer_idx": "0"}
    inputs = {"hidden_states": "B:2,T:7,d:24"}
    result = compare(f"{CODE}:LlamaAttention", "mha", init=init, inputs=inputs, causal=True, rope=True)
    assert (result.status, result.divergences) == ("equal", [])
    assert any("gets position_embeddings of LlamaRotaryEmbedding" in each for each in result.notices)
    without = compare(f"{CODE}:LlamaAttention", "mha", init=init, inputs=inputs, causal=True)
    assert {each.role for each in without.divergences} == {"Q", "K"}


def test_ids_and_tokens_are_for_a_model_beside_code(llama):
    with pytest.raises(AttnscopeError, match="has no tokenizer"):
        compare(Attention, llama, layer=0, text="a")
    with pytest.raises(AttnscopeError, match="text and ids exclude each other"):
        compare(Attention, llama, layer=0, text="a", ids=IDS)
    with pytest.raises(AttnscopeError, match="ids is for a model"):
        compare(Attention, "mha", init=SIZES, ids=IDS)
    with pytest.raises(AttnscopeError, match="ids is for a model beside code"):
        compare(llama, llama, ids=IDS)


GPTJ = GPTJConfig(vocab_size=9, n_embd=24, n_layer=2, n_head=3, n_positions=16, rotary_dim=4)
OUTSIDE = [
    (BloomModel, BloomConfig(vocab_size=9, hidden_size=24, n_layer=2, n_head=3), "bloom.modeling_bloom:BloomAttention"),
    (GPTJModel, GPTJ, "gptj.modeling_gptj:GPTJAttention"),
]  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize(("model", "config", "name"), OUTSIDE)
def test_layers_that_do_not_use_the_registry_are_found(tmp_path, model, config, name):
    model(config).save_pretrained(tmp_path)
    result = compare(f"transformers.models.{name}", str(tmp_path), layer=1, ids=IDS)
    assert (result.status, result.divergences) == ("equal", [])
    with pytest.raises(AttnscopeError, match="has 2 layers of attention, and no layer 2"):
        compare(f"transformers.models.{name}", str(tmp_path), layer=2, ids=IDS)
