"""Which keys queries should see: by a model's configuration, by options, or by what a user states."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from attnscope.attention import masks
from attnscope.attention.mask_rules import (
    mask_axes,
    names_function,
    names_rule,
    parse_masks,
)
from attnscope.attention.mask_values import read_mask
from attnscope.auditing.options import Properties
from attnscope.base.errors import OptionError
from attnscope.base.spelling import spelled, unnamed
from attnscope.code.load.mask_functions import function_of, visible_by_function
from attnscope.model.run.layers import field_of


@dataclass(frozen=True)
class ExpectedMask:
    """The keys that each query of a layer should see; every one of them, unless attention is sparse."""

    source: str
    causal: bool  #: whether later positions are hidden
    #: how many keys a query sees at most in each direction, its own included; None: all
    window: int | None = None
    chunk: int | None = None  #: the length of chunks, outside of which nothing is seen; None: no chunks
    prefix: int = 0  #: how many first positions every query sees
    sinks: int = 0  #: how many first positions remain visible outside of the window
    #: the narrowest width that the window may have, if its source leaves that open; then `window` is the
    #: widest. None: it is `window`
    least: int | None = None

    @property
    def required(self) -> ExpectedMask:
        """What a query must see, whatever is left open."""
        return self if self.least is None else replace(self, window=self.least, least=None)

    def visible(self, n: int) -> torch.Tensor:
        """Build the mask for as many queries as keys, True where a key is visible: `n_Q n_K`."""
        _, k = masks.positions(n, n)
        visible = torch.ones(n, n, dtype=torch.bool)
        if self.window is not None:
            visible &= masks.window(n, n, self.window - 1, self.window - 1) | (k < self.sinks)
        if self.chunk is not None:
            visible &= masks.chunk(n, n, self.chunk)
        if self.causal:
            visible &= masks.causal(n, n)
        return visible | (k < self.prefix)

    @property
    def limit(self) -> int | None:
        """The distance, in positions, beyond which nothing is seen; None: there is none."""
        limits = [each for each in (self.window, self.chunk) if each is not None]
        return min(limits) if limits else None

    def without_limit(self) -> ExpectedMask:
        """Return the mask of a layer that sees the whole text."""
        return replace(self, window=None, chunk=None, sinks=0, least=None)


def mask_of_options(properties: Properties, source: str) -> ExpectedMask:
    """Return the mask that options describe."""
    return ExpectedMask(
        source,
        properties.causal,
        properties.window,
        properties.chunk,
        properties.prefix or 0,
        properties.sinks or 0,
    )


@dataclass(frozen=True)
class StatedMask:
    """Which keys queries should see in each layer, and no others."""

    source: str
    visible: Callable[[int], torch.Tensor]  #: returns it for a number of positions: `n n`
    notes: list[str] = field(default_factory=list)  #: what is to be said of it, once it is built


def read_stated_mask(expect: Any) -> StatedMask | None:
    """Read a rule or several, a file, an array, or a function; None stays None."""
    if expect is None:
        return None
    subject = getattr(expect, "mask_mod", expect)  # a BlockMask has sizes of its own
    stated = list(subject) if isinstance(subject, list | tuple) else [subject]
    names = [each if isinstance(each, str) else getattr(each, "__name__", "a mask") for each in stated]
    source = spelled("expect", " ".join(names))
    others = [i for i, each in enumerate(stated) if not _is_rule(each)]
    if stated and not others:
        return StatedMask(source, partial(_visible_by_rules, stated, source))
    for i in others:
        if not _is_function(stated[i]):
            name = type(stated[i]).__name__ if names[i] == "a mask" else names[i]
            raise OptionError(f"{name} is not a mask to expect.", hint=_hint())
    if not stated:
        raise OptionError("nothing is not a mask to expect.", hint=_hint())
    name = names[others[0]]
    if len(stated) > 1:
        raise OptionError(
            f"several masks are rules, and {name} is not one.", hint="causal window:4, or a FILE"
        )
    notes: list[str] = []
    return StatedMask(source, partial(_visible_by_function, stated[0], name, notes), notes)


def _is_rule(mask: Any) -> bool:
    if isinstance(mask, str | os.PathLike):
        return names_rule(os.fspath(mask))
    return hasattr(mask, "shape") and not callable(mask)


def _is_function(mask: Any) -> bool:
    if isinstance(mask, str):
        return names_function(mask)
    return callable(mask) and not hasattr(mask, "state_dict")


def _visible_by_function(function: Any, name: str, notes: list[str], n: int) -> torch.Tensor:
    """Call a function for each pair of `n` positions, or for `n` if it returns a mask: `n n`."""
    sizes = {"n_batch": 1, "n_head": 1, "n_Q": n, "n_K": n}
    try:
        made, _ = function_of(function, None, sizes)
    except OptionError as error:
        raise OptionError(f"{name} is not a mask to expect: {error.message}", hint=_hint()) from error
    if hasattr(made, "shape"):
        read = read_mask(made, name)
        if read.why:
            notes[:] = [f"of {name}, {read.why}; a function of b, h, q_idx and kv_idx leaves no doubt"]
        return _visible_by_rules([read.visible], spelled("expect", name), n)
    return visible_by_function(made, name, sizes)[0, 0]


def _hint() -> str:
    rules = f"{spelled(expect='causal')}, window:4 or another rule"
    return f"{rules}; a FILE; or file.py:NAME of a mask_mod or of a mask"


def _visible_by_rules(rules: list[Any], source: str, n: int) -> torch.Tensor:
    """Build the mask of all rules for `n` positions: `n n`."""
    with unnamed("mask"):
        parsed = parse_masks(rules).applied(align="top-left", dtype="float32")
        shapes = [dict(zip(mask_axes(each, {}), each.shape, strict=True)) for each in parsed.files]
        shapes += [{"n_batch": len(each)} for each in parsed.lengths]
        sizes = {"n_batch": 1, "n_head": 1, "n_Q": n, "n_K": n}
        for axis in ("n_batch", "n_head"):
            sizes[axis] = max(each.get(axis, 1) for each in [*shapes, sizes])
        visible = ~masks.hidden(parsed.build(sizes, "float32", "cpu"))
    planes = visible.expand(sizes["n_batch"], sizes["n_head"], n, n).flatten(0, 1)
    if any(not torch.equal(each, planes[0]) for each in planes):
        raise OptionError(
            f"{source} differs between sequences or heads, and one visibility is compared.",
            hint="a mask n_Q n_K",
        )
    return planes[0]


OTHER_KINDS = ("linear_attention", "conv", "mamba", "recurrent", "moe", "sparse", "hybrid")
"""Kinds of layers, in `layer_types`, that are not softmax attention over all or some positions."""


WINDOWS = ("sliding", "window", "chunk")
"""Words in the kinds of layers that see only some positions."""


def causality(model: Any) -> tuple[bool | None, str]:
    """Decide whether a model is causal, with what says so; None if nothing does.

    For an encoder-decoder model, this is about its decoder.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    config, name = model.config, type(model).__name__
    text = (
        config.get_text_config(decoder=True) if config.is_encoder_decoder else config.get_text_config()
    )
    if config.is_encoder_decoder:
        return True, f"{name} has an encoder and a decoder"
    if getattr(text, "attn_type", None) == "bi":
        return False, "attn_type='bi' in the configuration"
    if getattr(text, "is_decoder", False):
        return True, "is_decoder=True in the configuration"
    if isinstance(stated := getattr(text, "is_causal", None), bool):
        return stated, f"is_causal={stated} in the configuration"
    if getattr(text, "use_bidirectional_attention", None) in (True, "all"):
        return False, "use_bidirectional_attention in the configuration"
    if getattr(text, "causal", None) is True:  # XLM's
        return True, "causal=True in the configuration"
    listed = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    if listed and type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        source = f"transformers lists {text.model_type} as a causal language model"
        return True, "; ".join(filter(None, [source, image_blocks(config)]))
    flags = {
        module.is_causal
        for module in model.modules()
        if isinstance(getattr(module, "is_causal", None), bool) and "ttention" in type(module).__name__
    }
    if flags == {True}:
        return True, "is_causal=True in every attention module"
    if flags == {False} or type(config) in MODEL_FOR_MASKED_LM_MAPPING:
        said = "is_causal=False in every attention module" if flags else "is_decoder=False"
        return False, said
    return None, f"nothing in {name} or its configuration says whether it is causal"


def image_blocks(config: Any) -> str:
    """Return in words that a text does not test the promise for tokens of images; or nothing."""
    if getattr(config.get_text_config(), "use_bidirectional_attention", None) != "vision":
        return ""
    return "use_bidirectional_attention='vision': tokens of an image see each other, which is not tested"


def mask_of_config(config: Any, layer: int | None, causal: bool) -> ExpectedMask | None:
    """Read from a configuration the mask that a layer should have; None if its kind has no such mask."""
    if unread_window(config) is not None:
        return None
    full = ExpectedMask("full attention", causal)
    kinds = getattr(config, "layer_types", None)
    window = field_of(config, "sliding_window", layer)
    if isinstance(kinds, list) and kinds and layer is not None and layer < len(kinds):
        kind = str(kinds[layer])
        if any(other in kind for other in OTHER_KINDS):
            return None
        if kind == "sliding_attention":
            if not isinstance(window, int):
                return None
            return _sliding(window, causal, f"layer_types[{layer}]={kind!r}")
        if kind == "chunked_attention":
            chunk = field_of(config, "attention_chunk_size", layer)
            return ExpectedMask(f"attention_chunk_size={chunk}", causal, chunk=chunk)
        return full if kind == "full_attention" else None
    if isinstance(kinds := getattr(config, "attention_layers", None), list) and layer is not None:
        if kinds[layer] == "local":  # GPT-Neo's
            return ExpectedMask(f"window_size={config.window_size}", causal, window=config.window_size)
        return full
    if isinstance(window, int) and getattr(config, "use_sliding_window", True):
        return _sliding(window, causal, "all layers")
    return full


def _sliding(window: int, causal: bool, where: str) -> ExpectedMask:
    """Return the mask of a sliding window.

    In both directions, its width is a convention of each family: the keys on both sides together, those
    on each side, or these with the query's own.
    """
    source = f"sliding_window={window}, {where}"
    if causal:
        return ExpectedMask(source, True, window=window)
    return ExpectedMask(source, False, window=window + 1, least=(window + 1) // 2)


UNREAD = (
    "attention_window",  # Longformer, LED
    "attention_window_size",  # RecurrentGemma
    "local_radius",  # LongT5
    "local_attn_chunk_length",  # Reformer
    "sliding_window_size",  # Inkling
    "stagger_local_blocks",  # PEGASUS-X
)
"""Fields of configurations that promise a window in a way that is not read here."""


def unread_window(config: Any) -> str | None:
    """Find a field of a configuration that promises a window of unknown width, or None."""
    for name in UNREAD:
        if value := getattr(config, name, None):
            return f"{name}={value}"
    if getattr(config, "attention_type", None) == "block_sparse":  # BigBird's
        return "attention_type='block_sparse'"
    return None
