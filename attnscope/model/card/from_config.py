"""Read the anatomy of a decoder from config.json: what each layer attends to, and what it keeps.

What no field says is undecided: an error, not a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from attnscope.base.errors import ModelError
from attnscope.base.spelling import spelled
from attnscope.base.text import shortened
from attnscope.model.card.anatomy import Compressed, Indexer, LayerAnatomy, LayerCache, ModelAnatomy
from attnscope.model.card.states import state_of
from attnscope.model.families.fields import DerivedFieldError, Fields, kinds_of, undecided
from attnscope.model.families.model_types import other_attention, with_common_names
from attnscope.model.families.table import family_of
from attnscope.model.files.config import (
    Config,
    completed,
    dtype_of,
    own_fields,
    rope_settings,
    text_part,
)

SLIDING = ("sliding_attention", "hybrid_sliding")


def anatomy_of(config: Config) -> ModelAnatomy:
    """Return the attention of each layer of a decoder.

    Args:
        config: the content of config.json. Of a configuration with several towers, the part for text
            is read.
    """
    check_described(config)
    part = in_file = text_part(config)
    pairs = (("encoder", "decoder"), ("encoder_config", "decoder_config"))
    is_pair = any(all(isinstance(config.get(name), dict) for name in pair) for pair in pairs)
    if part is not config and config.get("is_encoder_decoder", is_pair):
        part = part | {"is_encoder_decoder": True}
    for each in (part, None):
        complete = completed(part) if each is None else each
        try:
            if complete is not None:
                fields = Fields(complete, in_file)
                return replace(_read(fields), uncertain=_defaults(fields, config))
        except DerivedFieldError as error:
            missing = str(error)
    raise undecided(missing, None, "given, as the cache depends on it")


COUNTING = re.compile(
    r"\w*(?:layers|heads|_dim|_rank|window\w*|_size|d_model|positions|embeddings|context_length|n_ctx)"
    r"|n_(?:head|layer|embd)|rope_theta.*|attn_logit_softcapping"
)
"""The fields that a notice lists if they are defaults: those that count something."""

PARTS_OF_ATTENTION = {"linear_attn_config": "linear_", "sparse_attention_config": "index_"}
"""Parts of a file from which a class takes fields, and how the names of these begin."""


def _defaults(fields: Fields, config: Config) -> tuple[str, ...]:
    """Return the sentence about the fields that were read, but are defaults of the class, if there are.

    Raises:
        ModelError: the file says such a field otherwise, where transformers does not read it.
    """
    elsewhere = with_common_names(config)
    prefixes = tuple(prefix for part, prefix in PARTS_OF_ATTENTION.items() if part in fields.in_file)
    found = []
    for name, value in fields.taken.items():
        if not COUNTING.fullmatch(name) or type(value) not in (int, float) or name.startswith(prefixes):
            continue
        other = elsewhere.get(name)
        if other is not None and other != value:
            where = "by another name" if config is fields.in_file else "beside its part for text"
            raise ModelError(
                f"config.json has no {name} where transformers reads it, and takes {value:,} by default,"
                f" but {shortened(repr(other))} {where}.",
                hint=f"{name} {shortened(repr(other))} in the part for text of config.json",
            )
        found.append(f"{name} {value:,.15g}")
    if not found:
        return ()
    return (f"not in config.json, but defaults of {fields.model_type}: {', '.join(found)}",)


def check_described(config: Config) -> None:
    """Raise a ModelError if the cache of a model is not described here, whatever its parts are."""
    model_type = config.get("model_type")
    if why := family_of(model_type).undecided:
        raise _unknown(str(model_type), why)


def _read(fields: Fields) -> ModelAnatomy:
    check_described(fields.config)
    if fields.family is None:
        other = other_attention(fields.config)
        why = "" if other is None else f", and its {other} is of another kind of attention than most"
        raise _unknown(fields.model_type, f"attnscope does not know it{why}", by_hand=other is None)
    n_layer = _n_layer(fields)
    kinds = kinds_of(fields, n_layer)
    n_shared = fields.count("num_kv_shared_layers", 0) if fields.has("num_kv_shared_layers") else 0
    alike: dict[str, LayerAnatomy] = {}  # each kind of layer is read once
    found = []
    for index, kind in enumerate(kinds):
        own = _own_fields(fields, kind, index)
        key = repr((kind, own))
        if key not in alike:
            alike[key] = _layer(fields.with_own(own), kind)
        found.append(alike[key])
    layers = tuple(found)
    if n_shared:
        # these read the keys and values of an earlier layer
        shared = (replace(each, kind="shared", cache=LayerCache()) for each in layers[-n_shared:])
        layers = (*layers[:-n_shared], *shared)
    if family_of(fields.model_type).encoder and not fields.get("is_decoder"):
        layers = tuple(replace(each, cache=LayerCache()) for each in layers)
    # MusicGen Melody reads its source as tokens.
    reads_tokens = fields.model_type == "musicgen_melody_decoder"
    has_encoder = bool(fields.get("is_encoder_decoder")) and not reads_tokens
    is_whisper = fields.model_type == "whisper"  # which pads each input to 30 seconds
    longest = fields.get("max_target_positions" if is_whisper else "max_position_embeddings")
    n_source = fields.count("max_source_positions") if fields.says("max_source_positions") else 1500
    return ModelAnatomy(
        fields.model_type,
        n_layer,
        fields.count("hidden_size"),
        layers,
        cross=(_cross(fields),) * len(layers) if has_encoder else (),
        longest=longest if isinstance(longest, int) and not isinstance(longest, bool) else None,
        n_source=n_source if is_whisper else None,
        dtype=dtype_of(fields.config),
    )


def _unknown(model_type: str, why: str, by_hand: bool = False) -> ModelError:
    more = f"; or {spelled('like', 'llama')}" if by_hand else ""
    return ModelError(
        f"the cache of model type {shortened(repr(model_type))} is undecided: {why}.",
        hint=f"the folder of the whole model, whose tensors say more{more}",
    )


def _n_layer(fields: Fields) -> int:
    for name in ("decoder_layers", "num_decoder_layers"):
        if fields.has(name) and not (name in fields.derived and fields.config.get(name) is None):
            return fields.count(name)
    kinds = fields.config.get("layers_block_type")
    if isinstance(kinds, list) and not isinstance(fields.get("num_hidden_layers"), int):
        return len(kinds)
    if fields.model_type == "longcat_flash":  # each of its layers has two attentions
        return 2 * fields.count("num_layers")
    return fields.count("num_hidden_layers")


OF_SLIDING = {
    "num_attention_heads": "swa_num_attention_heads",
    "num_key_value_heads": "swa_num_key_value_heads",
    "head_dim": "swa_head_dim",
    "v_head_dim": "swa_v_head_dim",
}
"""What fields of sliding layers are called, where these have other heads."""


def _own_fields(fields: Fields, kind: str, index: int) -> Config:
    """Collect what one layer has for its own: its entries of lists with all layers, and its sizes.

    Of `cross_attention_layers`, that is whether it is listed; of `kv_source_layers`, the layer whose
    keys and values it reads, None: its own.
    """

    def entry(name: str, default: Any) -> Any:
        listed = fields.config[name]
        return listed[index] if isinstance(listed, list) and len(listed) > index else default

    own: Config = {}
    if "no_rope_layers" in fields.config:  # 0 for a layer without positions
        own["no_rope_layers"] = entry("no_rope_layers", 1)
    if "indexer_types" in fields.config:
        own["indexer_types"] = entry("indexer_types", None)
    if "kv_source_layers" in fields.config:  # of Mistral Large 4
        source = entry("kv_source_layers", index)
        own["kv_source_layers"] = None if source == index else source
    if "cross_attention_layers" in fields.config:  # of mllama
        images = fields.config["cross_attention_layers"]
        own["cross_attention_layers"] = isinstance(images, list) and index in images
    if isinstance(fields.config.get("per_layer_config"), dict):
        return own | own_fields(fields.config, index)
    if kind in SLIDING:
        if fields.model_type == "mimo_v2_flash" and not fields.has("swa_num_key_value_heads"):
            return own | {"num_key_value_heads": 2 * fields.count("num_key_value_heads")}
        others = {name: other for name, other in OF_SLIDING.items() if fields.has(other)}
        return own | {name: fields.get(other) for name, other in others.items()}
    if fields.model_type in ("gemma4_text", "gemma4_unified_text") and kind == "full_attention":
        own["head_dim"] = fields.config.get("global_head_dim", 512)
        n_kv_head = fields.config.get("num_global_key_value_heads")
        shares = not fields.has("attention_k_eq_v") or fields.get("attention_k_eq_v")
        if n_kv_head is not None and shares:
            own["num_key_value_heads"] = n_kv_head
    return own


def _n_head(fields: Fields) -> int:
    return fields.count(
        "decoder_attention_heads" if fields.has("decoder_attention_heads") else "num_attention_heads"
    )


def _layer(fields: Fields, kind: str) -> LayerAnatomy:
    """Return the attention of a layer of a kind, by its own fields."""
    if kind in ("moe", "mlp", "dense"):
        return LayerAnatomy("none")
    if fields.config.get("cross_attention_layers"):
        return _cross(fields)
    if kind in COMPRESSED:
        return _compressed(fields, kind)
    if kind in ("linear_attention", "conv"):
        return state_of(fields, kind)
    if kind in ("hybrid", "hybrid_sliding"):
        attention = _attention(fields, "full_attention" if kind == "hybrid" else "sliding_attention")
        state = state_of(fields, kind)
        kept = state.cache
        if attention.rope_theta is None:
            theta, scaling = _rotation(fields, kind)
            attention = replace(attention, rope_theta=theta, rope_scaling=scaling)
        return replace(
            attention,
            kind=f"{attention.kind} + {state.kind}",
            cache=replace(
                attention.cache,
                constant=kept.constant,
                constant_float32=kept.constant_float32,
                newest=kept.newest,
            ),
            recurrence=state.recurrence,
        )
    return _attention(fields, kind)


COMPRESSED = ("compressed_sparse_attention", "heavily_compressed_attention")


def _compressed(fields: Fields, kind: str) -> LayerAnatomy:
    """Return attention to a window and to entries for blocks of tokens: DeepSeek-V4, section 2.3.

    One head is both K and V of all queries. A token waits with its values and its gates until its block
    is complete; blocks of sparse attention overlap, and have one entry more for the indexer.
    """
    d_head, window = fields.count("head_dim"), fields.count("sliding_window")
    rates = fields.get("compress_rates")
    if not isinstance(rates, dict):
        raise DerivedFieldError("compress_rates")
    size = Fields({"compress_rates": rates.get(kind)}).count("compress_rates")
    is_sparse = kind == "compressed_sparse_attention"
    entry = d_head + (fields.count("index_head_dim") if is_sparse else 0)
    waiting = 2 * entry * (2 if is_sparse else 1)
    overlap = 2 * size * entry if is_sparse else 0
    theta, scaling = _rotation(fields, "compress")
    return LayerAnatomy(
        "compressed sparse" if is_sparse else "compressed",
        n_head=_n_head(fields),
        n_kv_head=fields.count("num_key_value_heads"),
        d_K=d_head,
        d_V=d_head,
        window=window,
        rope_theta=theta,
        rope_scaling=scaling,
        extras=(*_extras(fields), f"an entry for {size} tokens"),
        cache=LayerCache(
            d_head, window, window - 1, compressed=Compressed(size, entry, waiting, overlap)
        ),
        indexer=_indexer(fields) if is_sparse else None,
    )


def _attention(fields: Fields, kind: str) -> LayerAnatomy:
    theta, scaling = _rotation(fields, "main" if fields.model_type == "deepseek_v4" else kind)
    # Of Llama 4, only those layers have norms that rotate.
    is_normed = fields.model_type != "llama4_text" or _has_positions(fields)
    layer = LayerAnatomy(
        "full",
        n_head=_n_head(fields),
        rope_theta=theta,
        rope_scaling=scaling,
        extras=tuple(each for each in _extras(fields) if each != NORM or is_normed),
    )
    latent = fields.has("kv_lora_rank") and fields.get("kv_lora_rank")
    layer = _latent(fields, layer) if latent else _grouped(fields, layer)
    if (source := fields.config.get("kv_source_layers")) is not None:
        shares = f"keys and values of layer {source}"
        layer = replace(layer, cache=LayerCache(), extras=(*layer.extras, shares))
    if kind in ("full_attention", "global_attention"):
        if fields.model_type == "cpmant":  # its prompt precedes the tokens
            prompt = layer.cache.per_token * fields.count("prompt_length")
            return replace(layer, cache=replace(layer.cache, constant=prompt))
        return layer
    if kind in ("indexed_attention", "minimax_m3_sparse"):
        return _indexed(fields, layer)
    if kind == "local_attention":  # GPT-Neo's, whose cache does not know its window
        window = fields.count("window_size")
        return replace(layer, kind="sliding", window=window, cache=replace(layer.cache, window=window))
    field = {"chunked_attention": "attention_chunk_size"}.get(kind, "sliding_window")
    if kind not in (*SLIDING, "chunked_attention"):
        raise undecided("layer_types", kind, "a kind of layer that attnscope knows")
    window = fields.count(field)
    cache = replace(layer.cache, window=window, dynamic_window=window - 1)
    name = "latent" if latent else "chunked" if kind == "chunked_attention" else "sliding"
    return replace(layer, kind=name, window=window, cache=cache)


def _indexed(fields: Fields, layer: LayerAnatomy) -> LayerAnatomy:
    """Return attention to the keys that an indexer chooses, with keys of its own."""
    if fields.has("indexer_types") and fields.get("indexer_types") == "shared":
        return replace(layer, kind="sparse")  # it takes the choice of an earlier layer
    name = "indexer_head_dim" if fields.has("indexer_head_dim") else "index_head_dim"
    numbers = fields.count(name)
    if fields.model_type == "glm5_next_text":  # with gates for pooling the keys of neighbours
        numbers = 2 * numbers + 1
    if fields.model_type == "dots3_note_text":  # whose positions rotate them in float32
        cache = replace(layer.cache, per_token_float32=numbers)
    else:
        cache = replace(layer.cache, per_token=layer.cache.per_token + numbers)
    return replace(layer, kind="sparse", cache=cache, indexer=_indexer(fields))


def _indexer(fields: Fields) -> Indexer | None:
    """Read the sizes of the indexer that chooses keys; None if config.json leaves it out."""
    sizes = [fields.config.get(name) for name in ("index_n_heads", "index_head_dim", "index_topk")]
    if None in sizes:
        return None
    return Indexer(
        fields.count("index_n_heads"), fields.count("index_head_dim"), fields.count("index_topk")
    )


def _grouped(fields: Fields, layer: LayerAnatomy) -> LayerAnatomy:
    """Return a layer with its heads of keys and values, and their widths."""
    d_head = _d_head(fields)
    d_V = fields.count("v_head_dim") if fields.get("v_head_dim") is not None else d_head
    n_kv_head = _n_kv_head(fields)
    if layer.n_head and layer.n_head % n_kv_head:
        raise ModelError(
            f"config.json has {layer.n_head} heads of queries and {n_kv_head} of keys, and each head of"
            " keys must serve as many of queries.",
            hint="the config.json that the weights were saved with",
        )
    cache = LayerCache(n_kv_head * (d_head + d_V))
    return replace(layer, n_kv_head=n_kv_head, d_K=d_head, d_V=d_V, cache=cache)


def _n_kv_head(fields: Fields) -> int:
    if fields.model_type == "falcon" and fields.get("new_decoder_architecture"):
        return fields.count("num_kv_heads") if fields.get("num_kv_heads") else _n_head(fields)
    if fields.model_type in ("falcon", "gpt_bigcode"):
        return 1 if fields.get("multi_query") else _n_head(fields)
    if fields.model_type == "dbrx":
        part = fields.config.get("attn_config")
        return Fields({"kv_n_heads": 1} | (part if isinstance(part, dict) else {})).count("kv_n_heads")
    of_encoder = fields.has("decoder_attention_heads") and not fields.has("decoder_num_key_value_heads")
    if fields.has("num_key_value_heads") and fields.get("num_key_value_heads") and not of_encoder:
        return fields.count("num_key_value_heads")
    return _n_head(fields)


D_HEAD = ("head_dim", "attention_head_dim", "kv_channels", "d_kv", "d_head", "dim_head")


def _d_head(fields: Fields) -> int:
    for name in D_HEAD:
        if fields.has(name) and fields.get(name) is not None:
            return fields.count(name)
    width, n_head = fields.count("hidden_size"), _n_head(fields)
    if width % n_head:
        raise ModelError(
            f"config.json has {n_head} heads for a width of {width:,}, which they cannot share alike.",
            hint="the config.json that the weights were saved with",
        )
    return width // n_head


def _latent(fields: Fields, layer: LayerAnatomy) -> LayerAnatomy:
    """Return latent attention: DeepSeek-V2 (arXiv:2405.04434), section 2.1.2."""
    rotated = fields.count("qk_rope_head_dim", 0)
    width, d_latent = fields.count("qk_nope_head_dim") + rotated, fields.count("kv_lora_rank")
    if fields.model_type == "mistral_large4_text":
        if "no_rope_layers" not in fields.config:
            raise DerivedFieldError("no_rope_layers")
        rotated = rotated if _has_positions(fields) else 0
    return replace(
        layer,
        kind="latent",
        n_kv_head=layer.n_head,
        d_K=width,
        d_V=fields.count("v_head_dim"),
        extras=(*layer.extras, f"latent of {d_latent} + {rotated}"),
        cache=LayerCache(d_latent + rotated),
        d_K_latent=d_latent + rotated,
        d_V_latent=d_latent,
    )


def _cross(fields: Fields) -> LayerAnatomy:
    """Return attention to an encoder, of which K and V are kept."""
    d_head, n_kv_head = _d_head(fields), _n_kv_head(fields)
    cache = LayerCache(per_source_token=2 * n_kv_head * d_head)
    return LayerAnatomy("cross", _n_head(fields), n_kv_head, d_head, d_head, cache=cache)


def _has_positions(fields: Fields) -> bool:
    """Check whether a layer has positions, which some families leave out of every fourth layer."""
    return bool(fields.config.get("no_rope_layers", 1))


def _rotation(fields: Fields, kind: str) -> tuple[float | None, str | None]:
    """Return the base of a layer's rotary positions, and how they are scaled."""
    if not _has_positions(fields) or not fields.has("rope_parameters") or fields.config.get("alibi"):
        return None, None
    condition = family_of(fields.model_type).rotates_if
    if condition is not None and fields.get(condition[0]) != condition[1]:
        return None, None
    settings = rope_settings(fields.config, kind)
    theta = settings.get("rope_theta")
    if theta is None and not isinstance(fields.config.get("rope_parameters"), dict):
        default = fields.get("rope_parameters")
        theta = default.get(kind, default).get("rope_theta") if isinstance(default, dict) else None
    if isinstance(theta, bool) or not isinstance(theta, int | float):
        return None, None
    if not fields.in_file.keys() & BASES:
        of_kind = kind in (fields.get("rope_parameters") or {})
        fields.taken[f"rope_theta of {kind}" if of_kind else "rope_theta"] = theta
    scaling, factor = settings.get("rope_type", settings.get("type", "default")), settings.get("factor")
    if scaling in ("default", None):
        return float(theta), None
    return float(theta), f"{scaling} {factor:g}" if isinstance(factor, int | float) else str(scaling)


BASES = {"rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base", "global_rope_theta"}
"""Fields that may say the base of rotary positions."""


NORM = "q/k norm"

SWITCHES = {
    NORM: ("use_qk_norm", "qk_layernorm", "qk_norm"),
    "biases": ("attention_bias", "qkv_bias"),
}
"""What fields switch on: the fields that may say so, of which a family has one."""


def _extras(fields: Fields) -> Iterator[str]:
    """Yield what else belongs to a layer's attention."""
    of_family, ignored = ((fields.family or {}).get(name, []) for name in ("has", "ignores"))
    for what, names in SWITCHES.items():
        switches = (name for name in names if fields.has(name) and name not in ignored)
        switch = next(switches, None)
        if bool(fields.get(switch)) if switch else what in of_family:
            yield what
    if "sinks" in of_family:
        yield "sinks"
    if cap := fields.get("attn_logit_softcapping"):
        yield f"soft cap {cap:g}"


DRAFT_FIELDS = (
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
    "num_mtp_modules",
    "mtp_num_layers",
    "num_mtp_layers",
)
"""The fields of config.json that say how many draft layers there are, which predict further tokens:
multi-token prediction (arXiv:2412.19437, section 2.2). They have keys and values and weights of their
own, which engines keep only if drafting is switched on."""

ATTENTION_AND_EXPERTS = (["attention", "moe"], ["full_attention", "moe"], "*E")
"""What a draft layer of Nemotron-H is made of: `mtp_layers_block_type`, or, in older files,
`mtp_hybrid_override_pattern` (nemotron_h_mtp.py of vLLM)."""


def number_of_drafts(config: Config) -> tuple[int, str]:
    """Count the draft layers of a configuration, and name the field that says so."""
    text = text_part(config)
    for name in DRAFT_FIELDS:
        count = text.get(name)
        if type(count) is int and 0 < count < 1000:
            return count, name
    return 0, ""


def draft_layer(config: Config, anatomy: ModelAnatomy, named: str | None = None) -> LayerAnatomy | None:
    """Return the attention of a draft layer; None: it is not known.

    Args:
        named: the type that the file names, where it is read as another.
    """
    text, model_types = text_part(config), {anatomy.model_type, named}
    blocks = text.get("mtp_layers_block_type", text.get("mtp_hybrid_override_pattern"))
    of_nemotron = "nemotron_h" in model_types and blocks in ATTENTION_AND_EXPERTS
    if not any(family_of(each).drafts_alike for each in model_types) and not of_nemotron:
        return None
    return max(anatomy.layers, key=lambda layer: layer.cache.per_token)
