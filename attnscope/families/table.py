"""What attnscope knows of model types beside what `families.json` says of their classes.

To add a model type, add it to the rows below that hold for it. What a configuration or the names of a
checkpoint's tensors say is read there instead, and what an engine does with a type stands beside the
engine's rule.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple


class Formula(NamedTuple):
    """The attention between the projections that model types have in common.

    Attributes:
        causal: whether it is masked causally; other families are, if config.json says `is_decoder`.
        rotary: whether Q and K have rotary positions.
        windows: which layers see only a window of keys: `all`, those of a kind that `layer_types`
            (`kinds`) or `attention_types` (`local`) names, or none.
        scale: the factor of the scores, if config.json does not set it.
        fields: the fields of config.json that it depends on; for one that is missing, the default
            of transformers is used.
        missing: what it computes in addition, which no field mentions.
    """

    causal: bool = False
    rotary: bool = False
    windows: str = ""
    scale: float | None = None
    fields: tuple[str, ...] = ()
    missing: str = ""


class Family(NamedTuple):
    """What is known of a model type.

    Attributes:
        formula: what its attention computes between the projections; None: that is not known.
        plain: whether that is softmax(Q·Kᵀ/√d_head)·V with a padding mask, without position bias, soft
            cap, rotary positions or normalisation.
        attends: whether it has attention; others mix tokens by a recurrence, a transform or a
            convolution.
        encoder: whether it keeps no keys and values, unless config.json says `is_decoder`.
        undecided: why its cache is not read from config.json; empty: it is.
        kind: the kind of all its layers; None: that follows from its fields.
        period: every so many layers, one sees all keys, if config.json does not say otherwise; None:
            there is no such rule.
        period_field: the field that says otherwise.
        other_kind: the kind of the other layers.
        window_is_optional: whether layers slide only if `use_sliding_window` says so.
        rotates_if: the field, and its value, with which queries and keys are rotated; None: they
            always are.
        axes: the axes of its positions, even if its configuration does not say so.
        positions_after_padding: whether position ids begin after that of padding, which leaves rows of
            their table unused.
        needs: what it cannot do without, beside a text; empty: nothing.
        values_again: whether it computes with values after attention, too: heads that share values may
            all change.
    """

    formula: Formula | None = None
    plain: bool = False
    attends: bool = True
    encoder: bool = False
    undecided: str = ""
    kind: str | None = None
    period: int | None = None
    period_field: str = "sliding_window_pattern"
    other_kind: str = "sliding_attention"
    window_is_optional: bool = False
    rotates_if: tuple[str, Any] | None = None
    axes: int = 1
    positions_after_padding: bool = False
    needs: str = ""
    values_again: bool = False


PAIRS = "its rotary positions, which pair neighbouring numbers"
ALIBI = "its linear position biases (ALiBi)"
BIAS = "its relative position bias"

BIDIRECTIONAL = """
    albert bert bert-generation camembert data2vec-text deberta-v2 distilbert electra ernie layoutlm
    markuplm mobilebert rembert roberta roberta-prelayernorm siglip_text_model splinter xlm xlm-roberta
    bart blenderbot blenderbot-small m2m_100 marian mbart pegasus plbart whisper
    beit blip_vision_model clip_vision_model deit dinov2 dinov2_with_registers ijepa
    metaclip_2_vision_model siglip_vision_model vit vit_mae vit_msn
    data2vec-audio hubert sew unispeech unispeech-sat wav2vec2
"""
CAUSAL = "biogpt clip_text_model gpt2 gpt_bigcode imagegpt jamba metaclip_2_text_model openai-gpt opt"
SHARE = ("partial_rotary_factor|rotary_pct|rope_parameters",)

FORMULAS = {
    BIDIRECTIONAL: Formula(),
    CAUSAL: Formula(causal=True),
    "arcee falcon gemma lfm2 llama olmo olmo2 seed_oss": Formula(causal=True, rotary=True),
    "gpt_neox persimmon phi stablelm": Formula(causal=True, rotary=True, fields=SHARE),
    "mistral mixtral phi3 phimoe starcoder2": Formula(
        causal=True, rotary=True, windows="all", fields=("sliding_window",)
    ),
    "gpt_oss ministral olmo3 qwen2 qwen2_moe qwen3 qwen3_moe": Formula(
        causal=True, rotary=True, windows="kinds"
    ),
    "granite granitemoe granitemoeshared": Formula(
        causal=True, rotary=True, fields=("attention_multiplier",)
    ),
    "cohere gptj": Formula(causal=True, missing=PAIRS),
    "bloom mpt": Formula(causal=True, missing=ALIBI),
    "mt5 switch_transformers t5 umt5": Formula(scale=1.0, missing=BIAS),
    "dinov3_vit": Formula(missing="its rotary positions in two dimensions"),
    "gemma2": Formula(
        causal=True,
        rotary=True,
        windows="kinds",
        fields=("query_pre_attn_scalar", "attn_logit_softcapping"),
    ),
    "gemma3_text": Formula(causal=True, rotary=True, windows="kinds", fields=("query_pre_attn_scalar",)),
    "gpt_neo": Formula(
        causal=True, windows="local", scale=1.0, fields=("attention_types", "window_size")
    ),
    "modernbert": Formula(rotary=True, windows="kinds", fields=("local_attention",)),
    "mpnet": Formula(missing=BIAS),
    "roformer": Formula(missing=PAIRS),
    "smollm3": Formula(causal=True, rotary=True, windows="kinds", fields=("no_rope_layers",)),
}
"""What attention computes, from the modules of transformers."""

OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("albert bert camembert distilbert electra ernie rembert roberta xlm-roberta", {"plain": True}),
    (
        "rwkv mamba mamba2 falcon_mamba xlstm fnet poolformer resnet convnext convnextv2 regnet",
        {"attends": False},
    ),
    (
        """bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert
        roberta roberta-prelayernorm roc_bert roformer xlm-roberta xlm-roberta-xl xmod""",
        {"encoder": True},
    ),
    ("blt", {"undecided": "its local encoders and decoders have caches of their own"}),
    ("reformer", {"undecided": "it keeps hashes and buckets"}),
    ("unlimited_ocr", {"undecided": "what its reference layers keep is not described here"}),
    ("xlm", {"undecided": "its cache is not one of transformers' layers"}),
    ("xlnet", {"undecided": "it keeps hidden states"}),
    ("falcon_h1", {"kind": "hybrid"}),
    ("rwkv xlstm", {"kind": "linear_attention"}),
    ("gemma2", {"period": 2}),
    ("gemma3_text", {"period": 6}),
    (
        "qwen3_next",
        {"period": 4, "period_field": "full_attention_interval", "other_kind": "linear_attention"},
    ),
    ("qwen2 qwen2_moe qwen3 qwen3_moe", {"window_is_optional": True}),
    ("granitemoehybrid", {"rotates_if": ("position_embedding_type", "rope")}),
    ("zamba2", {"rotates_if": ("use_mem_rope", True)}),
    (
        """qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text glm4v_text glm4v_moe_text glm_ocr_text
        paddleocr_vl_text""",
        {"axes": 3},
    ),
    (
        """roberta xlm-roberta xlm-roberta-xl camembert roberta-prelayernorm data2vec-text longformer
        mpnet xmod ibert esm luke markuplm layoutlmv3 led_text""",
        {"positions_after_padding": True},
    ),
    ("bros", {"needs": "a text with a box for each token (bbox)"}),
    ("neomme", {"values_again": True}),
]
"""Other facts: the model types that each holds for."""


def _table() -> dict[str, Family]:
    known: dict[str, dict[str, Any]] = defaultdict(dict)
    formulas = [(names, {"formula": formula}) for names, formula in FORMULAS.items()]
    for names, facts in [*formulas, *OTHERS]:
        for name in names.split():
            known[name] |= facts
    return {name: Family(**facts) for name, facts in known.items()}


UNKNOWN = Family()
FAMILIES = _table()


def family_of(model_type: object) -> Family:
    """Look up what is known of a model type; if no row names it, what holds for most."""
    return FAMILIES.get(model_type, UNKNOWN) if isinstance(model_type, str) else UNKNOWN
