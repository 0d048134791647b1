"""Which layers of a GGUF file have a window, as llama.cpp decides it.

A file says how long the window is, and newer ones which layers have it. For older ones, llama.cpp knows
by the architecture. What it knows of an architecture is in its `load_arch_hparams`, in src/models/; with
a period p, a layer i has a window if `i % p < p - 1` (`llama_hparams::set_swa_pattern`).
Source: https://github.com/ggml-org/llama.cpp/tree/master/src/models
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Windows:
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


@dataclass(frozen=True)
class _Rule:
    """What llama.cpp knows of an architecture.

    Attributes:
        period: every which layer has no window.
        size: the window's size if the file does not say it; 0: without it there is none.
        fixed: whether the size holds whatever the file says.
        first: whether the layer without a window is the first of its period, not the last.
        kind: of the windows.
        n_layer: the rule holds only for models with this many layers; None: for all.
    """

    period: int
    size: int = 0
    fixed: bool = False
    first: bool = False
    kind: str = "sliding"
    n_layer: int | None = None


RULES = {
    "gemma2": _Rule(2, 4096),
    "gemma3": _Rule(6),
    "gemma3n": _Rule(5),
    "gpt-oss": _Rule(2),
    "cohere2": _Rule(4),
    "olmo2": _Rule(4),
    "exaone4": _Rule(4, 4096, n_layer=64),
    "llama4": _Rule(4, 8192, fixed=True, kind="chunked"),
    "smallthinker": _Rule(4, 4096, fixed=True, first=True),
}
"""Architectures whose files need not say which layers have a window."""
WITHOUT = ("phi3", "phimoe")
"""Architectures whose windows llama.cpp does not apply, whatever the file says: all layers are full."""


def find_windows(arch: str, value: Any, n_layer: int) -> Windows:
    """Return which layers have a window.

    Args:
        arch: the architecture.
        value: returns a value of the metadata by its key without the architecture, or None.
        n_layer: the number of layers.
    """
    rule = RULES.get(arch)
    if rule is not None and rule.n_layer not in (None, n_layer):
        rule = None
    size, pattern = value("attention.sliding_window"), value("attention.sliding_window_pattern")
    size = size if type(size) is int and size >= 0 else None
    none = Windows("sliding", 0, (False,) * n_layer)
    if arch in WITHOUT or size == 0:
        return none
    if rule is not None and (rule.fixed or size is None):
        needs_key = rule.fixed and rule.kind != "chunked" and size is None
        size = 0 if needs_key else rule.size
    if not size:
        return none
    kind = rule.kind if rule else "sliding"
    if isinstance(pattern, list) and len(pattern) == n_layer:
        return Windows(kind, size, tuple(bool(each) for each in pattern))
    period = pattern if type(pattern) is int and pattern >= 0 else rule.period if rule else None
    if period is None:
        return Windows(
            *("sliding", 0, (False,) * n_layer),
            f"{arch}.attention.sliding_window is {size}, but the file does not say which layers have"
            " that window: all count as full",
        )
    place = 0 if rule and rule.first else period - 1
    return Windows(kind, size, tuple(period == 0 or i % period != place for i in range(n_layer)))
