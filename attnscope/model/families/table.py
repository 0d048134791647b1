"""What attnscope knows of model types beside what `families.json` says of their classes.

To add a model type, add it to the row of a type that is like it, or give it a row. What a configuration
or the names of a checkpoint's tensors say is read there instead.
"""

from __future__ import annotations

from typing import Any

from attnscope.model.families.family import (
    Architecture,
    DraftSpec,
    Experts,
    Family,
    Formula,
    Spec,
    States,
    WindowRule,
)

PAIRS = "its rotary positions, which pair neighbouring numbers"
ALIBI = "its linear position biases (ALiBi)"
BIAS = "its relative position bias"

BIDIRECTIONAL, CAUSAL, ROTARY = Formula(), Formula(causal=True), Formula(causal=True, rotary=True)
PARTLY_ROTATED = ROTARY._replace(fields=("partial_rotary_factor|rotary_pct|rope_parameters",))
ALL_WINDOWS = ROTARY._replace(windows="all", fields=("sliding_window",))
WINDOWS_BY_KIND = ROTARY._replace(windows="kinds")
MULTIPLIED = ROTARY._replace(fields=("attention_multiplier",))
"""What attention computes, from the modules of transformers."""

BIASED: dict[str, Any] = {"qkv_bias": "attention_bias", "o_bias": "attention_bias"}
LLAMA_PARTS = Spec(**BIASED, mlp_bias="mlp_bias")
DEEPSEEK_EXPERTS = Experts(shared="n_shared_experts", dense="first_k_dense_replace")

ROWS = {
    "albert distilbert": Family(formula=BIDIRECTIONAL, plain=True),
    "bert electra ernie rembert": Family(formula=BIDIRECTIONAL, plain=True, encoder=True),
    "bert-generation": Family(formula=BIDIRECTIONAL, encoder=True),
    "camembert roberta xlm-roberta": Family(
        formula=BIDIRECTIONAL, plain=True, encoder=True, positions_after_padding=True
    ),
    "data2vec-text roberta-prelayernorm": Family(
        formula=BIDIRECTIONAL, encoder=True, positions_after_padding=True
    ),
    """
        deberta-v2 layoutlm siglip_text_model splinter bart blenderbot blenderbot-small m2m_100
        marian mbart pegasus plbart whisper beit blip_vision_model clip_vision_model deit dinov2
        dinov2_with_registers ijepa metaclip_2_vision_model siglip_vision_model vit vit_mae
        vit_msn data2vec-audio hubert sew unispeech unispeech-sat wav2vec2
    """: Family(formula=BIDIRECTIONAL),
    "markuplm": Family(formula=BIDIRECTIONAL, positions_after_padding=True),
    "mobilebert": Family(formula=BIDIRECTIONAL, layout="BERT: MobileBERT"),
    "xlm": Family(formula=BIDIRECTIONAL, undecided="its cache is not one of transformers' layers"),
    "biogpt clip_text_model imagegpt metaclip_2_text_model openai-gpt opt": Family(formula=CAUSAL),
    "gpt2": Family(
        formula=CAUSAL,
        parameters=Spec(
            norm_size=2,
            qkv_bias=True,
            o_bias=True,
            gated=False,
            mlp_bias=True,
            width="n_inner",
            four=True,
            tied=True,
            positions="n_positions",
        ),
    ),
    "gpt_bigcode": Family(formula=CAUSAL, layout="GPT-BigCode"),
    "jamba": Family(formula=CAUSAL, vllm_states=States(2)),
    "arcee": Family(formula=ROTARY, parameters=Spec(**BIASED, gated=False, mlp_bias="mlp_bias")),
    "falcon": Family(formula=ROTARY),
    "gemma": Family(formula=ROTARY, parameters=Spec(**BIASED, tied=True)),
    "lfm2": Family(formula=ROTARY, vllm_states=States(2)),
    "llama": Family(formula=ROTARY, parameters=LLAMA_PARTS),
    "olmo": Family(formula=ROTARY, parameters=Spec(norm_size=0, **BIASED)),
    "olmo2": Family(formula=ROTARY, parameters=Spec(head_norms="all", **BIASED)),
    "seed_oss": Family(
        formula=ROTARY,
        parameters=Spec(qkv_bias="attention_bias", o_bias="attention_out_bias", mlp_bias="mlp_bias"),
    ),
    "gpt_neox": Family(
        formula=PARTLY_ROTATED, parameters=Spec(norm_size=2, **BIASED, gated=False, mlp_bias=True)
    ),
    "persimmon phi stablelm": Family(formula=PARTLY_ROTATED),
    "mistral phi3": Family(formula=ALL_WINDOWS, parameters=Spec()),
    "mixtral": Family(formula=ALL_WINDOWS, parameters=Spec(experts=Experts(width="intermediate_size"))),
    "phimoe": Family(formula=ALL_WINDOWS),
    "starcoder2": Family(
        formula=ALL_WINDOWS,
        parameters=Spec(
            norm_size=2,
            qkv_bias="use_bias",
            o_bias="use_bias",
            gated=False,
            mlp_bias="use_bias",
            tied=True,
        ),
    ),
    "gpt_oss": Family(
        formula=WINDOWS_BY_KIND,
        parameters=Spec(
            **BIASED, sinks=True, experts=Experts(width="intermediate_size", router=1, biases=True)
        ),
    ),
    "ministral": Family(formula=WINDOWS_BY_KIND),
    "olmo3": Family(formula=WINDOWS_BY_KIND, parameters=Spec(head_norms="all", **BIASED)),
    "qwen2": Family(
        formula=WINDOWS_BY_KIND,
        window_is_optional=True,
        parameters=Spec(qkv_bias=True),
        vllm_one_window=True,
    ),
    "qwen2_moe": Family(
        formula=WINDOWS_BY_KIND,
        window_is_optional=True,
        parameters=Spec(
            qkv_bias="qkv_bias",
            experts=Experts(shared="shared_expert_intermediate_size", shared_gate=True),
        ),
    ),
    "qwen3": Family(
        formula=WINDOWS_BY_KIND,
        window_is_optional=True,
        parameters=Spec(head_norms="head", **BIASED),
        vllm_one_window=True,
    ),
    "qwen3_moe": Family(
        formula=WINDOWS_BY_KIND,
        window_is_optional=True,
        parameters=Spec(head_norms="head", **BIASED, experts=Experts()),
    ),
    "granite": Family(formula=MULTIPLIED, parameters=LLAMA_PARTS),
    "granitemoe granitemoeshared": Family(formula=MULTIPLIED),
    "cohere gptj": Family(formula=Formula(causal=True, missing=PAIRS), rotates="neighbours"),
    "bloom mpt": Family(formula=Formula(causal=True, missing=ALIBI)),
    "mt5 switch_transformers t5 umt5": Family(formula=Formula(scale=1.0, missing=BIAS)),
    "dinov3_vit": Family(formula=Formula(missing="its rotary positions in two dimensions")),
    "gemma2": Family(
        formula=WINDOWS_BY_KIND._replace(fields=("query_pre_attn_scalar", "attn_logit_softcapping")),
        period=2,
        parameters=Spec(norms=4, **BIASED, tied=True),
    ),
    "gemma3_text": Family(
        formula=WINDOWS_BY_KIND._replace(fields=("query_pre_attn_scalar",)),
        period=6,
        parameters=Spec(norms=4, head_norms="head", **BIASED, tied=True),
    ),
    "gpt_neo": Family(
        formula=Formula(
            causal=True, windows="local", scale=1.0, fields=("attention_types", "window_size")
        )
    ),
    "modernbert": Family(formula=Formula(rotary=True, windows="kinds", fields=("local_attention",))),
    "mpnet": Family(formula=Formula(missing=BIAS), positions_after_padding=True),
    "roformer": Family(formula=Formula(missing=PAIRS), encoder=True, rotates="neighbours"),
    "smollm3": Family(
        formula=WINDOWS_BY_KIND._replace(fields=("no_rope_layers",)), parameters=LLAMA_PARTS
    ),
    "rwkv xlstm": Family(attends=False, kind="linear_attention"),
    "mamba mamba2 falcon_mamba fnet poolformer resnet convnext convnextv2 regnet": Family(attends=False),
    "big_bird megatron-bert roc_bert": Family(encoder=True),
    "xlm-roberta-xl xmod": Family(encoder=True, positions_after_padding=True),
    "blt": Family(
        undecided="its local encoders and decoders have caches of their own", rotates="neighbours"
    ),
    "reformer": Family(undecided="it keeps hashes and buckets"),
    "unlimited_ocr": Family(undecided="what its reference layers keep is not described here"),
    "xlnet": Family(undecided="it keeps hidden states"),
    "falcon_h1": Family(kind="hybrid", vllm_states=States(3)),
    "qwen3_next": Family(
        period=4,
        period_field="full_attention_interval",
        other_kind="linear_attention",
        drafts_alike=True,
        vllm_states=States(2),
        layout="Qwen3-Next, Qwen3.5",
    ),
    "granitemoehybrid": Family(rotates_if=("position_embedding_type", "rope"), vllm_states=States(3)),
    "zamba2": Family(rotates_if=("use_mem_rope", True)),
    """
        codegen ernie4_5 ernie4_5_vl_moe_text glm helium llama4_text moonshine
        moonshine_streaming command-r ernie4_5-moe llama4
    """: Family(rotates="neighbours"),
    "cohere2": Family(
        rotates="neighbours", rotates_windows_alone=True, parameters=Spec(norms=1, **BIASED, tied=True)
    ),
    "cohere2_moe": Family(rotates="neighbours", rotates_windows_alone=True),
    "ernie4_5_moe": Family(rotates="neighbours", drafts_alike=True),
    "glm4": Family(rotates="neighbours", parameters=Spec(norms=4, qkv_bias="attention_bias")),
    "glm4v_text glm_ocr_text": Family(rotates="neighbours", axes=3),
    """
        baichuan deepseek exaone gemma3 glm4moe gpt-oss gptneox granitehybrid hunyuan-dense
        hunyuan-moe internlm2 minicpm minimax-m2 mistral3 modern-bert phi2 qwen2moe qwen2vl
        qwen3moe qwen3vl qwen3vlmoe
    """: Family(rotates="halves"),
    "starcoder": Family(rotates="none"),
    "exaone4": Family(rotates_windows_alone=True, parameters=Spec(head_norms="head")),
    "exaone-moe exaone_moe afmoe": Family(rotates_windows_alone=True),
    "qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text glm4v_moe_text paddleocr_vl_text": Family(axes=3),
    "longformer ibert esm luke layoutlmv3 led_text": Family(positions_after_padding=True),
    "bros": Family(needs="a text with a box for each token (bbox)"),
    "neomme": Family(values_again=True, layout="NeoMME"),
    "ministral3": Family(parameters=Spec()),
    "olmoe": Family(
        parameters=Spec(head_norms="all", **BIASED, experts=Experts(width="intermediate_size"))
    ),
    "deepseek_v2": Family(
        parameters=Spec(o_bias="attention_bias", mlp_bias="mlp_bias", experts=DEEPSEEK_EXPERTS)
    ),
    "deepseek_v3": Family(
        parameters=Spec(o_bias="attention_bias", experts=DEEPSEEK_EXPERTS),
        draft=DraftSpec(copies=2),
        drafts_alike=True,
    ),
    "glm4_moe": Family(
        parameters=Spec(
            head_norms="head", normed="use_qk_norm", qkv_bias="attention_bias", experts=DEEPSEEK_EXPERTS
        ),
        drafts_alike=True,
    ),
    "mimo": Family(draft=DraftSpec(), drafts_alike=True),
    "qwen3_5_text qwen3_5_moe_text": Family(
        drafts_alike=True, vllm_states=States(2, field="mamba_ssm_dtype"), layout="Qwen3-Next, Qwen3.5"
    ),
    "longcat_flash": Family(
        drafts_alike=True,
        no_heads="has two attention modules in each layer, but attnscope reads layers with one",
    ),
    "glm_moe_dsa deepseek_v32": Family(drafts_alike=True, engines_index=True),
    "kimi_linear": Family(vllm_states=States(2, dtype="float32")),
    "nemotron_h": Family(vllm_states=States(3, dtype="float32", field="mamba_ssm_cache_dtype")),
    "diffllama": Family(
        no_heads="computes differential attention: a head's values are those of two heads concatenated"
    ),
    "axk2": Family(
        no_heads="computes queries from two latents,"
        " and gates for the heads' outputs with the same matrix"
    ),
    "qwen3_5 qwen3_5_moe": Family(layout="Qwen3-Next, Qwen3.5"),
}
"""The model types of transformers, and llama.cpp's architectures, whose positions config.json does not
describe."""

FAMILIES = {name: family for names, family in ROWS.items() for name in names.split()}
UNKNOWN = Family()


def family_of(model_type: object) -> Family:
    """Look up what is known of a model type; if no row names it, what holds for most."""
    return FAMILIES.get(model_type, UNKNOWN) if isinstance(model_type, str) else UNKNOWN


IN_ORDER = "those of transformers"
"""Where Q, K and V are one matrix, llama.cpp's converter sorts it: queries, then keys, then values."""
ALTERNATING = "alternating"
"""The two halves of a head, which transformers rotates against each other, alternate:
`LlamaModel.permute` of llama.cpp."""
NEVER = WindowRule(None, n_layer=0)
"""No layer has a window in llama.cpp, whatever the file says."""

ARCHITECTURE_ROWS = {
    "afmoe": Architecture(windows=WindowRule(4, listed=False)),
    """
        apertus bloom ernie4_5 falcon gemma gpt2 mpt nemotron olmoe qwen2 qwen3 seed_oss
        stablelm starcoder2
    """: Architecture(rows=IN_ORDER),
    "arcee granite olmo smollm3": Architecture(rows=ALTERNATING),
    "arwkv7 kimi-linear qwen35 qwen35moe qwen3next rwkv6 rwkv6qwen2 rwkv7": Architecture(
        types="", linear=True
    ),
    "baichuan deepseek granitehybrid internlm2 minicpm": Architecture(types="", rows=ALTERNATING),
    "bert exaone lfm2 modern-bert": Architecture(types="", rows=IN_ORDER),
    "bitnet dbrx dots1 jais2 minicpm3": Architecture(),
    "chatglm": Architecture(types="glm"),
    "cohere2": Architecture(rows=IN_ORDER, windows=WindowRule(4, listed=False)),
    "cohere2moe": Architecture(types="cohere2_moe", windows=WindowRule(4, first=True)),
    "command-r": Architecture(types="cohere", rows=IN_ORDER),
    "deepseek2": Architecture(types="deepseek_v2 deepseek_v3 glm4_moe_lite youtu"),
    "ernie4_5-moe": Architecture(types="ernie4_5_moe", rows=IN_ORDER),
    "exaone-moe": Architecture(types="exaone_moe", rows=IN_ORDER, windows=WindowRule(4, 128)),
    "exaone4": Architecture(rows=IN_ORDER, windows=WindowRule(4, 4096, n_layer=64)),
    "gemma2": Architecture(rows=IN_ORDER, windows=WindowRule(2, 4096, listed=False)),
    "gemma3": Architecture(
        types="gemma3_text", rows=IN_ORDER, windows=WindowRule(6, listed=False), theta_of_windows=10000.0
    ),
    "gemma3n": Architecture(
        types="gemma3n_text", windows=WindowRule(5), theta_of_windows=10000.0, first_shared=20
    ),
    "gemma4": Architecture(types="gemma4_text gemma4_unified_text", windows=WindowRule(None)),
    "glm4": Architecture(types="glm4 glm4v_text"),
    "glm4moe": Architecture(types="glm4_moe glm4v_moe_text solar_open", rows=IN_ORDER),
    "gpt-oss": Architecture(types="gpt_oss", rows=IN_ORDER, windows=WindowRule(2, listed=False)),
    "gptneox": Architecture(types="gpt_neox", rows=IN_ORDER),
    "granite_swa": Architecture(types="granite_swa granitemoe_swa", windows=WindowRule(None)),
    "granitemoe": Architecture(types="granitemoe granitemoeshared", rows=ALTERNATING),
    "hunyuan-dense": Architecture(types="hunyuan_v1_dense", rows=IN_ORDER),
    "hunyuan-moe": Architecture(types="hunyuan_v1_moe", rows=IN_ORDER),
    "laguna": Architecture(windows=WindowRule(4, first=True, listed=False)),
    "llama": Architecture(types="internlm3 llama mistral mixtral", rows=ALTERNATING),
    "llama4": Architecture(
        types="llama4_text",
        rows=IN_ORDER,
        windows=WindowRule(4, 8192, fixed=True, kind="chunked", listed=False),
    ),
    "mellum": Architecture(windows=WindowRule(4)),
    "mimo2": Architecture(types="mimo_v2_flash", windows=WindowRule(None)),
    "minimax-m2": Architecture(types="minimax_m2", rows=IN_ORDER),
    "mistral3": Architecture(types="ministral3", rows=ALTERNATING),
    "muse_glimmer": Architecture(types="muse_glimmer_text", windows=WindowRule(None)),
    "olmo2": Architecture(types="olmo2 olmo3", rows=IN_ORDER, windows=WindowRule(4)),
    "phi2": Architecture(types="phi", rows=IN_ORDER),
    "phi3 phimoe": Architecture(rows=IN_ORDER, windows=NEVER),
    "plamo3": Architecture(types="", windows=WindowRule(8)),
    "qwen2moe": Architecture(types="qwen2_moe", rows=IN_ORDER),
    "qwen2vl": Architecture(types="qwen2_vl_text qwen2_5_vl_text", rows=IN_ORDER),
    "qwen3moe": Architecture(types="qwen3_moe", rows=IN_ORDER),
    "qwen3vl": Architecture(types="qwen3_vl_text", rows=IN_ORDER),
    "qwen3vlmoe": Architecture(types="qwen3_vl_moe_text", rows=IN_ORDER),
    "smallthinker": Architecture(
        types="", windows=WindowRule(4, 4096, fixed=True, first=True, listed=False)
    ),
    "starcoder": Architecture(types="gpt_bigcode", rows=IN_ORDER),
}
"""Left out of `types` are those whose layers keep states or have an indexer, whose windows are not
described here."""

ARCHITECTURES = {name: arch for names, arch in ARCHITECTURE_ROWS.items() for name in names.split()}
RUN_AS = {
    model_type: name
    for name, arch in ARCHITECTURES.items()
    for model_type in (name if arch.types is None else arch.types).split()
}
"""The architecture as which llama.cpp runs a model type."""
NO_ARCHITECTURE = Architecture(types="")


def architecture_of(name: object) -> Architecture:
    """Look up what is known of an architecture of llama.cpp by its name."""
    return ARCHITECTURES.get(name, NO_ARCHITECTURE) if isinstance(name, str) else NO_ARCHITECTURE
