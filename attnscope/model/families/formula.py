"""What a layer's attention computes beside its projections, according to config.json.

`table.py` has what fields do not say. A test compares the textbook's module, with these
settings, with the module of a small model of each family; `tests/model/run/families.py` has its sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from attnscope.base.errors import ModelError
from attnscope.base.text import shortened
from attnscope.model.families.family import Formula
from attnscope.model.families.fields import unfold
from attnscope.model.families.table import ALIBI, BIAS, family_of
from attnscope.model.files.config import Config, completed, configs_of_stack, rope_settings
from attnscope.model.files.heads import Heads
from attnscope.model.files.indices import enumerated
from attnscope.model.files.layouts import PARTS, Packing


@dataclass(frozen=True)
class LayerFormula:
    """The attention of one layer between its projections."""

    causal: bool = False  #: whether a query sees only its own key and earlier ones
    #: The numbers of keys before and after its own that a query sees; None: all.
    window: tuple[int, int] | None = None
    #: The base of rotary positions (halves, as in Llama); None: there are none.
    rope_theta: float | None = None
    scale: float | None = None  #: the factor of the scores; None: 1/√d_head
    softcap: float | None = None  #: the bound for soft-capping the scores, or None
    #: What else the layer computes, which is not described here: noun phrases.
    missing: tuple[str, ...] = ()
    family: str | None = None  #: the `model_type`; None: attnscope does not know what it computes


def formula_of(heads: Heads, layer: int, d_head: int) -> LayerFormula:
    """Describe what a layer computes beside its projections."""
    config = configs_of_stack(heads.config, heads.stack.name)[0]
    kind = config.get("model_type") or heads.config.get("model_type")
    formula = family_of(kind).formula
    extras = tuple(_extras(heads, layer))
    if formula is None:
        return LayerFormula(missing=extras)
    if fields := _missing_fields(config, formula):
        complete = completed(config)
        if complete is None:
            what = f"what depends on {enumerated(fields)}, which its config.json does not give"
            return LayerFormula(missing=(what, *extras))
        config = complete
    _check(config, layer, heads.model)
    cross = heads.stack.layout.cross
    theta, of_positions = (None, []) if cross else _rotation(config, formula, layer)
    if formula.missing and not cross and not any(each.startswith(formula.missing) for each in extras):
        of_positions.append(formula.missing)
    return LayerFormula(
        causal=_is_causal(heads, config, formula),
        window=None if cross else _window(config, formula, layer),
        rope_theta=theta,
        scale=_scale(config, formula, layer, d_head),
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
        entries = unfold(value, most=layer) if field == "attention_types" else value
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


def _missing_fields(config: Config, formula: Formula) -> list[str]:
    """Return the fields that a formula depends on and that a configuration lacks."""
    needed = [*formula.fields]
    if formula.rotary:
        needed.append("rope_parameters|rope_theta|rotary_emb_base|global_rope_theta")
    if formula.windows == "kinds" and _may_slide(config):
        needed += ["layer_types", "sliding_window|local_attention"]

    def has(name: str) -> bool:
        return bool(config.get(name)) if name in OF_LAYERS else name in config

    alternatives = [each.split("|") for each in needed]
    return [names[0] for names in alternatives if not any(has(name) for name in names)]


def _is_causal(heads: Heads, config: Config, formula: Formula) -> bool:
    if heads.stack.layout.cross:
        return False
    if formula.causal:
        return config.get("is_causal") is not False and not config.get("use_bidirectional_attention")
    return bool(heads.stack.tower == "decoder" or config.get("is_decoder") or config.get("causal"))


def _may_slide(config: Config) -> bool:
    """Check whether some layers see only a window of keys."""
    is_off = "sliding_window" in config and config["sliding_window"] is None
    return not is_off and config.get("use_sliding_window") is not False


def _kind(config: Config, layer: int) -> str:
    """Return the kind of a layer that `layer_types` names: `full_attention` if it names none."""
    kinds = config.get("layer_types")
    return str(kinds[layer]) if kinds else "full_attention"


def _window(config: Config, formula: Formula, layer: int) -> tuple[int, int] | None:
    """Return the numbers of keys before and after its own that a query of a layer sees."""
    if formula.windows == "local":
        kinds = unfold(config["attention_types"], most=layer) or []
        return (config["window_size"] - 1, 0) if kinds[layer] == "local" else None
    slides = formula.windows == "all" or (
        formula.windows == "kinds" and _kind(config, layer) == "sliding_attention"
    )
    if not slides or not _may_slide(config):
        return None
    if "local_attention" in config:  # the whole width of a window in both directions
        return (config["local_attention"] // 2, config["local_attention"] // 2)
    return (config["sliding_window"] - 1, 0)  # with the query's own key


def _rotation(config: Config, formula: Formula, layer: int) -> tuple[float | None, list[str]]:
    """Return the base of a layer's rotary positions, and what is special about them."""
    without = config.get("no_rope_layers")
    if not formula.rotary or (without and not without[layer]):
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


def _scale(config: Config, formula: Formula, layer: int, d_head: int) -> float | None:
    """Return the factor of the scores; None: 1/√d_head."""
    if (scalar := config.get("query_pre_attn_scalar")) is not None:  # Gemma 2 and 3
        return float(scalar) ** -0.5
    if (multiplier := config.get("attention_multiplier")) is not None:  # Granite
        return float(multiplier)
    scale = 1.0 if config.get("scale_attn_weights") is False else formula.scale  # GPT-2
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
