"""What a layer's attention computes beside its projections, according to config.json.

To add a family, add its `model_type` to `FAMILIES`, and its sizes to `tests/models/families.py`: a test
compares the textbook's module, with these settings, with the model's own module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from attnscope.checkpoints.config import Config, completed, configs_of_stack, rope_settings
from attnscope.checkpoints.heads import Heads
from attnscope.checkpoints.indices import enumerated
from attnscope.checkpoints.tensor_names import PARTS, Packing
from attnscope.errors import ModelError
from attnscope.text import shortened


@dataclass(frozen=True)
class LayerFormula:
    """The attention of one layer between its projections.

    Attributes:
        causal: whether a query sees only its own key and earlier ones.
        window: the numbers of keys before and after its own that a query sees; None: all.
        rope_theta: the base of rotary positions (halves, as in Llama); None: there are none.
        scale: the factor of the scores; None: 1/√d_head.
        softcap: the bound for soft-capping the scores, or None.
        missing: what else the layer computes, which is not described here: noun phrases.
        family: the `model_type`; None: attnscope does not know what it computes.
    """

    causal: bool = False
    window: tuple[int, int] | None = None
    rope_theta: float | None = None
    scale: float | None = None
    softcap: float | None = None
    missing: tuple[str, ...] = ()
    family: str | None = None


@dataclass(frozen=True)
class Family:
    """The attention that model types have in common.

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


PAIRS = "its rotary positions, which pair neighbouring numbers"
ALIBI = "its linear position biases (ALiBi)"
BIAS = "its relative position bias"

_BIDIRECTIONAL = """
    albert bert bert-generation camembert data2vec-text deberta-v2 distilbert electra ernie layoutlm
    markuplm mobilebert rembert roberta roberta-prelayernorm siglip_text_model splinter xlm xlm-roberta
    bart blenderbot blenderbot-small m2m_100 marian mbart pegasus plbart whisper
    beit blip_vision_model clip_vision_model deit dinov2 dinov2_with_registers ijepa
    metaclip_2_vision_model siglip_vision_model vit vit_mae vit_msn
    data2vec-audio hubert sew unispeech unispeech-sat wav2vec2
"""
_CAUSAL = """
    biogpt clip_text_model gpt2 gpt_bigcode imagegpt jamba metaclip_2_text_model openai-gpt opt
"""
_ROTARY = "arcee falcon gemma lfm2 llama olmo olmo2 seed_oss"
_PARTLY_ROTARY = "gpt_neox persimmon phi stablelm"
_WINDOWS = "mistral mixtral phi3 phimoe starcoder2"
_KINDS = "gpt_oss ministral olmo3 qwen2 qwen2_moe qwen3 qwen3_moe"
_MULTIPLIED = "granite granitemoe granitemoeshared"
_T5 = "mt5 switch_transformers t5 umt5"


def _alike(kinds: str, **settings: Any) -> dict[str, Family]:
    """Return one family for several model types."""
    return dict.fromkeys(kinds.split(), Family(**settings))


_PARTIAL = ("partial_rotary_factor|rotary_pct|rope_parameters",)
_GEMMA_2, _GEMMA_3 = ("query_pre_attn_scalar", "attn_logit_softcapping"), ("query_pre_attn_scalar",)
_GPT_NEO = ("attention_types", "window_size")

FAMILIES: dict[str, Family] = {
    **_alike(_BIDIRECTIONAL),
    **_alike(_CAUSAL, causal=True),
    **_alike(_ROTARY, causal=True, rotary=True),
    **_alike(_PARTLY_ROTARY, causal=True, rotary=True, fields=_PARTIAL),
    **_alike(_WINDOWS, causal=True, rotary=True, windows="all", fields=("sliding_window",)),
    **_alike(_KINDS, causal=True, rotary=True, windows="kinds"),
    **_alike(_MULTIPLIED, causal=True, rotary=True, fields=("attention_multiplier",)),
    **_alike("cohere gptj", causal=True, missing=PAIRS),
    **_alike("bloom mpt", causal=True, missing=ALIBI),
    **_alike(_T5, scale=1.0, missing=BIAS),
    **_alike("dinov3_vit", missing="its rotary positions in two dimensions"),
    **_alike("gemma2", causal=True, rotary=True, windows="kinds", fields=_GEMMA_2),
    **_alike("gemma3_text", causal=True, rotary=True, windows="kinds", fields=_GEMMA_3),
    **_alike("gpt_neo", causal=True, windows="local", scale=1.0, fields=_GPT_NEO),
    **_alike("modernbert", rotary=True, windows="kinds", fields=("local_attention",)),
    **_alike("mpnet", missing=BIAS),
    **_alike("roformer", missing=PAIRS),
    **_alike("smollm3", causal=True, rotary=True, windows="kinds", fields=("no_rope_layers",)),
}  # fmt: skip
"""The model types whose attention is known, from the modules of transformers."""


def formula_of(heads: Heads, layer: int, d_head: int) -> LayerFormula:
    """Return what a layer computes beside its projections.

    Args:
        heads: the stack of the layer.
        layer: the index of a layer with attention.
        d_head: the width of its heads.
    """
    config = configs_of_stack(heads.config, heads.stack.name)[0]
    kind = config.get("model_type") or heads.config.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    extras = tuple(_extras(heads, layer))
    if family is None:
        return LayerFormula(missing=extras)
    if fields := _missing_fields(config, family):
        complete = completed(config)
        if complete is None:
            what = f"what depends on {enumerated(fields)}, which its config.json does not give"
            return LayerFormula(missing=(what, *extras))
        config = complete
    _check(config, layer, heads.model)
    cross = heads.stack.layout.cross
    theta, of_positions = (None, []) if cross else _rotation(config, family, layer)
    if family.missing and not cross and not any(each.startswith(family.missing) for each in extras):
        of_positions.append(family.missing)
    return LayerFormula(
        causal=_is_causal(heads, config, family),
        window=None if cross else _window(config, family, layer),
        rope_theta=theta,
        scale=_scale(config, family, layer, d_head),
        softcap=config.get("attn_logit_softcapping"),
        missing=(*of_positions, *_others(config, layer), *extras),
        family=kind,
    )


NUMBERS = frozenset(
    "attention_multiplier attn_logit_softcapping clip_qkv global_rope_theta local_attention"
    " local_rope_theta partial_rotary_factor query_pre_attn_scalar rope_local_base_freq rope_theta"
    " rotary_emb_base rotary_pct sliding_window window_size".split()
)
COUNTS = frozenset(("local_attention", "sliding_window", "window_size"))
OF_LAYERS = ("layer_types", "no_rope_layers")


def _check(config: Config, layer: int, model: str) -> None:
    """Raise a ModelError for a field of config.json that a formula cannot be read from."""
    rope = [config.get(name) for name in ("rope_parameters", "rope_scaling")]
    nested = [each for part in rope if isinstance(part, dict) for each in (part, *part.values())]
    for part in (config, *(each for each in nested if isinstance(each, dict))):
        for field in NUMBERS & part.keys():
            _check_number(field, part[field], model)
    for field in (*OF_LAYERS, "attention_types"):
        value = config.get(field)
        entries = _repeated(value) if field == "attention_types" else value
        if value and not (isinstance(entries, list) and len(entries) > layer):
            raise _damaged(model, field, value, "a list with an entry for each layer")


def _check_number(field: str, value: Any, model: str) -> None:
    if value is None:
        return
    expected = int if field in COUNTS else int | float
    if isinstance(value, bool) or not isinstance(value, expected) or not 0 < value < inf:
        kind = "whole number" if field in COUNTS else "number"
        raise _damaged(model, field, value, f"a {kind} above 0")


def _damaged(model: str, field: str, value: Any, expected: str) -> ModelError:
    return ModelError(
        f"the config.json of {model} is damaged: {field} is {shortened(repr(value))}, but must be"
        f" {expected}.",
        hint="the config.json that the weights were saved with",
    )


def _missing_fields(config: Config, family: Family) -> list[str]:
    """Return the fields that a family depends on and that a configuration lacks."""
    needed = [*family.fields]
    if family.rotary:
        needed.append("rope_parameters|rope_theta|rotary_emb_base|global_rope_theta")
    if family.windows == "kinds" and _may_slide(config):
        needed += ["layer_types", "sliding_window|local_attention"]

    def has(name: str) -> bool:
        return bool(config.get(name)) if name in OF_LAYERS else name in config

    alternatives = [each.split("|") for each in needed]
    return [names[0] for names in alternatives if not any(has(name) for name in names)]


def _is_causal(heads: Heads, config: Config, family: Family) -> bool:
    if heads.stack.layout.cross:
        return False
    if family.causal:
        return config.get("is_causal") is not False and not config.get("use_bidirectional_attention")
    return bool(heads.stack.tower == "decoder" or config.get("is_decoder") or config.get("causal"))


def _may_slide(config: Config) -> bool:
    """Return whether some layers see only a window of keys."""
    is_off = "sliding_window" in config and config["sliding_window"] is None
    return not is_off and config.get("use_sliding_window") is not False


def _kind(config: Config, layer: int) -> str:
    """Return the kind of a layer that `layer_types` names: `full_attention` if it names none."""
    kinds = config.get("layer_types")
    return str(kinds[layer]) if kinds else "full_attention"


def _window(config: Config, family: Family, layer: int) -> tuple[int, int] | None:
    """Return the numbers of keys before and after its own that a query of a layer sees."""
    if family.windows == "local":
        kinds = _repeated(config["attention_types"]) or []
        return (config["window_size"] - 1, 0) if kinds[layer] == "local" else None
    slides = family.windows == "all" or (
        family.windows == "kinds" and _kind(config, layer) == "sliding_attention"
    )
    if not slides or not _may_slide(config):
        return None
    if "local_attention" in config:  # the whole width of a window in both directions
        return (config["local_attention"] // 2, config["local_attention"] // 2)
    return (config["sliding_window"] - 1, 0)  # with the query's own key


def _repeated(attention_types: Any) -> list[Any] | None:
    """Return the kind of each layer, from kinds and how often they are repeated: `[[["global"], 3]]`."""
    try:
        return [kind for kinds, count in attention_types for kind in kinds * count]
    except (TypeError, ValueError):
        return None


def _rotation(config: Config, family: Family, layer: int) -> tuple[float | None, list[str]]:
    """Return the base of a layer's rotary positions, and what is special about them."""
    without = config.get("no_rope_layers")
    if not family.rotary or (without and not without[layer]):
        return None, []
    if config.get("alibi"):
        return None, [ALIBI]
    settings = rope_settings(config, _kind(config, layer))
    theta, share = settings.get("rope_theta"), settings.get("partial_rotary_factor")
    if share not in (None, 1):
        return None, [f"its rotary positions, which rotate only {share:g} of each head"]
    if theta is None:
        return None, ["its rotary positions, whose base its config.json does not give"]
    kind = settings.get("rope_type", settings.get("type", "default"))
    is_plain = kind in ("default", "mrope") or (kind == "linear" and settings.get("factor") == 1)
    return float(theta), [] if is_plain else [f"the scaling of its rotary positions ({kind})"]


def _scale(config: Config, family: Family, layer: int, d_head: int) -> float | None:
    """Return the factor of the scores; None: 1/√d_head."""
    if (scalar := config.get("query_pre_attn_scalar")) is not None:  # Gemma 2 and 3
        return float(scalar) ** -0.5
    if (multiplier := config.get("attention_multiplier")) is not None:  # Granite
        return float(multiplier)
    scale = 1.0 if config.get("scale_attn_weights") is False else family.scale  # GPT-2
    if config.get("scale_attn_by_inverse_layer_idx"):
        return (d_head**-0.5 if scale is None else scale) / (layer + 1)
    return scale


def _others(config: Config, layer: int) -> Iterator[str]:
    """Yield what fields of config.json add to a layer, which is not described."""
    if config.get("clip_qkv") is not None:
        yield f"the clipping of its Q, K and V at {config['clip_qkv']:g}"
    if config.get("use_shared_relative_position_bias"):
        yield BIAS
    if config.get("relative_attention"):
        yield "its disentangled position scores"
    if str(config.get("position_embedding_type")).startswith("relative"):
        yield "its relative position embeddings"
    if config.get("use_bidirectional_attention") and _kind(config, layer) == "sliding_attention":
        yield "its window of keys in both directions"


IGNORED = re.compile(r"(.*\.)?(LayerNorm\.(weight|bias)|inv_freq|masked_bias)|bias")
"""Tensors in a layer's attention that it does not use before its output: the norm after BERT's residual
connection, constants, and the causal masks of GPT-2 and GPT-NeoX."""

EXTRAS = {
    "the norms of its Q and K": re.compile(r"(q|k|query|key)_?(layer_?)?norm\b"),
    "its sinks": re.compile(r"sinks?$"),
    BIAS: re.compile(r"relative|rel_pos|distance_embedding"),
}
"""What tensors in a layer's attention are for, if they are not its projections."""


def _extras(heads: Heads, layer: int) -> Iterator[str]:
    """Yield what the other tensors in a layer's attention are for."""
    stack = heads.stack
    place = f"{stack.place(layer)}."
    own = {stack.tensor(part, layer, kind) for part in PARTS for kind in ("weight", "bias")}
    names = [name for name in heads.tensors.names if name.startswith(place) and name not in own]
    others = [name.removeprefix(place) for name in names]
    others = [name for name in others if not IGNORED.fullmatch(name)]
    for what, pattern in EXTRAS.items():
        matching = [name for name in others if pattern.search(name)]
        others = [name for name in others if name not in matching]
        if matching:
            yield f"{what} ({enumerated(dict.fromkeys(map(_module, matching)))})"
    if others:
        yield f"what it does with {enumerated(dict.fromkeys(map(_module, others)))}"
    if stack.layout.packing is Packing.GATED:
        yield "the gates of its heads"


def _module(name: str) -> str:
    """Return the name of the module of a tensor, or of the tensor itself if it is a parameter alone."""
    return re.sub(r"\.(weight|bias)$", "", name)
