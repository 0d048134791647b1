"""What llama.cpp reserves for a sequence, with flash attention, and which layers have a window in it.

The rule is that of src/llama-kv-cache-iswa.cpp: each sequence has a stream of its own, of whole groups
of cells; layers with a window keep it and the tokens of one step.

A file says how long the window is, and newer ones which layers have it. For older ones, llama.cpp knows
by the architecture. What it knows of an architecture is in its `load_arch_hparams`, in src/models/; with
a period p, a layer i has a window if `i % p < p - 1` (`llama_hparams::set_swa_pattern`). Architectures
without a rule here have no window in llama.cpp, whatever their authors' code does: Mistral, which runs
as `llama`, Phi-3, Qwen2, StarCoder2.
Source: https://github.com/ggml-org/llama.cpp, src/models and conversion (llama-cpp-python 0.3.36)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, NamedTuple

from attnscope.model.card.anatomy import LayerAnatomy, LayerCache
from attnscope.model.card.cache_dtype import BLOCKS, CacheDtype
from attnscope.model.card.result import NoRuleError, Reserve
from attnscope.model.families.table import RUN_AS, architecture_of

LLAMA_DTYPES = frozenset(("float32", "bfloat16", "float16", *BLOCKS))
"""`kv_cache_types` in llama.cpp's common/arg.cpp."""

VERSION = "2026.10"
"""When llama.cpp had this rule: as llama-cpp-python 0.3.36 contains it."""

CELLS, LLAMA_STEP = 256, 512
"""llama.cpp's padding with flash attention, and its default `--ubatch-size`, in tokens."""


PLAIN = frozenset({"full", "sliding", "chunked", "latent", "shared", "none"})
"""The kinds of layers whose rule in llama.cpp is known."""


def llama_cpp_reserves(
    layers: Sequence[LayerAnatomy],
    n_tokens: int,
    dtype: CacheDtype,
    model_type: str = "",
    *,
    is_gguf: bool = False,
    step: int | None = None,
) -> list[Reserve]:
    """Count what llama.cpp reserves for one sequence; with `--swa-full`, too, where that differs.

    Args:
        is_gguf: whether the layers are those of a GGUF file, whose windows are llama.cpp's.
        step: `--ubatch-size`; None: its default.

    Raises:
        NoRuleError: the rule is not known, or llama.cpp does not have the model or the dtype.
    """
    known = layers if is_gguf else _as_in_llama_cpp(layers, model_type)
    if not {dtype.k, dtype.v} <= LLAMA_DTYPES:
        raise NoRuleError(f"it has no {dtype.name}")
    of_others = [each for each in layers if each.kind not in PLAIN or each.cache.constant]
    if of_others:
        raise NoRuleError(f"its rule for {of_others[0].kind} layers is not known here")
    if known is None:
        raise NoRuleError(f"it does not run {model_type or 'this model'}")
    step = step or LLAMA_STEP

    def padded(count: int) -> int:
        return ceil(count / CELLS) * CELLS

    def kept(cache: LayerCache) -> LayerCache:
        return cache if cache.window is None else replace(cache, window=padded(cache.window + step))

    def total(kept: Callable[[LayerCache], LayerCache]) -> int:
        tokens = padded(n_tokens)
        return sum(kept(each.cache).nbytes(tokens, dtype.itemsize(each)) for each in known)

    has_window = any(each.cache.window is not None for each in known)
    of_window = f"; window + {step:,} tokens of a sliding layer" if has_window else ""
    found = [Reserve("llama.cpp", total(kept), f"{VERSION}: multiples of {CELLS}{of_window}")]
    if has_window:
        rule = f"{VERSION} with --swa-full: multiples of {CELLS} in all layers"
        full = total(lambda cache: replace(cache, window=None))
        found.append(Reserve("llama.cpp, full", full, rule))
    return found


def _as_in_llama_cpp(layers: Sequence[LayerAnatomy], model_type: str) -> list[LayerAnatomy] | None:
    """Return layers with the windows that llama.cpp gives them; None: it does not run the model."""
    windows = windows_of_config(model_type, layers)
    if windows is None:
        return None
    return [
        each if window == each.cache.window else replace(each, cache=replace(each.cache, window=window))
        for each, window in zip(layers, windows, strict=True)
    ]


class Windows(NamedTuple):
    """The windows of a model's layers."""

    kind: str  #: `sliding`, or `chunked` where a query sees its own chunk
    size: int  #: the most keys that a query sees, its own included; 0: no layer has a window
    layers: tuple[bool, ...]  #: for each layer whether it has a window
    uncertain: str | None = None  #: a sentence if that could not be decided


def windows_of_config(model_type: str, layers: Sequence[LayerAnatomy]) -> tuple[int | None, ...] | None:
    """Return the window of each layer in llama.cpp; None: it does not run this model type.

    Args:
        layers: by config.json, in order, whose windows are those of the model's authors.
    """
    arch = RUN_AS.get(model_type)
    if arch is None:
        return None
    full: tuple[int | None, ...] = (None,) * len(layers)
    sizes = [each.window for each in layers if each.window is not None]
    rule = architecture_of(arch).windows
    if rule is None or not sizes:
        return full
    listed = [each.window is not None for each in layers] if rule.listed else None
    fields = {"attention.sliding_window": max(sizes), "attention.sliding_window_pattern": listed}
    found = find_windows(arch, fields.get, len(layers))
    return tuple(found.size if windowed else None for windowed in found.layers)


def find_windows(arch: str, value: Any, n_layer: int) -> Windows:
    """Choose the layers that have a window.

    Args:
        value: returns a value of the metadata by its key without the architecture, or None.
    """
    rule = architecture_of(arch).windows
    size, pattern = value("attention.sliding_window"), value("attention.sliding_window_pattern")
    size = size if type(size) is int and size >= 0 else None
    none = Windows("sliding", 0, (False,) * n_layer)
    of_others = rule is not None and rule.n_layer not in (None, n_layer)
    if of_others or size == 0:
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
