"""Read from config.json which kind each layer of a decoder is."""

from __future__ import annotations

from typing import Any

from attnscope.model.families.fields import DerivedFieldError, Fields, undecided
from attnscope.model.families.table import family_of

LEGACY = {
    "attention": "full_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "mamba": "linear_attention",
}
"""What earlier versions of transformers called kinds of layers."""


def kinds_of(fields: Fields, n_layer: int) -> list[str]:
    """Return the kind of each layer, as transformers names them.

    Raises:
        DerivedFieldError: only transformers' own class can derive them.
    """
    for name in ("layer_types", "layers_block_type"):
        kinds = fields.config.get(name)
        if kinds is not None:
            if not isinstance(kinds, list) or len(kinds) != n_layer:
                raise undecided(name, kinds, f"a list of {n_layer} kinds")
            return [LEGACY.get(str(kind), str(kind)) for kind in kinds]
    if (kind := family_of(fields.model_type).kind) is not None:
        return [kind] * n_layer
    if fields.model_type == "gpt_neo":
        return [f"{kind}_attention" for kind in _gpt_neo(fields, n_layer)]
    if fields.model_type == "jamba" and "attn_layer_period" in fields.config:
        period, offset = fields.count("attn_layer_period"), fields.count("attn_layer_offset", 0)
        kinds = [index % period == offset for index in range(n_layer)]
        return ["full_attention" if attends else "linear_attention" for attends in kinds]
    if "layer_types" in fields.derived:
        return _by_rule(fields, n_layer)
    if fields.has("layers_block_type"):
        raise DerivedFieldError("layers_block_type")
    if fields.has("sliding_window") and fields.get("sliding_window") is not None:
        return ["sliding_attention"] * n_layer
    if fields.has("attention_chunk_size") and fields.get("attention_chunk_size") is not None:
        return ["chunked_attention"] * n_layer
    return ["full_attention"] * n_layer


def _by_rule(fields: Fields, n_layer: int) -> list[str]:
    """Return the kinds of layers that a class derives, for configurations without `layer_types`.

    Raises:
        DerivedFieldError: only transformers' own class can derive them.
    """
    family = family_of(fields.model_type)
    if fields.config.get("use_sliding_window") is False and family.window_is_optional:
        return ["full_attention"] * n_layer
    if family.period is None:
        raise DerivedFieldError("layer_types")
    period = fields.config.get(family.period_field, family.period)
    if isinstance(period, bool) or not isinstance(period, int) or period < 1:
        raise undecided(family.period_field, period, "a whole number of at least 1")
    return [family.other_kind if (index + 1) % period else "full_attention" for index in range(n_layer)]


def _gpt_neo(fields: Fields, n_layer: int) -> list[str]:
    """Return `global` or `local` for each layer, from kinds and how often they are repeated."""
    value = fields.config.get("attention_layers")
    if value is None:
        value = unfold(fields.config.get("attention_types"), most=n_layer)
    if value is None:
        raise DerivedFieldError("attention_types")
    if len(value) != n_layer or set(value) - {"global", "local"}:
        raise undecided("attention_types", value, f"global or local for each of {n_layer} layers")
    return list(value)


def unfold(attention_types: Any, most: int) -> list[Any] | None:
    """Unfold kinds of layers and how often they are repeated, such as `[[["global", "local"], 12]]`.

    Args:
        most: where there are more layers, the list ends soon after these.

    Returns:
        the kind of each layer; None if the field is not of this form.
    """
    unfolded: list[Any] = []
    try:
        for kinds, count in attention_types:
            unfolded += kinds * max(0, min(count, most + 1))
            if len(unfolded) > most:
                break
    except (TypeError, ValueError):
        return None
    return unfolded
