"""A side that is the attention of one layer of a model, on the input that it receives for a text."""

from __future__ import annotations

import inspect
import re
from typing import Any

from attnscope.comparison.sides.side import Side
from attnscope.models.attention_layer import AttentionLayer
from attnscope.tracing.target.examples import HEADS, WIDTH
from attnscope.tracing.target.signatures import Callee

HEAD_WIDTH = re.compile(r"head_?dim|dim_?head|d_?head|head_?size|^d_?[kv]$")


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
    """Return whether an argument is a cache, to which every run would append."""
    is_named = name.startswith(("past_key_value", "layer_past")) or name == "cache_position"
    return is_named or type(value).__name__.endswith("Cache")


def sizes_for(target: Callee, config: Any, known: set[str]) -> dict[str, Any]:
    """Return arguments of a constructor that follow from a model's configuration.

    Args:
        target: the class.
        config: the configuration.
        known: the arguments that the user passes.
    """
    text = config.get_text_config()
    n_head = text.num_attention_heads
    d_head = getattr(text, "head_dim", None) or text.hidden_size // n_head
    found: dict[str, Any] = {}
    for name, parameter in (target.parameters.parameters if target.parameters else {}).items():
        if name in known or parameter.default is not parameter.empty:
            continue
        if name == "config":
            found[name] = text
        elif HEAD_WIDTH.search(name):
            found[name] = d_head
        elif HEADS.search(name) or name in ("h", "n_h"):
            is_shared = re.search(r"kv|key", name)
            found[name] = getattr(text, "num_key_value_heads", None) or n_head if is_shared else n_head
        elif WIDTH.search(name):
            found[name] = text.hidden_size
    return found
