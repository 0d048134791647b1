"""Read from config.json which kind each layer of a decoder is."""

from __future__ import annotations

from attnscope.model_card.fields import DerivedFieldError, Fields, undecided

LEGACY = {
    "attention": "full_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "mamba": "linear_attention",
}
"""What earlier versions of transformers called kinds of layers."""


def kinds_of(fields: Fields, n_layer: int) -> list[str]:
    """Return the kind of each layer, as transformers names them.

    Raises:
        ModelError: the fields contradict the number of layers.
        DerivedFieldError: only transformers' own class can derive them.
    """
    for name in ("layer_types", "layers_block_type"):
        kinds = fields.config.get(name)
        if kinds is not None:
            if not isinstance(kinds, list) or len(kinds) != n_layer:
                raise undecided(name, kinds, f"a list of {n_layer} kinds")
            return [LEGACY.get(str(kind), str(kind)) for kind in kinds]
    if fields.model_type in ALIKE:
        return [ALIKE[fields.model_type]] * n_layer
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


QWEN = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
"""Families whose layers slide only if `use_sliding_window` says so."""

ALIKE = {"falcon_h1": "hybrid", "rwkv": "linear_attention", "xlstm": "linear_attention"}
"""Families whose layers are all of one kind."""

PERIODS = {"gemma2": 2, "gemma3_text": 6, "qwen3_next": 4}
"""Every so many layers, one sees all keys, if config.json does not say otherwise."""


def _by_rule(fields: Fields, n_layer: int) -> list[str]:
    """Return the kinds of layers that a class derives, for configurations without `layer_types`.

    Raises:
        DerivedFieldError: only transformers' own class can derive them.
    """
    if fields.config.get("use_sliding_window") is False and fields.model_type in QWEN:
        return ["full_attention"] * n_layer
    period = PERIODS.get(fields.model_type)
    if period is None:
        raise DerivedFieldError("layer_types")
    name = "full_attention_interval" if fields.model_type == "qwen3_next" else "sliding_window_pattern"
    period = fields.config.get(name, period)
    if isinstance(period, bool) or not isinstance(period, int) or period < 1:
        raise undecided(name, period, "a whole number of at least 1")
    other = "linear_attention" if fields.model_type == "qwen3_next" else "sliding_attention"
    return [other if (index + 1) % period else "full_attention" for index in range(n_layer)]


def _gpt_neo(fields: Fields, n_layer: int) -> list[str]:
    """Return `global` or `local` for each layer, from kinds and how often they are repeated."""
    value = fields.config.get("attention_layers")
    if value is None:
        try:
            value = []
            for kinds, n in fields.config["attention_types"]:
                value += kinds * max(0, min(n, n_layer + 1))  # no more than shows that they are too many
                if len(value) > n_layer:
                    break
        except (KeyError, TypeError, ValueError):
            raise DerivedFieldError("attention_types") from None
    if len(value) != n_layer or set(value) - {"global", "local"}:
        raise undecided("attention_types", value, f"global or local for each of {n_layer} layers")
    return list(value)
