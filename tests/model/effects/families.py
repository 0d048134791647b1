"""Small language models of many families, and for each stack the module of its W_O, named by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, PreTrainedTokenizerFast

from tests.model.run.families import BART, BERT, GPT, LLAMA, NARROW, T5
from tests.model.run.families import FAMILIES as SHARED

EXPERTS = {
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 12,
    "num_shared_experts": 1,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
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
        class_name: its class in transformers.
        model_type: its name there.
        config: its sizes.
        stacks: by the name of the stack.
        masked: whether it predicts a masked token.
        dtype: float64 unless its code knows float32 only.
    """

    class_name: str
    model_type: str
    config: dict[str, Any]
    stacks: dict[str, Stack]
    masked: bool = False
    dtype: torch.dtype = torch.float64

    @property
    def decodes(self) -> bool:
        """Whether it has an encoder and a decoder."""
        return "cross" in self.stacks


FAMILIES: dict[str, Family] = {}


def causal(
    name: str,
    class_name: str,
    config: dict[str, Any],
    projection: str,
    n_head: int,
    layers: tuple[int, ...] = (0, 1),
    **more: Any,
) -> None:
    """Add a family that predicts the next token."""
    stacks = {"self": Stack(projection, n_head, layers)}
    FAMILIES[name] = Family(class_name, name.split()[0], config, stacks, **more)


def masked(name: str, class_name: str, projection: str, config: dict[str, Any] | None = None) -> None:
    """Add a family that predicts a masked token."""
    layers = tuple(range((config or BERT).get("num_hidden_layers", 2)))
    stacks = {"self": Stack(projection, 3, layers)}
    FAMILIES[name] = Family(class_name, name, config or BERT, stacks, masked=True)


def decoding(
    name: str, class_name: str, encoder: str, decoder: str, cross: str, config: dict[str, Any] = BART
) -> None:
    """Add a family that has an encoder and a decoder."""
    heads, layers = ((3, 4), (2, 3)) if "d_kv" not in config else ((3, 3), (2, 4))
    stacks = {
        "encoder": Stack(encoder, heads[0], tuple(range(layers[0]))),
        "decoder": Stack(decoder, heads[1], tuple(range(layers[1]))),
        "cross": Stack(cross, heads[1], tuple(range(layers[1]))),
    }
    FAMILIES[name] = Family(class_name, name, config, stacks)


# GPT and what followed.

causal("gpt2", "GPT2LMHeadModel", GPT, GPT_OUT, 3)
causal("gpt_bigcode", "GPTBigCodeForCausalLM", GPT, GPT_OUT, 3)
causal("gpt_bigcode multi-head", "GPTBigCodeForCausalLM", {**GPT, "multi_query": False}, GPT_OUT, 3)
causal("openai-gpt", "OpenAIGPTLMHeadModel", GPT, GPT_OUT, 3)
causal("ctrl", "CTRLLMHeadModel", {**GPT, "dff": 20}, "transformer.h.{}.multi_head_attention.dense", 3)
causal("gpt_neox", "GPTNeoXForCausalLM", BERT, "gpt_neox.layers.{}.attention.dense", 3)
causal(
    "gpt_neox serial",
    "GPTNeoXForCausalLM",
    {**BERT, "use_parallel_residual": False},
    "gpt_neox.layers.{}.attention.dense",
    3,
)
causal("gptj", "GPTJForCausalLM", {**GPT, "rotary_dim": 4}, "transformer.h.{}.attn.out_proj", 3)
causal(
    "codegen",
    "CodeGenForCausalLM",
    {**GPT, "n_embd": 32, "n_head": 4, "rotary_dim": 4},
    "transformer.h.{}.attn.out_proj",
    4,
)
causal("gpt_neo", "GPTNeoForCausalLM", SHARED["gpt_neo"], "transformer.h.{}.attn.attention.out_proj", 3)
causal("opt", "OPTForCausalLM", SHARED["opt"], "model.decoder.layers.{}.self_attn.out_proj", 3)
causal("bloom", "BloomForCausalLM", SHARED["bloom"], "transformer.h.{}.self_attention.dense", 3)
for kind, n_head in (("falcon", 6), ("falcon multi-query", 3), ("falcon multi-head", 3)):
    causal(kind, "FalconForCausalLM", SHARED[kind], "transformer.h.{}.self_attention.dense", n_head)
causal("mpt", "MptForCausalLM", SHARED["mpt"], "transformer.blocks.{}.attn.out_proj", 3)
causal("persimmon", "PersimmonForCausalLM", SHARED["persimmon"], "model.layers.{}.self_attn.dense", 3)
causal("biogpt", "BioGptForCausalLM", BERT, "biogpt.layers.{}.self_attn.out_proj", 3)
causal(
    "xglm",
    "XGLMForCausalLM",
    {
        "vocab_size": 50,
        "d_model": 24,
        "ffn_dim": 20,
        "num_layers": 2,
        "attention_heads": 3,
        "max_position_embeddings": 32,
    },
    "model.layers.{}.self_attn.out_proj",
    3,
    dtype=torch.float32,  # its mask is float32
)
causal("phi", "PhiForCausalLM", NARROW, "model.layers.{}.self_attn.dense", 6)
causal("phi3", "Phi3ForCausalLM", SHARED["phi3"], LLAMA_OUT, 6)
causal(
    "modernbert-decoder",
    "ModernBertDecoderForCausalLM",
    {**BERT, "pad_token_id": 0},
    "model.layers.{}.attn.Wo",
    3,
)

causal("bert decoder", "BertLMHeadModel", {**BERT, "is_decoder": True}, f"bert.{BERT_OUT}", 3)
causal(
    "bart decoder", "BartForCausalLM", BART, "model.decoder.layers.{}.self_attn.out_proj", 4, (0, 1, 2)
)
for kind, config in {
    "opt projected": {"word_embed_proj_dim": 12},
    "opt post-norm": {"do_layer_norm_before": False},
}.items():
    config = {**SHARED["opt"], **config}
    causal(kind, "OPTForCausalLM", config, "model.decoder.layers.{}.self_attn.out_proj", 3)

# Llama and what followed.

for name, class_name in {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "olmo": "OlmoForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "cohere": "CohereForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "arcee": "ArceeForCausalLM",
    "apertus": "ApertusForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "glm": "GlmForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "nemotron": "NemotronForCausalLM",
    "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
    "vaultgemma": "VaultGemmaForCausalLM",
    "diffllama": "DiffLlamaForCausalLM",
    "doge": "DogeForCausalLM",
    "cwm": "CwmForCausalLM",
}.items():
    causal(name, class_name, LLAMA, LLAMA_OUT, 6)
causal(
    "granite",
    "GraniteForCausalLM",
    {
        **LLAMA,
        "residual_multiplier": 0.3,
        "embedding_multiplier": 2.0,
        "logits_scaling": 1.5,
        "attention_multiplier": 0.2,
    },
    LLAMA_OUT,
    6,
)
for name, class_name in {
    "stablelm": "StableLmForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
    "helium": "HeliumForCausalLM",
    "bitnet": "BitNetForCausalLM",
}.items():
    causal(name, class_name, NARROW, LLAMA_OUT, 6)
causal("nanochat", "NanoChatForCausalLM", {**NARROW, "num_key_value_heads": 6}, LLAMA_OUT, 6)

for kind, class_name in {
    "mistral": "MistralForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
}.items():
    causal(f"{kind} sliding", class_name, {**LLAMA, "sliding_window": 3}, LLAMA_OUT, 6)
FAMILIES["gemma3"] = Family(
    "Gemma3ForConditionalGeneration",
    "gemma3",
    SHARED["gemma3"],
    {"text": Stack("model.language_model.layers.{}.self_attn.o_proj", 6)},
)

LAYERED = {
    **LLAMA,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "vocab_size_per_layer_input": 50,
    "hidden_size_per_layer_input": 6,
}
causal(
    "gemma3n_text",  # its last two layers read the keys and values of the first two
    "Gemma3nForCausalLM",
    {
        **LAYERED,
        "num_kv_shared_layers": 2,
        "laurel_rank": 4,
        "intermediate_size": [28] * 4,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    LLAMA_OUT,
    6,
    (0, 1, 2, 3),
)
causal(
    "gemma4_text", "Gemma4ForCausalLM", {**LAYERED, "per_layer_config": None}, LLAMA_OUT, 6, (0, 1, 2, 3)
)
causal("hrm_text", "HrmTextForCausalLM", LLAMA, "model.L_module.layers.{}.self_attn.o_proj", 6)

# Mixtures of experts.

for name, class_name in {
    "mixtral": "MixtralForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "granitemoeshared": "GraniteMoeSharedForCausalLM",
    "phimoe": "PhimoeForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "dots1": "Dots1ForCausalLM",
    "flex_olmo": "FlexOlmoForCausalLM",
    "afmoe": "AfmoeForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
}.items():
    causal(name, class_name, {**LLAMA, **EXPERTS}, LLAMA_OUT, 6)
causal(
    "llama4_text chunks",
    "Llama4ForCausalLM",
    {
        **LLAMA,
        **EXPERTS,
        "num_hidden_layers": 4,
        "attention_chunk_size": 3,
        "no_rope_layers": [1, 1, 1, 0],
    },
    LLAMA_OUT,
    6,
    (0, 1, 2, 3),
)
causal("olmoe", "OlmoeForCausalLM", {**NARROW, **EXPERTS}, LLAMA_OUT, 6)
for name, class_name in {
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "minicpm3": "MiniCPM3ForCausalLM",
    "youtu": "YoutuForCausalLM",
}.items():
    causal(name, class_name, LATENT, LLAMA_OUT, 6)

# Hybrids: some layers attend.

causal("lfm2", "Lfm2ForCausalLM", SHARED["lfm2"], "model.layers.{}.self_attn.out_proj", 6, (1, 3))
causal("jamba", "JambaForCausalLM", SHARED["jamba"], LLAMA_OUT, 6, (1, 3))
causal("qwen3_next", "Qwen3NextForCausalLM", SHARED["qwen3_next"], LLAMA_OUT, 6, (3,))
causal(
    "qwen3_5_text",
    "Qwen3_5ForCausalLM",
    {
        **LLAMA,
        "num_hidden_layers": 4,
        "linear_key_head_dim": 4,
        "linear_value_head_dim": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    },
    LLAMA_OUT,
    6,
    (3,),
)
MAMBA = {"mamba_n_heads": 4, "mamba_d_state": 4, "mamba_d_head": "auto", "mamba_n_groups": 1}
causal(
    "bamba",
    "BambaForCausalLM",
    {**NARROW, **MAMBA, "num_hidden_layers": 3, "attn_layer_indices": [1]},
    LLAMA_OUT,
    6,
    (1,),
)
causal(
    "granitemoehybrid",
    "GraniteMoeHybridForCausalLM",
    {
        **NARROW,
        **MAMBA,
        **EXPERTS,
        "num_hidden_layers": 3,
        "layer_types": ["mamba", "attention", "mamba"],
        "shared_intermediate_size": 20,
    },
    LLAMA_OUT,
    6,
    (1,),
)
causal(
    "falcon_h1",
    "FalconH1ForCausalLM",
    {**LLAMA, "mamba_n_heads": 4, "mamba_d_ssm": 32, "mamba_d_head": 8, "mamba_d_state": 4},
    LLAMA_OUT,
    6,
)

NO_HEAD_DIM = {key: size for key, size in NARROW.items() if key != "head_dim"}
ZAMBA = {
    **NO_HEAD_DIM,
    "num_key_value_heads": 6,
    "num_hidden_layers": 4,
    "layers_block_type": ["linear_attention", "hybrid"] * 2,
    "mamba_d_state": 4,
    "attention_hidden_size": 96,  # it attends to the states and to the embeddings beside each other
    "attention_head_dim": 16,
    "use_mamba_kernels": False,
}
causal(
    "zamba",
    "ZambaForCausalLM",
    {**ZAMBA, "n_mamba_heads": 2, "mamba_dt_rank": 4},
    "model.layers.{}.shared_transf.self_attn.o_proj",
    6,
    (1, 3),
)
causal(
    "zamba2",
    "Zamba2ForCausalLM",
    {**ZAMBA, "n_mamba_heads": 4, "mamba_headdim": 24, "mamba_ngroups": 1, "chunk_size": 4},
    "model.layers.{}.shared_transformer.self_attn.o_proj",
    6,
    (1, 3),
)
causal(
    "minimax",
    "MiniMaxForCausalLM",
    {
        **LLAMA,
        **EXPERTS,
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "block_size": 4,
    },
    LLAMA_OUT,
    6,
    (1,),
)
causal(
    "olmo_hybrid",
    "OlmoHybridForCausalLM",
    {
        **NARROW,
        "num_key_value_heads": 6,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 4,
        "linear_value_head_dim": 4,
    },
    LLAMA_OUT,
    6,
    (1, 3),
)
causal(
    "nemotron_h",
    "NemotronHForCausalLM",
    {
        **LLAMA,
        **EXPERTS,
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "full_attention", "mlp", "full_attention"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "ssm_state_size": 4,
        "n_groups": 1,
        "chunk_size": 4,
        "use_mamba_kernels": False,
    },
    "model.layers.{}.mixer.o_proj",
    6,
    (1, 3),
)
causal(
    "lfm2_moe",
    "Lfm2MoeForCausalLM",
    {**NARROW, **EXPERTS, "num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2},
    "model.layers.{}.self_attn.out_proj",
    6,
    (1, 3),
)
causal(
    "recurrent_gemma",
    "RecurrentGemmaForCausalLM",
    {**NARROW, "lru_width": 48, "num_hidden_layers": 3},
    "model.layers.{}.temporal_block.o_proj",
    6,
    (2,),
)

# Encoders.

for name, class_name, own in (
    ("bert", "BertForMaskedLM", "bert"),
    ("roberta", "RobertaForMaskedLM", "roberta"),
    ("electra", "ElectraForMaskedLM", "electra"),
    ("xlm-roberta", "XLMRobertaForMaskedLM", "roberta"),
    ("camembert", "CamembertForMaskedLM", "roberta"),
    ("ernie", "ErnieForMaskedLM", "ernie"),
    ("deberta", "DebertaForMaskedLM", "deberta"),
    ("deberta-v2", "DebertaV2ForMaskedLM", "deberta"),
    ("roformer", "RoFormerForMaskedLM", "roformer"),
    ("rembert", "RemBertForMaskedLM", "rembert"),
    ("data2vec-text", "Data2VecTextForMaskedLM", "data2vec_text"),
    ("megatron-bert", "MegatronBertForMaskedLM", "bert"),
    ("ibert", "IBertForMaskedLM", "ibert"),
    ("roberta-prelayernorm", "RobertaPreLayerNormForMaskedLM", "roberta_prelayernorm"),
    ("xlm-roberta-xl", "XLMRobertaXLForMaskedLM", "roberta"),
    ("layoutlm", "LayoutLMForMaskedLM", "layoutlm"),
    ("convbert", "ConvBertForMaskedLM", "convbert"),
    ("nystromformer", "NystromformerForMaskedLM", "nystromformer"),
    ("big_bird", "BigBirdForMaskedLM", "bert"),
    ("longformer", "LongformerForMaskedLM", "longformer"),
    ("yoso", "YosoForMaskedLM", "yoso"),
):
    masked(name, class_name, f"{own}.{BERT_OUT}")
masked(
    "distilbert",
    "DistilBertForMaskedLM",
    "distilbert.transformer.layer.{}.attention.out_lin",
    SHARED["distilbert"],
)
masked(
    "esm",
    "EsmForMaskedLM",
    f"esm.{BERT_OUT}",
    {**BERT, "mask_token_id": 2, "pad_token_id": 0, "position_embedding_type": "rotary"},
)
masked("mpnet", "MPNetForMaskedLM", "mpnet.encoder.layer.{}.attention.attn.o")
masked("modernbert", "ModernBertForMaskedLM", "model.layers.{}.attn.Wo", SHARED["modernbert"])
masked(
    "mobilebert",
    "MobileBertForMaskedLM",
    "mobilebert.encoder.layer.{}.attention.output.dense",
    {**SHARED["mobilebert"], "hidden_size": 60, "embedding_size": 24, "intra_bottleneck_size": 12},
)
masked("xlm", "XLMWithLMHeadModel", "transformer.attentions.{}.out_lin", SHARED["xlm"])
masked("nomic_bert", "NomicBertForMaskedLM", "nomic_bert.layers.{}.self_attn.o_proj")
masked(
    "eurobert", "EuroBertForMaskedLM", "model.layers.{}.self_attn.o_proj", {**BERT, "pad_token_id": 0}
)
FAMILIES["albert"] = Family(
    "AlbertForMaskedLM",
    "albert",
    SHARED["albert"],
    {
        "self": Stack(
            "albert.encoder.albert_layer_groups.{}.albert_layers.0.attention.dense",
            3,
            (0, 1, 2, 3, 4),
            groups=(0, 0, 0, 1, 1),
        )
    },
    masked=True,
)

# Encoders and decoders.

for name, class_name in {
    "bart": "BartForConditionalGeneration",
    "mbart": "MBartForConditionalGeneration",
    "marian": "MarianMTModel",
    "m2m_100": "M2M100ForConditionalGeneration",
    "pegasus": "PegasusForConditionalGeneration",
    "blenderbot": "BlenderbotForConditionalGeneration",
    "blenderbot-small": "BlenderbotSmallForConditionalGeneration",
    "mvp": "MvpForConditionalGeneration",
    "plbart": "PLBartForConditionalGeneration",
}.items():
    decoding(
        name,
        class_name,
        "model.encoder.layers.{}.self_attn.out_proj",
        "model.decoder.layers.{}.self_attn.out_proj",
        "model.decoder.layers.{}.encoder_attn.out_proj",
    )
for name, class_name in {
    "t5": "T5ForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration",
    "umt5": "UMT5ForConditionalGeneration",
    "switch_transformers": "SwitchTransformersForConditionalGeneration",
}.items():
    decoding(
        name,
        class_name,
        "encoder.block.{}.layer.0.SelfAttention.o",
        "decoder.block.{}.layer.0.SelfAttention.o",
        "decoder.block.{}.layer.1.EncDecAttention.o",
        {**T5, "decoder_start_token_id": 0},
    )


SOFT_CAPS = {
    "gemma2": 30.0,
    "gemma2 sliding": 30.0,
    "vaultgemma": 30.0,
    "nanochat": 15.0,
    "recurrent_gemma": 30.0,
}
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
    model = (kind or getattr(transformers, family.class_name))(config).to(family.dtype).eval()
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
