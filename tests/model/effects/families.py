"""Small language models of many families, and for each stack the module of its W_O, named by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, PreTrainedTokenizerFast
from transformers.models.auto import modeling_auto

from tests.model.run.families import BART, BERT, GPT, LLAMA, NARROW, T5
from tests.model.run.families import FAMILIES as SHARED

EXPERTS = {
    **dict.fromkeys("num_experts n_routed_experts num_local_experts moe_num_experts".split(), 4),
    **dict.fromkeys("num_experts_per_tok moe_k".split(), 2),
    **dict.fromkeys("moe_intermediate_size shared_expert_intermediate_size".split(), 12),
    **dict.fromkeys("num_shared_experts n_shared_experts n_group topk_group".split(), 1),
}
LATENT = {
    **{key: size for key, size in LLAMA.items() if key not in ("head_dim", "num_key_value_heads")},
    **EXPERTS,
    "num_key_value_heads": 6,
    "q_lora_rank": 10,
    "kv_lora_rank": 9,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "first_k_dense_replace": 1,
}
"""Keys and values of all heads come from one latent vector; a head's values are 5 wide, its keys 10."""

BERT_OUT = "encoder.layer.{}.attention.output.dense"
LLAMA_OUT = "model.layers.{}.self_attn.o_proj"
GPT_OUT = "transformer.h.{}.attn.c_proj"
OUT_PROJ = "model.layers.{}.self_attn.out_proj"
OPT_OUT = "model.decoder.layers.{}.self_attn.out_proj"


@dataclass(frozen=True)
class Stack:
    """The attention layers of one stack.

    Attributes:
        projection: the module of W_O, with {} for the number of the layer, or of the group of layers.
        n_head: the number of query heads.
        layers: the layers that attend.
        groups: the group of each layer, where several layers are one module.
    """

    projection: str
    n_head: int
    layers: tuple[int, ...] = (0, 1)
    groups: tuple[int, ...] | None = None

    def modules(self) -> dict[str, list[int]]:
        """The modules of W_O, and the layers that each one is, in the order in which they run."""
        found: dict[str, list[int]] = {}
        for layer, number in zip(self.layers, self.groups or self.layers, strict=True):
            found.setdefault(self.projection.format(number), []).append(layer)
        return found


@dataclass(frozen=True)
class Family:
    """A family's small language model.

    Attributes:
        model_type: its name in transformers.
        config: its sizes.
        stacks: by the name of the stack.
        masked: whether it predicts a masked token.
        dtype: float64 unless its code knows float32 only.
    """

    model_type: str
    config: dict[str, Any]
    stacks: dict[str, Stack]
    masked: bool = False
    dtype: torch.dtype = torch.float64

    @property
    def decodes(self) -> bool:
        """Whether it has an encoder and a decoder."""
        return "cross" in self.stacks

    @property
    def model_class(self) -> Any:
        """Its class in transformers."""
        kind = "MASKED_LM" if self.masked else "SEQ_TO_SEQ_CAUSAL_LM" if self.decodes else "CAUSAL_LM"
        names = getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES")
        return getattr(transformers, names[self.model_type])


FAMILIES: dict[str, Family] = {}


def heads_in(config: dict[str, Any]) -> int:
    """The number of query heads that a configuration names."""
    names = (
        "num_attention_heads n_head n_heads attention_heads num_heads decoder_attention_heads".split()
    )
    return next(config[name] for name in names if name in config)


def causal(
    names: str, config: dict[str, Any], projection: str, layers: tuple[int, ...] = (0, 1), **more: Any
) -> None:
    """Add families that predict the next token; what follows the first word of a name is its variant."""
    for name in names.split(", "):
        stacks = {"self": Stack(projection, heads_in(config), layers)}
        FAMILIES[name] = Family(name.split()[0], config, stacks, **more)


def masked(names: str, projection: str, config: dict[str, Any] = BERT) -> None:
    """Add families that predict a masked token."""
    layers = tuple(range(config.get("num_hidden_layers", 2)))
    for name in names.split():
        stacks = {"self": Stack(projection, heads_in(config), layers)}
        FAMILIES[name] = Family(name, config, stacks, masked=True)


def decoding(
    names: str, config: dict[str, Any], encoder: str, decoder: str, cross: str, *n_layer: int
) -> None:
    """Add families that have an encoder and a decoder, of two numbers of layers."""
    own, others = config.get("encoder_attention_heads", heads_in(config)), heads_in(config)
    of_encoder, of_decoder = (tuple(range(n)) for n in n_layer)
    for name in names.split():
        stacks = {
            "encoder": Stack(encoder, own, of_encoder),
            "decoder": Stack(decoder, others, of_decoder),
            "cross": Stack(cross, others, of_decoder),
        }
        FAMILIES[name] = Family(name, config, stacks)


# GPT and what followed.

SERIAL = {**BERT, "use_parallel_residual": False}
CODEGEN = {**GPT, "n_embd": 32, "n_head": 4, "rotary_dim": 4}
XGLM = {"vocab_size": 50, "d_model": 24, "ffn_dim": 20, "num_layers": 2, "attention_heads": 3}
XGLM["max_position_embeddings"] = 32
causal("gpt2, gpt_bigcode, openai-gpt", GPT, GPT_OUT)
causal("gpt_bigcode multi-head", {**GPT, "multi_query": False}, GPT_OUT)
causal("ctrl", {**GPT, "dff": 20}, "transformer.h.{}.multi_head_attention.dense")
causal("gpt_neox", BERT, "gpt_neox.layers.{}.attention.dense")
causal("gpt_neox serial", SERIAL, "gpt_neox.layers.{}.attention.dense")
causal("gptj", {**GPT, "rotary_dim": 4}, "transformer.h.{}.attn.out_proj")
causal("codegen", CODEGEN, "transformer.h.{}.attn.out_proj")
causal("gpt_neo", SHARED["gpt_neo"], "transformer.h.{}.attn.attention.out_proj")
causal("opt", SHARED["opt"], OPT_OUT)
for kind in ("bloom", "falcon", "falcon multi-query", "falcon multi-head"):
    causal(kind, SHARED[kind], "transformer.h.{}.self_attention.dense")
causal("mpt", SHARED["mpt"], "transformer.blocks.{}.attn.out_proj")
causal("persimmon", SHARED["persimmon"], "model.layers.{}.self_attn.dense")
causal("biogpt", BERT, "biogpt.layers.{}.self_attn.out_proj")
causal("xglm", XGLM, OUT_PROJ, dtype=torch.float32)  # its mask is float32
causal("phi", NARROW, "model.layers.{}.self_attn.dense")
causal("phi3", SHARED["phi3"], LLAMA_OUT)
causal("modernbert-decoder", {**BERT, "pad_token_id": 0}, "model.layers.{}.attn.Wo")
causal("bert decoder", {**BERT, "is_decoder": True}, f"bert.{BERT_OUT}")
causal("bart decoder", BART, OPT_OUT, (0, 1, 2))
causal("opt projected", {**SHARED["opt"], "word_embed_proj_dim": 12}, OPT_OUT)
causal("opt post-norm", {**SHARED["opt"], "do_layer_norm_before": False}, OPT_OUT)

# Llama and what followed.

GRANITE = {"residual_multiplier": 0.3, "embedding_multiplier": 2.0, "logits_scaling": 1.5}
GRANITE["attention_multiplier"] = 0.2
FOUR = {"num_hidden_layers": 4}
LAYERED = {
    **LLAMA,
    **FOUR,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "vocab_size_per_layer_input": 50,
    "hidden_size_per_layer_input": 6,
}
GEMMA_3N = {  # its last two layers read the keys and values of the first two
    **LAYERED,
    "num_kv_shared_layers": 2,
    "laurel_rank": 4,
    "intermediate_size": [28] * 4,
    "activation_sparsity_pattern": [0.0] * 4,
}
causal(
    "llama, mistral, qwen2, qwen3, gemma, gemma2, gemma3_text, olmo, olmo2, olmo3, smollm3, cohere, cohere2,"
    " arcee, apertus, ernie4_5, seed_oss, glm, glm4, exaone4, nemotron, hunyuan_v1_dense, vaultgemma,"
    " diffllama, doge, cwm",
    LLAMA,
    LLAMA_OUT,
)
causal("granite", {**LLAMA, **GRANITE}, LLAMA_OUT)
causal("stablelm, starcoder2, helium, bitnet", NARROW, LLAMA_OUT)
causal("nanochat", {**NARROW, "num_key_value_heads": 6}, LLAMA_OUT)
causal("mistral sliding, gemma2 sliding, cohere2 sliding", {**LLAMA, "sliding_window": 3}, LLAMA_OUT)
FAMILIES["gemma3"] = Family(
    "gemma3", SHARED["gemma3"], {"text": Stack("model.language_model.layers.{}.self_attn.o_proj", 6)}
)
causal("gemma3n_text", GEMMA_3N, LLAMA_OUT, (0, 1, 2, 3))
causal("gemma4_text", {**LAYERED, "per_layer_config": None}, LLAMA_OUT, (0, 1, 2, 3))
causal("hrm_text", LLAMA, "model.L_module.layers.{}.self_attn.o_proj")

# Mixtures of experts.

CHUNKS = {"attention_chunk_size": 3, "no_rope_layers": [1, 1, 1, 0]}
causal(
    "mixtral, gpt_oss, qwen2_moe, qwen3_moe, granitemoe, granitemoeshared, phimoe, glm4_moe, dots1,"
    " flex_olmo, afmoe, ernie4_5_moe, minimax_m2, llama4_text",
    {**LLAMA, **EXPERTS},
    LLAMA_OUT,
)
causal("llama4_text chunks", {**LLAMA, **EXPERTS, **FOUR, **CHUNKS}, LLAMA_OUT, (0, 1, 2, 3))
causal("olmoe", {**NARROW, **EXPERTS}, LLAMA_OUT)
causal("deepseek_v2, deepseek_v3, minicpm3, youtu", LATENT, LLAMA_OUT)

# Hybrids: some layers attend.

LINEAR = {"linear_key_head_dim": 4, "linear_value_head_dim": 4, "linear_num_key_heads": 2}
HALF_LINEAR = ["linear_attention", "full_attention"] * 2
MAMBA = {"mamba_n_heads": 4, "mamba_d_state": 4, "mamba_d_head": "auto", "mamba_n_groups": 1}
GRANITE_HYBRID = {
    **NARROW,
    **MAMBA,
    **EXPERTS,
    "num_hidden_layers": 3,
    "layer_types": ["mamba", "attention", "mamba"],
    "shared_intermediate_size": 20,
}
FALCON_H1 = {"mamba_n_heads": 4, "mamba_d_ssm": 32, "mamba_d_head": 8, "mamba_d_state": 4}
ZAMBA = {
    **{key: size for key, size in NARROW.items() if key != "head_dim"},
    **FOUR,
    "num_key_value_heads": 6,
    "layers_block_type": ["linear_attention", "hybrid"] * 2,
    "mamba_d_state": 4,
    "attention_hidden_size": 96,  # it attends to the states and to the embeddings beside each other
    "attention_head_dim": 16,
    "use_mamba_kernels": False,
}
ZAMBA_2 = {"n_mamba_heads": 4, "mamba_headdim": 24, "mamba_ngroups": 1, "chunk_size": 4}
MINIMAX = {
    **LLAMA,
    **EXPERTS,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "block_size": 4,
}
OLMO_HYBRID = {**NARROW, **FOUR, **LINEAR, "num_key_value_heads": 6, "layer_types": HALF_LINEAR}
NEMOTRON_H = {
    **LLAMA,
    **EXPERTS,
    **FOUR,
    "layers_block_type": ["linear_attention", "full_attention", "mlp", "full_attention"],
    "mamba_num_heads": 4,
    "mamba_head_dim": 8,
    "ssm_state_size": 4,
    "n_groups": 1,
    "chunk_size": 4,
    "use_mamba_kernels": False,
}
LFM_2_MOE = {**NARROW, **EXPERTS, **FOUR, "layer_types": ["conv", "full_attention"] * 2}
BAMBA = {**NARROW, **MAMBA, "num_hidden_layers": 3, "attn_layer_indices": [1]}
RECURRENT_GEMMA = {**NARROW, "lru_width": 48, "num_hidden_layers": 3}
causal("lfm2", SHARED["lfm2"], OUT_PROJ, (1, 3))
causal("jamba", SHARED["jamba"], LLAMA_OUT, (1, 3))
causal("qwen3_next", SHARED["qwen3_next"], LLAMA_OUT, (3,))
causal("qwen3_5_text", {**LLAMA, **FOUR, **LINEAR, "linear_num_value_heads": 4}, LLAMA_OUT, (3,))
causal("bamba", BAMBA, LLAMA_OUT, (1,))
causal("granitemoehybrid", GRANITE_HYBRID, LLAMA_OUT, (1,))
causal("falcon_h1", {**LLAMA, **FALCON_H1}, LLAMA_OUT)
causal(
    "zamba",
    {**ZAMBA, "n_mamba_heads": 2, "mamba_dt_rank": 4},
    "model.layers.{}.shared_transf.self_attn.o_proj",
    (1, 3),
)
causal("zamba2", {**ZAMBA, **ZAMBA_2}, "model.layers.{}.shared_transformer.self_attn.o_proj", (1, 3))
causal("minimax", MINIMAX, LLAMA_OUT, (1,))
causal("olmo_hybrid", {**OLMO_HYBRID, "linear_num_value_heads": 2}, LLAMA_OUT, (1, 3))
causal("nemotron_h", NEMOTRON_H, "model.layers.{}.mixer.o_proj", (1, 3))
causal("lfm2_moe", LFM_2_MOE, OUT_PROJ, (1, 3))
causal("recurrent_gemma", RECURRENT_GEMMA, "model.layers.{}.temporal_block.o_proj", (2,))

# Encoders.

ESM = {**BERT, "mask_token_id": 2, "pad_token_id": 0, "position_embedding_type": "rotary"}
MOBILE = {"hidden_size": 60, "embedding_size": 24, "intra_bottleneck_size": 12}
for own, names in {
    "bert": "bert megatron-bert big_bird",
    "roberta": "roberta xlm-roberta camembert xlm-roberta-xl",
    "roberta_prelayernorm": "roberta-prelayernorm",
    "deberta": "deberta deberta-v2",
    "data2vec_text": "data2vec-text",
}.items():
    masked(names, f"{own}.{BERT_OUT}")
for (
    own
) in "electra ernie roformer rembert ibert layoutlm convbert nystromformer longformer yoso".split():
    masked(own, f"{own}.{BERT_OUT}")
masked("distilbert", "distilbert.transformer.layer.{}.attention.out_lin", SHARED["distilbert"])
masked("esm", f"esm.{BERT_OUT}", ESM)
masked("mpnet", "mpnet.encoder.layer.{}.attention.attn.o")
masked("modernbert", "model.layers.{}.attn.Wo", SHARED["modernbert"])
masked("mobilebert", f"mobilebert.{BERT_OUT}", {**SHARED["mobilebert"], **MOBILE})
masked("xlm", "transformer.attentions.{}.out_lin", SHARED["xlm"])
masked("nomic_bert", "nomic_bert.layers.{}.self_attn.o_proj")
masked("eurobert", "model.layers.{}.self_attn.o_proj", {**BERT, "pad_token_id": 0})
ALBERT_OUT = "albert.encoder.albert_layer_groups.{}.albert_layers.0.attention.dense"
ALBERT = {"self": Stack(ALBERT_OUT, 3, (0, 1, 2, 3, 4), groups=(0, 0, 0, 1, 1))}
FAMILIES["albert"] = Family("albert", SHARED["albert"], ALBERT, masked=True)

# Encoders and decoders.

decoding(
    "bart mbart marian m2m_100 pegasus blenderbot blenderbot-small mvp plbart",
    BART,
    "model.encoder.layers.{}.self_attn.out_proj",
    "model.decoder.layers.{}.self_attn.out_proj",
    "model.decoder.layers.{}.encoder_attn.out_proj",
    *(2, 3),
)
decoding(
    "t5 mt5 umt5 switch_transformers",
    {**T5, "decoder_start_token_id": 0},
    "encoder.block.{}.layer.0.SelfAttention.o",
    "decoder.block.{}.layer.0.SelfAttention.o",
    "decoder.block.{}.layer.1.EncDecAttention.o",
    *(2, 4),
)

SOFT_CAPS = dict.fromkeys(("gemma2", "gemma2 sliding", "vaultgemma", "recurrent_gemma"), 30.0)
SOFT_CAPS["nanochat"] = 15.0
"""Families whose logits are capped in the end: c · tanh(logit / c)."""


def build(name: str, kind: Any = None, **more: Any) -> transformers.PreTrainedModel:
    """A family's small language model with random weights, large enough for every head to matter.

    Args:
        name: the family.
        kind: another class than that of its language model.
        more: further fields of its configuration.
    """
    family = FAMILIES[name]
    torch.manual_seed(0)
    config = AutoConfig.for_model(family.model_type, **{**family.config, **more})
    model = (kind or family.model_class)(config).to(family.dtype).eval()
    if model._can_set_experts_implementation():
        model.set_experts_implementation("eager")  # the others do not know float64
    drawing = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=drawing, dtype=torch.float64)
        with torch.no_grad():
            if parameter.dim() > 1:
                parameter.copy_(drawn * 0.3)
            else:  # norms keep about the size that they have in the beginning
                parameter.copy_(torch.nan_to_num(parameter.double()) + drawn * 0.1)
    return model


def words() -> PreTrainedTokenizerFast:
    """A tokenizer of the words w3, w4, …, whose numbers are their ids; it adds no token to a text."""
    special = ["<unk>", "<s>", "</s>"]
    numbers = {word: n for n, word in enumerate([*special, *(f"w{n}" for n in range(3, 50))])}
    table = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    table.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    roles = dict(zip(("unk_token", "bos_token", "eos_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=table, pad_token="<unk>", **roles)
