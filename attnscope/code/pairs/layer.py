"""A side that is the attention of one layer of a model, on the input that it receives for a text."""

from __future__ import annotations

import inspect
import re
from typing import Any

from attnscope.code.load.examples import HEADS, WIDTH
from attnscope.code.load.signatures import Callee
from attnscope.code.pairs.implementation import Side
from attnscope.model.run.attention_layer import AttentionLayer
from attnscope.model.run.layers import field_of

HEAD_WIDTH = re.compile(r"head_?dim|dim_?head|d_?head|head_?size|^d_?[kv]$")


LAYER_INDEX = ("layer_idx", "layer_id", "layer_index")


def layer_side(layer: AttentionLayer) -> Side:
    """Return the attention of a layer with the arguments that it received."""
    bound = inspect.signature(layer.module.forward).bind(*layer.args, **layer.kwargs)
    inputs: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        inputs |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    inputs = {name: value for name, value in inputs.items() if not _is_cache(name, value)}
    return Side(f"{layer.name}, {layer.path}", layer.module, inputs, module=layer.module)


def _is_cache(name: str, value: Any) -> bool:
    """Check whether an argument is a cache, to which every run would append."""
    is_named = name.startswith(("past_key_value", "layer_past")) or name == "cache_position"
    return is_named or type(value).__name__.endswith("Cache")


def sizes_for(target: Callee, layer: AttentionLayer, known: set[str]) -> dict[str, Any]:
    """Return arguments of a constructor that follow from a model's configuration.

    These are `config`, the index of the layer, and fields of the configuration: by their own names, or
    by the usual words for widths and numbers of heads.
    """
    text = layer.config.get_text_config()

    def field(name: str) -> Any:
        return field_of(text, name, layer.index)

    n_head = field("num_attention_heads")
    d_head = field("head_dim") or field("hidden_size") // n_head
    found: dict[str, Any] = {}
    for name, parameter in (target.parameters.parameters if target.parameters else {}).items():
        if name in known:
            continue
        if name in LAYER_INDEX:
            found[name] = layer.index
        elif parameter.default is not parameter.empty:
            continue
        elif name == "config":
            found[name] = text
        elif (value := field(name)) is not None:
            found[name] = value
        elif HEAD_WIDTH.search(name):
            found[name] = d_head
        elif HEADS.search(name) or name in ("h", "n_h"):
            is_shared = re.search(r"kv|key", name)
            found[name] = field("num_key_value_heads") or n_head if is_shared else n_head
        elif WIDTH.search(name):
            found[name] = field("hidden_size")
    return found
