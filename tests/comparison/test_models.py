"""The attention of transformers' models and attention written from their papers: equal; and with mistakes, not."""

import pytest
import torch
from comparison.code import papers

from attnscope import compare

N_BATCH, N, D_FEAT = 2, 7, 48


def causal_mask():
    return torch.full((N, N), torch.finfo(torch.float32).min).triu(1)[None, None]


def positions(config):
    """Return cos and sin in float64: those that transformers computes are rounded to float32."""
    d = config.head_dim
    angle = torch.arange(N).double()[:, None] * 10000.0 ** (-torch.arange(d // 2).double() / (d // 2))
    angle = torch.cat([angle, angle], -1)[None]
    return angle.cos(), angle.sin()


def llama():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention

    config = LlamaConfig(
        hidden_size=D_FEAT,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=10,
        attn_implementation="eager",
    )
    inputs = {"position_embeddings": positions(config), "attention_mask": causal_mask()}
    return LlamaAttention(config, 0), inputs, ("Llama", (D_FEAT, 6, 2, 10), [])


def bert():
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertSelfAttention

    config = BertConfig(hidden_size=D_FEAT, num_attention_heads=6, attn_implementation="sdpa")
    return BertSelfAttention(config), {}, ("Bert", (D_FEAT, 6), [])


def gpt2():
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

    config = GPT2Config(n_embd=D_FEAT, n_head=6, attn_implementation="sdpa")
    return GPT2Attention(config, layer_idx=0), {}, ("GPT2", (D_FEAT, 6), [])


def qwen3():
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

    config = Qwen3Config(
        hidden_size=D_FEAT,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=10,
        attn_implementation="eager",
    )
    inputs = {"position_embeddings": positions(config), "attention_mask": causal_mask()}
    pairs = ["q_norm.weight=norm_of_q", "k_norm.weight=norm_of_k"]
    return Qwen3Attention(config, 0), inputs, ("Qwen3", (D_FEAT, 6, 2, 10), pairs)


def t5():
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(
        d_model=D_FEAT,
        num_heads=6,
        d_kv=10,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
    )
    module = T5Attention(config, has_relative_attention_bias=True)
    return module, {}, ("T5", (D_FEAT, 6, 10, 8, 20), [])


def gpt_oss():
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention

    config = GptOssConfig(
        hidden_size=D_FEAT,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=10,
        attn_implementation="eager",
    )
    d = config.head_dim
    angle = torch.arange(N).double()[:, None] * 10000.0 ** (-torch.arange(d // 2).double() / (d // 2))
    inputs = {
        "position_embeddings": (angle.cos()[None], angle.sin()[None]),
        "attention_mask": causal_mask(),
    }
    return GptOssAttention(config, 0), inputs, ("GptOss", (D_FEAT, 6, 2, 10), [])


MODELS = {each.__name__: each for each in (llama, bert, gpt2, qwen3, t5, gpt_oss)}


def drawn(module):
    """Draw weights, biases and sinks that are not zero."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.3)
    return module.eval()


def compared(model, source=None, **options):
    """Compare a model's attention with that of its paper, perhaps with another source."""
    module, inputs, (name, sizes, pairs) = MODELS[model]()
    x = torch.randn(N_BATCH, N, D_FEAT, generator=torch.Generator().manual_seed(1))
    own = getattr(source or papers, name)(*sizes)
    return compare(
        drawn(module), drawn(own), inputs={"hidden_states": x, **inputs}, map=pairs, **options
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("model", MODELS)
def test_attention_from_the_paper_equals_that_of_the_model(model, dtype):
    result = compared(model, dtype=dtype)
    assert result.status == "equal", result.divergences
    assert result.divergences == []
