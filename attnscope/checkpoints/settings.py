"""Validate the fields of a config.json that determine attention.

transformers does not check them: it builds a model with -1 heads, or with more layers than fit into
memory, and fails somewhere inside. So they are checked before anything is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnscope.errors import ModelError
from attnscope.text import shortened

SIDE = r"(encoder_|decoder_|vision_|text_)?"
LARGEST = {
    rf"{SIDE}(num_)?(attention_|key_value_|kv_)?heads|n_heads?|num_kv_heads": 10**5,
    rf"{SIDE}(num_)?(hidden_)?layers|n_layers?": 10**5,
    r"hidden_size|d_model|n_embd|dim|head_dim|d_kv|d_head|embedding_size|word_embed_proj_dim": 10**7,
    r"intermediate_size|d_ff|ffn_dim|n_inner|(encoder|decoder)_ffn_dim|hidden_dim": 10**8,
    r"vocab_size|type_vocab_size": 10**9,
    r"image_size|patch_size|num_channels": 10**6,
    r"max_position_embeddings|n_positions|n_ctx": 10**9,
}
"""Upper bounds of fields that count something. They exceed every real model: a config.json with a larger
value is damaged, and building its model would exhaust the memory."""
MAY_BE_ZERO = ("type_vocab_size",)
WITHOUT_LIMIT = ("max_position_embeddings", "n_positions", "n_ctx")
"""Fields in which -1 means no limit."""
PARTS = r"(text|vision|audio|encoder|decoder|thinker|language|backbone)_config"
"""Fields that contain a nested configuration."""


def check_settings(path: Path, config: dict[str, Any]) -> None:
    """Raise a ModelError for the first field of a config.json whose value is invalid.

    Args:
        path: the file.
        config: its content. A field that is null or missing takes its family's default; a list contains
            a number for each layer.
    """
    for field, value, expected in _faults(config, ""):
        raise ModelError(
            f"{path} is damaged: {field} is {shortened(repr(value))}, but must be {expected}.",
            hint="the config.json that the weights were saved with",
        )


def _faults(config: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any, str]]:
    """Yield each invalid field: its name, its value, and a description of valid values."""
    for field, value in config.items():
        if value is None:
            continue
        if re.fullmatch(PARTS, field):
            if isinstance(value, dict):
                yield from _faults(value, f"{prefix}{field}.")
            else:
                yield f"{prefix}{field}", value, "an object"
        elif field == "model_type" and not isinstance(value, str):
            yield f"{prefix}{field}", value, "a string"
        elif field in ("dtype", "torch_dtype") and not _is_dtype(value):
            yield f"{prefix}{field}", value, "the name of a dtype, such as float32"
        elif field == "quantization_config" and not isinstance(value, dict):
            yield f"{prefix}{field}", value, "an object"
        elif field == "architectures" and not _is_list_of(str, value):
            yield f"{prefix}{field}", value, "a list of strings"
        else:
            yield from _count_faults(field, value, prefix)


def _count_faults(field: str, value: Any, prefix: str) -> Iterator[tuple[str, Any, str]]:
    most = next((most for names, most in LARGEST.items() if re.fullmatch(names, field)), None)
    if most is None:
        return
    counts = value if isinstance(value, list) and value else [value]
    least = 0 if isinstance(value, list) or field in MAY_BE_ZERO else 1
    least = -1 if field in WITHOUT_LIMIT else least
    # transformers itself writes 1200.0 as the length of a text
    whole = (type(count) is int or (type(count) is float and count.is_integer()) for count in counts)
    if not all(whole) or not all(least <= count <= most for count in counts):
        yield f"{prefix}{field}", value, f"a whole number from {least} to {most:,}"


def _is_dtype(value: Any) -> bool:
    """Check whether a value may name a dtype; a model of several parts has an object of dtypes."""
    if isinstance(value, dict):
        return True
    return isinstance(value, str) and bool(
        re.fullmatch(r"(torch\.)?(auto|half|double|b?float\d*\w*)", value)
    )


def _is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, kind) for each in value)


def rope_settings(config: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the settings of rotary positions, as transformers 5 or earlier versions write them."""
    settings = config.get("rope_parameters")
    if isinstance(settings, dict):
        of_kind = settings.get(kind)
        return of_kind if isinstance(of_kind, dict) else settings
    local = config.get("rope_local_base_freq", config.get("local_rope_theta"))
    if kind == "sliding_attention" and local is not None:
        return {"rope_theta": local}
    theta = config.get("rope_theta", config.get("rotary_emb_base", config.get("global_rope_theta")))
    share = config.get("partial_rotary_factor", config.get("rotary_pct"))
    scaling = config.get("rope_scaling")
    own = {"rope_theta": theta, "partial_rotary_factor": share}
    return own | (scaling if isinstance(scaling, dict) else {})
