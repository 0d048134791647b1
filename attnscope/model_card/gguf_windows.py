"""Which layers have a window in llama.cpp: of a GGUF file, or of one converted from a config.json.

A file says how long the window is, and newer ones which layers have it. For older ones, llama.cpp knows
by the architecture. What it knows of an architecture is in its `load_arch_hparams`, in src/models/; with
a period p, a layer i has a window if `i % p < p - 1` (`llama_hparams::set_swa_pattern`). Architectures
without a rule here have no window in llama.cpp, whatever their authors' code does: Mistral, which runs
as `llama`, Phi-3, Qwen2, StarCoder2.
Source: https://github.com/ggml-org/llama.cpp, src/models and conversion (llama-cpp-python 0.3.36)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from attnscope.model_card.anatomy import LayerAnatomy


class Windows(NamedTuple):
    """The windows of a model's layers.

    Attributes:
        kind: `sliding`, or `chunked` where a query sees its own chunk.
        size: the most keys that a query sees, its own included; 0: no layer has a window.
        layers: for each layer whether it has a window.
        uncertain: a sentence if that could not be decided.
    """

    kind: str
    size: int
    layers: tuple[bool, ...]
    uncertain: str | None = None


class _Rule(NamedTuple):
    """What llama.cpp knows of an architecture.

    Attributes:
        period: every which layer has no window; None: the file says which.
        size: the window's size if the file does not say it; 0: without it there is none.
        fixed: whether the size holds whatever the file says.
        first: whether the layer without a window is the first of its period, not the last.
        kind: of the windows.
        n_layer: the rule holds only for models with this many layers; None: for all.
        listed: whether files that are converted from config.json list the layers with a window.
    """

    period: int | None
    size: int = 0
    fixed: bool = False
    first: bool = False
    kind: str = "sliding"
    n_layer: int | None = None
    listed: bool = True


RULES = {
    "afmoe": _Rule(4, listed=False),
    "cohere2": _Rule(4, listed=False),
    "cohere2moe": _Rule(4, first=True),
    "exaone-moe": _Rule(4, 128),
    "exaone4": _Rule(4, 4096, n_layer=64),
    "gemma2": _Rule(2, 4096, listed=False),
    "gemma3": _Rule(6, listed=False),
    "gemma3n": _Rule(5),
    "gemma4": _Rule(None),
    "gpt-oss": _Rule(2, listed=False),
    "granite_swa": _Rule(None),
    "laguna": _Rule(4, first=True, listed=False),
    "llama4": _Rule(4, 8192, fixed=True, kind="chunked", listed=False),
    "mellum": _Rule(4),
    "mimo2": _Rule(None),
    "olmo2": _Rule(4),
    "plamo3": _Rule(8),
    "smallthinker": _Rule(4, 4096, fixed=True, first=True, listed=False),
}
"""What llama.cpp knows of the architectures that have windows in it."""
WITHOUT = ("phi3", "phimoe")
"""Architectures whose windows llama.cpp does not apply, whatever the file says: all layers are full."""


ARCHITECTURES = {
    name: arch
    for arch, names in {
        "afmoe": "afmoe",
        "apertus": "apertus",
        "arcee": "arcee",
        "bitnet": "bitnet",
        "bloom": "bloom",
        "chatglm": "glm",
        "cohere2": "cohere2",
        "cohere2moe": "cohere2_moe",
        "command-r": "cohere",
        "dbrx": "dbrx",
        "deepseek2": "deepseek_v2 deepseek_v3 glm4_moe_lite youtu",
        "dots1": "dots1",
        "ernie4_5": "ernie4_5",
        "ernie4_5-moe": "ernie4_5_moe",
        "exaone-moe": "exaone_moe",
        "exaone4": "exaone4",
        "falcon": "falcon",
        "gemma": "gemma",
        "gemma2": "gemma2",
        "gemma3": "gemma3_text",
        "gemma3n": "gemma3n_text",
        "gemma4": "gemma4_text gemma4_unified_text",
        "glm4": "glm4 glm4v_text",
        "glm4moe": "glm4_moe glm4v_moe_text solar_open",
        "gpt-oss": "gpt_oss",
        "gpt2": "gpt2",
        "gptneox": "gpt_neox",
        "granite": "granite",
        "granite_swa": "granite_swa granitemoe_swa",
        "granitemoe": "granitemoe granitemoeshared",
        "hunyuan-dense": "hunyuan_v1_dense",
        "hunyuan-moe": "hunyuan_v1_moe",
        "jais2": "jais2",
        "laguna": "laguna",
        "llama": "internlm3 llama mistral mixtral",
        "llama4": "llama4_text",
        "mellum": "mellum",
        "mimo2": "mimo_v2_flash",
        "minicpm3": "minicpm3",
        "minimax-m2": "minimax_m2",
        "mistral3": "ministral3",
        "mpt": "mpt",
        "nemotron": "nemotron",
        "olmo": "olmo",
        "olmo2": "olmo2 olmo3",
        "olmoe": "olmoe",
        "phi2": "phi",
        "phi3": "phi3",
        "phimoe": "phimoe",
        "qwen2": "qwen2",
        "qwen2moe": "qwen2_moe",
        "qwen2vl": "qwen2_vl_text qwen2_5_vl_text",
        "qwen3": "qwen3",
        "qwen3moe": "qwen3_moe",
        "qwen3vl": "qwen3_vl_text",
        "qwen3vlmoe": "qwen3_vl_moe_text",
        "seed_oss": "seed_oss",
        "smollm3": "smollm3",
        "stablelm": "stablelm",
        "starcoder": "gpt_bigcode",
        "starcoder2": "starcoder2",
    }.items()
    for name in names.split()
}
"""The architecture as which llama.cpp runs a model type: what `ModelBase.register` says of its class.
Left out are those whose layers keep states or have an indexer, whose rule is not described here."""


def windows_of_config(model_type: str, layers: Sequence[LayerAnatomy]) -> tuple[int | None, ...] | None:
    """Return the window of each layer in llama.cpp; None: it does not run this model type.

    Args:
        model_type: by config.json.
        layers: by config.json, in order, whose windows are those of the model's authors.
    """
    arch = ARCHITECTURES.get(model_type)
    if arch is None:
        return None
    full: tuple[int | None, ...] = (None,) * len(layers)
    sizes = [each.window for each in layers if each.window is not None]
    if arch not in RULES or not sizes:
        return full
    listed = [each.window is not None for each in layers] if RULES[arch].listed else None
    fields = {"attention.sliding_window": max(sizes), "attention.sliding_window_pattern": listed}
    found = find_windows(arch, fields.get, len(layers))
    return tuple(found.size if windowed else None for windowed in found.layers)


def find_windows(arch: str, value: Any, n_layer: int) -> Windows:
    """Choose the layers that have a window.

    Args:
        arch: the architecture.
        value: returns a value of the metadata by its key without the architecture, or None.
        n_layer: the number of layers.
    """
    rule = RULES.get(arch)
    size, pattern = value("attention.sliding_window"), value("attention.sliding_window_pattern")
    size = size if type(size) is int and size >= 0 else None
    none = Windows("sliding", 0, (False,) * n_layer)
    of_others = rule is not None and rule.n_layer not in (None, n_layer)
    if arch in WITHOUT or of_others or size == 0:
        return none
    if rule is not None and (rule.fixed or size is None):
        needs_key = rule.fixed and rule.kind != "chunked" and size is None
        size = 0 if needs_key else rule.size
    if not size:
        return none
    kind = rule.kind if rule else "sliding"
    if isinstance(pattern, list) and len(pattern) == n_layer:
        return Windows(kind, size, tuple(bool(each) for each in pattern))
    known = rule.period if rule else None
    period = pattern if type(pattern) is int and pattern >= 0 else known
    if period is None:
        return Windows(
            *("sliding", 0, (False,) * n_layer),
            f"{arch}.attention.sliding_window is {size}, but the file does not say which layers have"
            " that window: all count as full",
        )
    place = 0 if rule and rule.first else period - 1
    return Windows(kind, size, tuple(period == 0 or i % period != place for i in range(n_layer)))
