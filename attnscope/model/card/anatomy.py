"""The anatomy of a model's attention: what each layer attends to, and what it keeps for later tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil


@dataclass(frozen=True)
class Compressed:
    """What a layer keeps of tokens that it joins to blocks: DeepSeek-V4."""

    size: int
    per_block: int  #: numbers kept for each complete block
    per_leftover: int  #: numbers kept for each token that waits for its block to be complete
    overlap: int = 0  #: numbers kept of the last complete block, for the next one
    #: Whether the tokens that wait are as many as there ever are on the way, not at the end.
    at_peak: bool = True

    def numbers(self, n_tokens: int) -> int:
        """Count the numbers that are kept after `n_tokens` tokens."""
        n_block, left = divmod(n_tokens, self.size)
        left = min(n_tokens, self.size - 1) if self.at_peak else left
        return self.per_block * n_block + self.per_leftover * left + (self.overlap if n_block else 0)


LEAST_OF_STATES = 2
"""The least bytes of a number of a state, whatever the dtype of keys and values is."""


@dataclass(frozen=True)
class LayerCache:
    """What a layer keeps for later tokens, in numbers, not bytes."""

    per_token: int = 0  #: numbers kept for each token: K and V, or latents, or an indexer's keys too
    window: int | None = None  #: the most tokens that are kept, with the query's own; None: all
    #: The most tokens that the dynamic cache of transformers keeps between steps, when the next query's
    #: own is not there yet; None: all.
    dynamic_window: int | None = None
    per_token_float32: int = 0  #: more numbers for each token, kept in float32 whatever the dtype is
    #: Numbers kept whatever the length is, in the cache's dtype, but in two bytes at least: states of
    #: convolutions and recurrences, which are not quantised.
    constant: int = 0
    constant_float32: int = 0  #: the same, kept in float32 whatever the dtype is
    #: Those of `constant` that are a convolution's newest input, which vLLM does not keep.
    newest: int = 0
    per_source_token: int = 0  #: numbers kept for each token of the encoder, for cross-attention
    compressed: Compressed | None = None  #: what is kept of blocks of tokens beside; None: nothing

    def numbers(self, n_tokens: int, n_source: int = 0) -> int:
        """Count the numbers that are kept after `n_tokens` tokens, whatever their dtype."""
        in_dtype, in_float32 = self._numbers(n_tokens, n_source)
        return in_dtype + self.constant + in_float32

    def nbytes(self, n_tokens: int, itemsize: int | Fraction, n_source: int = 0) -> int:
        """Count the bytes that are kept after `n_tokens` tokens."""
        in_dtype, in_float32 = self._numbers(n_tokens, n_source)
        states = self.constant * max(itemsize, LEAST_OF_STATES)
        return ceil(in_dtype * itemsize + states) + in_float32 * 4

    def _numbers(self, n_tokens: int, n_source: int) -> tuple[int, int]:
        """Count the numbers of tokens that are kept in the cache's dtype, and all those in float32."""
        kept = n_tokens if self.window is None else min(n_tokens, self.window)
        in_dtype = self.per_token * kept + self.per_source_token * n_source
        if self.compressed is not None:
            in_dtype += self.compressed.numbers(n_tokens)
        return in_dtype, self.per_token_float32 * kept + self.constant_float32

    @property
    def dynamic(self) -> LayerCache:
        """What the dynamic cache of transformers keeps of it between steps."""
        if self.window == self.dynamic_window and self.compressed is None:
            return self
        compressed = self.compressed and replace(self.compressed, at_peak=False)
        return replace(self, window=self.dynamic_window, compressed=compressed)


@dataclass(frozen=True)
class Indexer:
    """What chooses the keys of sparse attention: DeepSeek-V3.2-Exp, section 1."""

    #: `n_head`, `d_head`: its own heads, whose scores decide.
    n_head: int
    d_head: int
    n_chosen: int  #: the most keys that each query chooses


@dataclass(frozen=True)
class LayerAnatomy:
    """One layer's attention."""

    #: `full`, `sliding`, `chunked`, `latent`, `sparse` (an indexer chooses keys), `linear`, `state
    #: space`, `convolution`, `compressed` (a window, and blocks of tokens before it), `compressed
    #: sparse` (an indexer chooses blocks), `cross`, `shared` (another layer's keys and values) or
    #: `none`; two of them, joined by ` + `, if a layer has both.
    kind: str
    #: `n_head`, `n_kv_head`, `d_K`, `d_V`: the sizes; None where the kind has none.
    n_head: int | None = None
    n_kv_head: int | None = None
    d_K: int | None = None  # noqa: N815 - the field's name
    d_V: int | None = None  # noqa: N815
    #: The most keys that a query sees, its own included; of chunks, their size.
    window: int | None = None
    rope_theta: float | None = None  #: the base of rotary positions; None: there are none
    rope_scaling: str | None = None  #: how positions are scaled beyond the length of training
    #: What is computed beside: `q/k norm`, `soft cap 50`, `sinks`, `biases q k v`, …
    extras: tuple[str, ...] = ()
    cache: LayerCache = LayerCache()
    #: `d_K_latent`, `d_V_latent`: of latent attention: the widths of the one head of latents that stands
    #: for all heads' keys and values.
    d_K_latent: int | None = None  # noqa: N815
    d_V_latent: int | None = None  # noqa: N815
    indexer: Indexer | None = None  #: of sparse attention: what chooses its keys; None: it is not known
    #: The multiply-adds of the states of a recurrence or convolution for each token; None: there are
    #: none, or the kind of layer has them and they are not known.
    recurrence: int | None = None


@dataclass(frozen=True)
class ModelAnatomy:
    """The anatomy of a model's attention."""

    model_type: str  #: by its config.json, or the architecture of a GGUF file
    n_layer: int
    d_feat: int
    #: One for each layer, in order; of an encoder-decoder, those of the decoder.
    layers: tuple[LayerAnatomy, ...]
    #: Of an encoder-decoder: the cross-attention of each layer of the decoder; else empty.
    cross: tuple[LayerAnatomy, ...] = ()
    longest: int | None = None  #: the most tokens that the model was made for; None: it does not say
    #: The tokens that an encoder always has, as inputs are padded; None: those of its input.
    n_source: int | None = None
    dtype: str | None = None  #: by its config.json
    uncertain: tuple[str, ...] = ()  #: a sentence for each thing that could not be decided, and why
    #: Whether this is of a GGUF file, whose windows are those that llama.cpp applies.
    is_gguf: bool = False

    @property
    def reads_source(self) -> bool:
        """Whether it keeps keys and values of the tokens of an encoder, or of images."""
        return any(each.cache.per_source_token for each in (*self.layers, *self.cross))

    @property
    def cache_layers(self) -> tuple[LayerAnatomy, ...]:
        """The layers that keep something, those of cross-attention included."""
        return tuple(each for each in (*self.layers, *self.cross) if each.cache != LayerCache())
