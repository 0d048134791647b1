"""Read config.json: validate its fields, and find those of a stack of layers.

transformers does not check fields: it builds a model with -1 heads, or with more layers than fit into
memory, and fails somewhere inside. So they are checked before anything is built.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnscope.base.errors import ModelError
from attnscope.base.process.verbosity import silent_transformers
from attnscope.base.text import shortened

Config = dict[str, Any]

LONGEST_JSON = 64 * 2**20
"""The most bytes of a file of JSON; the largest indices of shards have 20 MB."""
MOST_INNER = 10**5
"""The most lists and objects in it, each of which takes twenty times its size in memory."""

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
MAY_BE_ZERO = ("type_vocab_size", "head_dim")
WITHOUT_LIMIT = ("max_position_embeddings", "n_positions", "n_ctx")
"""Fields in which -1 means no limit."""
PARTS = r"(text|vision|audio|encoder|decoder|thinker|language|backbone)_config"
"""Fields that contain a nested configuration."""


def read_config(path: Path) -> Config:
    """Read a config.json, and check the fields that determine attention."""
    config = read_json(path)
    check_settings(path, config)
    return config


def read_json(path: Path) -> Config:
    """Read a JSON object from one of a model's files."""
    try:
        if path.stat().st_size > LONGEST_JSON:
            raise ValueError(f"it has {path.stat().st_size} bytes, more than {LONGEST_JSON}")
        text = path.read_text(encoding="utf-8")
        if (n_inner := text.count("[") + text.count("{")) > MOST_INNER:
            raise ValueError(f"it has {n_inner} lists and objects, more than {MOST_INNER}")
        content = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {path}: {error}.") from error
    if not isinstance(content, dict):
        raise ModelError(f"cannot read {path}: it does not contain a JSON object.")
    return content


def check_settings(path: Path, config: Config) -> None:
    """Raise a ModelError for the first field of a config.json whose value is invalid.

    Args:
        config: its content. A field that is null or missing takes its family's default; a list contains
            a number for each layer.
    """
    for field, value, expected in _faults(config, ""):
        if isinstance(value, dict) and value and all(type(each) is int for each in value.values()):
            stacks = ", ".join(f"{count} of {name}" for name, count in value.items())
            raise ModelError(
                f"{path} describes several stacks of layers ({field}: {shortened(stacks)}), which"
                " attnscope does not read.",
                hint="a model whose layers are one stack, or an encoder and a decoder",
            )
        raise ModelError(
            f"{path} is damaged: {field} is {shortened(repr(value))}, but must be {expected}.",
            hint="the config.json that the weights were saved with",
        )


def _faults(config: Config, prefix: str) -> Iterator[tuple[str, Any, str]]:
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
        elif field == "architectures" and not (
            isinstance(value, list) and all(isinstance(each, str) for each in value)
        ):
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


def rope_settings(config: Config, kind: str) -> Config:
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


def own_fields(config: Config, layer: int) -> Config:
    """Return the fields that one layer has for its own, in `per_layer_config` of a configuration.

    Its keys are numbers, and texts in JSON; transformers writes them with zeros in front: `"05"`.
    """
    by_layer = config.get("per_layer_config")
    if not isinstance(by_layer, dict):
        return {}
    own = next(
        (each for key, each in by_layer.items() if str(key).isdecimal() and int(key) == layer), None
    )
    return own if isinstance(own, dict) else {}


def longest_text(config: Config) -> int | None:
    """Return the maximum number of tokens according to a `config.json`; None if it gives none."""
    names = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length")
    found = [config[name] for name in names if isinstance(config.get(name), int)]
    nested = [longest_text(each) for each in config.values() if isinstance(each, dict)]
    return max([*found, *(each for each in nested if each is not None)], default=None)


PARTS_OF_STACK = {
    "self": ("text_config",),
    "text": ("text_config",),
    "encoder": ("encoder",),
    "decoder": ("decoder",),
    "cross": ("decoder", "text_config"),
    "vision": ("vision_config", "encoder"),
    "audio": ("audio_config", "encoder"),
}
"""The nested configurations that may contain a stack's sizes, by the stack's name."""


def configs_of_stack(config: Config, stack: str) -> list[Config]:
    """Return the nested configurations of a stack, the most specific first, and then the whole one."""
    parts = [config.get(part) for part in PARTS_OF_STACK.get(stack, ())]
    return [*(part for part in parts if isinstance(part, dict)), config]


def layer_kinds(config: Config, stack: str) -> dict[int, str]:
    """Return the kind of each layer by its index, if config.json gives it."""
    for each in configs_of_stack(config, stack):
        for field_ in ("layer_types", "layers_block_type", "block_types"):
            kinds = each.get(field_)
            if isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds):
                return dict(enumerate(kinds))
        linear = each.get("linear_attn_config")  # Kimi Linear's: its layers are counted from 1
        if isinstance(linear, dict) and isinstance(linear.get("kda_layers"), list):
            return {i - 1: "linear_attention" for i in linear["kda_layers"] if type(i) is int}
    return {}


PARTS_OF_TEXT = (
    "text_config",
    "thinker_config",
    "llm_config",
    "llm_cfg",
    "language_config",
    "decoder",
    "decoder_config",
    "text_model",
)
"""Where configurations of several towers describe the one that reads text."""


def text_part(config: Config) -> Config:
    """Return the part of a configuration that describes the decoder of text: perhaps itself."""
    for name in PARTS_OF_TEXT:
        part = config.get(name)
        if isinstance(part, dict) and "model_type" in part:
            return text_part(part)
    return config


def completed(config: Config) -> Config | None:
    """Return a configuration with the defaults of transformers; None if it does not know these."""
    try:
        with silent_transformers():
            complete = decoder_config(config)
            fields: Config = complete.to_dict()
    except Exception:  # an unknown type, or sizes that it rejects
        return None
    return fields | computed_kinds(complete)


def decoder_config(config: Config) -> Any:
    """Return transformers' configuration of the decoder of text; errors are those of its class."""
    from transformers import AutoConfig

    complete = AutoConfig.for_model(**config)
    if complete.is_encoder_decoder:  # whose fields `get_text_config` would rename
        return complete
    return complete.get_text_config(decoder=True)


def computed_kinds(config: Any) -> Config:
    """Return the `layer_types` that some classes compute whenever they are read, beside their fields."""
    kinds = getattr(config, "layer_types", None)
    return {} if kinds is None else {"layer_types": list(kinds)}


def dtype_of(config: Config) -> str | None:
    """Return the dtype that a configuration names, without its prefix `torch.`; None: it names none."""
    dtype = config.get("dtype", config.get("torch_dtype"))
    return dtype.removeprefix("torch.") if isinstance(dtype, str) else None
