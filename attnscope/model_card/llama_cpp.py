"""What llama.cpp reserves for a sequence, with flash attention.

The rule is that of src/llama-kv-cache-iswa.cpp: each sequence has a stream of its own, of whole groups
of cells; layers with a window keep it and the tokens of one step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil

from attnscope.model_card.anatomy import LayerAnatomy, LayerCache
from attnscope.model_card.cache_dtype import BLOCKS, CacheDtype
from attnscope.model_card.gguf_windows import windows_of_config
from attnscope.model_card.result import NoRuleError, Reserve

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
        layers: the layers, in order.
        n_tokens: the tokens of the sequence.
        dtype: of keys and values.
        model_type: by its config.json.
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
