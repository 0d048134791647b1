"""Find out which model type of transformers describes the decoder of a config.json.

A configuration may name a type of its authors, or none, and may describe its decoder in a part. Then the
type follows from that of the whole, from the class that `architectures` names, or from what a user says.
Some types of authors, whose decoders have the ordinary fields, are read as Llama's, which a notice says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from attnscope.base.errors import ModelError, OptionError
from attnscope.base.spelling import spelled
from attnscope.base.text import nearest, printable, shortened
from attnscope.model.families.fields import families, wholes
from attnscope.model.files.config import PARTS_OF_TEXT, Config

ALIKE = "llama"
"""The type whose reading suits a decoder of full attention with the ordinary fields."""

NAMES = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "num_layers", "n_layer"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "num_key_value_heads": ("num_key_value_heads", "multi_query_group_num", "num_kv_heads"),
    "head_dim": ("head_dim", "kv_channels"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "max_position_embeddings": ("max_position_embeddings", "model_max_length", "seq_length"),
}
"""What authors call the fields of a decoder."""

ORDINARY = frozenset(
    """aquila baichuan chatglm deepseek internlm internlm2 internlm3 minicpm minicpmv molmo orion
    phi3_v qwen qwen3_asr_text xverse""".split()
)
"""Types whose code comes with the weights, and whose layers all have full attention."""

NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads")

OTHER_ATTENTION = re.compile(
    r"\w*lora_rank|block_configs|\w*sparse_(?:attention_)?config|(?:linear|mamba|ssm|conv|hybrid|swa)_\w+"
    r"|attn_layer_\w+|attention_chunk_size|(?:index|indexer)_\w+|num_kv_shared_layers|layer_types"
    r"|cross_attention_layers|full_attention_interval|layers_block_type|is_encoder_decoder|state_size"
    r"|(?:en|de)coder_(?:layers|attention_heads)|attention_types|attention_hidden_size|per_layer_config"
)
"""Fields of layers that do not all have keys and values of every token."""

BLOCKS = "nemotron-nas"
"""The type whose layers each have a configuration of their own: Puzzle (arXiv:2411.19146)."""

OF_OTHER_BLOCKS = (
    "num_sink_tokens",
    "sparsify",
    "unshifted_sink",
    "use_prefill_window_in_sink_attention",
    "window_length",
)
"""What its layers may have, but those that are published have not."""

SAME = {"mimo": "qwen2", "minimax_m3": "minimax_m3_vl_text"}
"""Types of authors whose fields are those of a type of transformers with another name: modeling_mimo.py
beside the weights derives its classes from Qwen2's."""

NOT_ITS_CLASS = {"rwkv5": "RWKV 5", "rwkv6": "RWKV 6", "rwkv7": "RWKV 7"}
"""Types whose authors name a class of transformers that computes something else."""


@dataclass(frozen=True)
class Typed:
    """A configuration whose decoder has a known type, if one was found."""

    config: Config  #: the content of config.json, with this type
    notices: tuple[str, ...] = ()  #: what was assumed, in sentences
    by_fields: bool = False  #: whether nothing but the fields of attention says what the decoder is like
    #: The type that the file names; None: it is the type that the configuration has here.
    named: str | None = None


def with_known_types(config: Config, like: str | None = None) -> Typed:
    """Return a configuration whose decoder has a known type.

    Args:
        like: the model type that the user says the decoder is like; None: it is looked for.
    """
    if like is not None and like not in families():
        near = nearest(like, families())
        raise OptionError(
            f"{spelled('like', shortened(like))}: there is no such model type.",
            spelled(like=near or ALIKE),
        )
    name = _part_of_text(config)
    if name is None:
        return _typed(config, config, like)
    if config.get("model_type") is None and (found := _type_of_whole(config)) is not None:
        typed = with_known_types(config | {"model_type": found}, like)
        why = f"config.json has no model_type: it is read as {found}, whose class its architectures name"
        return replace(typed, notices=(why, *typed.notices))
    part = config[name]
    if part.get("model_type") is None and (found := _type_in(config, name)) is not None:
        part = part | {"model_type": found}
    part = _with_dtype(part, config)
    if _part_of_text(part) is None:
        typed = _typed(part, config, like)
    else:
        typed = with_known_types({"model_type": config.get("model_type")} | part, like)
    return replace(typed, config=config | {name: typed.config})


def _part_of_text(config: Config) -> str | None:
    """Return the name of the part that describes the decoder; None: the configuration itself does."""
    for name in PARTS_OF_TEXT:
        part = config.get(name)
        if (
            isinstance(part, dict)
            and part
            and ("model_type" in part or name.endswith(("_config", "_cfg")))
        ):
            return name
    return None


def _with_dtype(part: Config, whole: Config) -> Config:
    """Return a part with the dtype of the whole, unless it has its own."""
    names = ("dtype", "torch_dtype")
    found = next((whole[name] for name in names if isinstance(whole.get(name), str)), None)
    return part if found is None or any(part.get(name) for name in names) else part | {"dtype": found}


def _type_in(whole: Config, name: str) -> str | None:
    """Return the type that a part without one has in transformers; None: it does not know the whole."""
    model_type = whole.get("model_type")
    if not isinstance(model_type, str):
        return None
    if f"{model_type}_text" in families():
        return f"{model_type}_text"
    found = wholes()["parts"].get(model_type, {})
    return found.get(name)


def _typed(config: Config, whole: Config, like: str | None) -> Typed:
    """Return the configuration of a decoder alone with a known type.

    Args:
        whole: the configuration that it is a part of, or itself.
    """
    model_type, known = config.get("model_type"), families()
    named = model_type if isinstance(model_type, str) else None
    if like is not None:
        notice = f"it is read as {like}, as you say ({spelled('like')})"
        return Typed(with_common_names(config) | {"model_type": like}, (notice,), named=named)
    if isinstance(model_type, str) and model_type in known:
        return Typed(config)
    if f"{model_type}_text" in known:
        return Typed(_divided(config, f"{model_type}_text"))
    if (real := NOT_ITS_CLASS.get(str(model_type))) is not None:
        raise ModelError(f"{model_type} is {real}, and the rwkv of transformers is RWKV 4.")
    what = "config.json has no model_type"
    if model_type is not None:
        what = f"its model type {printable(shortened(repr(model_type)))} is not known"
    if (same := SAME.get(str(model_type))) is not None:
        return Typed(config | {"model_type": same}, (f"{what}: it is read as {same}",), named=named)
    for architectures in (config.get("architectures"), whole.get("architectures")):
        if (found := _type_of_class(architectures)) is not None:
            sentence = f"{what}: it is read as {found}, whose class its architectures name"
            return Typed(with_common_names(config) | {"model_type": found}, (sentence,), named=named)
    if model_type == BLOCKS and (blocks := _of_blocks(config)) is not None:
        sentence = (
            f"{what}: it is read as {ALIKE}, with the heads of each layer that its block_configs say"
        )
        return Typed(blocks | {"model_type": ALIKE}, (sentence,), by_fields=True, named=named)
    ordinary = _ordinary(config) if model_type in ORDINARY else None
    if ordinary is None and (kind := _type_in({"model_type": model_type}, "text_config")) in known:
        sentence = f"it has no part for its text: it is read as {kind}, the text part of {model_type}"
        return Typed(_divided(config, kind), (sentence,))
    if ordinary is None:
        return Typed(config)
    sentence = (
        f"{what}: it is read as a decoder of full attention, by its fields, as {ALIKE} is"
        f" ({spelled('like')})"
    )
    return Typed(ordinary | {"model_type": ALIKE}, (sentence,), by_fields=True, named=named)


def _divided(config: Config, kind: str) -> Config:
    """Return a configuration with a part for text, whose fields earlier versions have at the top."""
    whole = {
        name: value
        for name, value in config.items()
        if name in ("model_type", "architectures")
        or (name.endswith("_config") and isinstance(value, dict))
    }
    text = {name: value for name, value in config.items() if name not in whole}
    return whole | {"text_config": text | {"model_type": kind}}


def _type_of_class(architectures: Any) -> str | None:
    """Return the type whose class `architectures` names; of several with one class, the shortest."""
    listed = architectures if isinstance(architectures, list) else []
    classes = [each for each in listed if isinstance(each, str)]
    found = (each for each, family in families().items() if family["class"] in classes)
    return min(found, key=len, default=None)


def _type_of_whole(config: Config) -> str | None:
    """Return the type of a class of transformers with several parts that `architectures` names."""
    listed, classes = config.get("architectures"), wholes()["classes"]
    named = (classes.get(str(each)) for each in (listed if isinstance(listed, list) else []))
    return next((each for each in named if each is not None), None)


def _ordinary(config: Config) -> Config | None:
    """Return the fields of a decoder of full attention, under Llama's names; None: it may be another."""
    fields = with_common_names(config)
    sizes = [fields.get(name) for name in NEEDED]
    if not all(type(each) is int and each > 0 for each in sizes):
        return None
    if other_attention(config) is not None:
        return None
    window, longest = config.get("sliding_window"), fields.get("max_position_embeddings")
    if window and config.get("use_sliding_window", True) and not (longest and window >= longest):
        return None
    fields.pop("sliding_window", None)  # it hides nothing, or is not used
    if not any(name in config for name in ("rope_theta", "rotary_emb_base", "rope_parameters")):
        fields["rope_parameters"] = {}  # it may have no rotary positions
    return fields


def _of_blocks(config: Config) -> Config | None:
    """Return Llama's fields of a decoder by the configurations of its layers; None: they are undecided.

    A layer has full attention, whose heads of queries share keys in groups, or a single matrix instead,
    or nothing. Source: modeling_decilm.py beside the weights, and vLLM's nemotron_nas.py.
    """
    fields = _ordinary({name: value for name, value in config.items() if name != "block_configs"})
    blocks = config.get("block_configs")
    if fields is None or not isinstance(blocks, list) or len(blocks) != fields["num_hidden_layers"]:
        return None
    kinds, own = [], {}
    for index, block in enumerate(blocks):
        attention = block.get("attention") if isinstance(block, dict) else None
        if not isinstance(attention, dict):
            return None
        switches = [attention.get(name, False) for name in ("no_op", "replace_with_linear")]
        if any(type(each) is not bool for each in switches):
            return None
        if any(switches):
            kinds.append("dense")
            continue
        n_group, n_head = attention.get("n_heads_in_group"), fields["num_attention_heads"]
        if type(n_group) is not int or n_group < 1 or n_head % n_group:
            return None
        if any(attention.get(name) for name in OF_OTHER_BLOCKS):
            return None
        kinds.append("full_attention")
        own[index] = {"num_key_value_heads": n_head // n_group}
    return fields | {"layer_types": kinds, "per_layer_config": own}


def other_attention(config: Config) -> str | None:
    """Return the first field of another kind of attention than most; None: there is none."""
    return next(
        (name for name, value in config.items() if value and OTHER_ATTENTION.fullmatch(name)), None
    )


def with_common_names(config: Config) -> Config:
    """Return a configuration with Llama's names of fields beside those of its authors."""
    fields = dict(config)
    for name, others in NAMES.items():
        found = next((config[each] for each in others if config.get(each) is not None), None)
        if found is not None:
            fields[name] = found
    if config.get("multi_query_attention") is False:
        fields.pop("num_key_value_heads", None)
    return fields
