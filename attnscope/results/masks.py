"""Masks: which keys each query sees, in the layers of a model, or by a rule."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnscope.results.common import Check, Part, Result
from attnscope.results.maps import Token
from attnscope.results.planes import Plane

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Blocks:
    """What a block-sparse kernel computes of a mask, over all sequences (and heads, if they differ).

    Full blocks are computed without the mask, partial ones with it, and empty ones not at all. As in
    torch's `create_block_mask`, a block that the border cuts off is not full.

    Attributes:
        n_query, n_key: the numbers of queries and keys in a block.
        full, partial, empty: the numbers of blocks.
    """

    n_query: int
    n_key: int
    full: int
    partial: int
    empty: int

    @property
    def total(self) -> int:
        """The number of all blocks."""
        return self.full + self.partial + self.empty

    @property
    def saved(self) -> float:
        """The share of blocks that need not be computed."""
        return self.empty / self.total


@dataclass(repr=False)
class AttentionMask(Part):
    """One mask, and the layers whose queries see these keys.

    Attributes:
        n_batch, n_head: the numbers of sequences, and of heads with masks of their own; 1 if all heads
            share one.
        n_Q, n_K: the numbers of queries and keys.
        n_visible: the number of visible pairs.
        n_blind: the number of queries that see no key.
        n_unseen: the number of keys that no query sees.
        blocks: what a block-sparse kernel computes.
        planes: the keys that queries see, once for all sequences and heads where they are the same.
        patterns: for each plane, what the visible pairs are, in words, found from the pairs themselves:
            `causal, at most 8 keys`; None: no simple rule.
        stack, layers: the stack and the indices of the layers; None: it is not from a model.
        n_layer: the number of layers of the stack.
        kinds: the kinds of these layers according to the model: `sliding_attention, window 8`.
        kernel: the name of the function that computes attention.
        received: what the kernel received, in words.
        query_tokens, key_tokens: the tokens of each sequence; None: there are none.
    """

    n_batch: int
    n_head: int
    n_Q: int  # noqa: N815 - the field's name
    n_K: int  # noqa: N815
    n_visible: int
    n_blind: int
    n_unseen: int
    blocks: Blocks
    planes: list[Plane] = field(repr=False)
    patterns: list[str | None]
    stack: str | None = None
    layers: list[int] | None = None
    n_layer: int | None = None
    kinds: list[str] = field(default_factory=list)
    kernel: str | None = None
    received: str | None = None
    query_tokens: list[list[Token]] | None = field(default=None, repr=False)
    key_tokens: list[list[Token]] | None = field(default=None, repr=False)

    @property
    def pattern(self) -> str | None:
        """The pattern of all planes; None: they have none, or different ones."""
        return self.patterns[0] if len(set(self.patterns)) == 1 else None

    @property
    def n_pairs(self) -> int:
        """The number of all pairs of queries and keys."""
        return self.n_batch * self.n_head * self.n_Q * self.n_K

    @property
    def visible(self) -> np.ndarray:
        """True where a query sees a key, `n_batch n_head n_Q n_K`."""
        import numpy as np

        visible = np.zeros((self.n_batch, self.n_head, self.n_Q, self.n_K), dtype=bool)
        for plane in self.planes:
            sequences, heads = zip(*plane.places, strict=True)
            visible[list(sequences), list(heads)] = plane.array()
        return visible


@dataclass(repr=False)
class AttentionMasks(Result):
    """The masks of a model's layers for an input, or a single mask by a rule.

    Attributes:
        title: the model's name, or the rule.
        model: the name that the user gave; None: the mask is not from a model.
        masks: each mask, in the order of the first layer that has it.
        cell: the number of queries and keys in a cell of the picture; None: as many as necessary.
        checks: comparisons with what the kernels themselves do; None if none were made.
        notices: further sentences for the reader.
    """

    title: str
    model: str | None
    masks: list[AttentionMask]
    cell: int | None = None
    checks: list[Check] | None = None
    notices: list[str] = field(default_factory=list)

    def of_layer(self, layer: int, stack: str | None = None) -> AttentionMask:
        """Return the mask of a layer.

        Args:
            layer: its index.
            stack: its stack; None: any.

        Raises:
            KeyError: no such layer was observed.
        """
        for each in self.masks:
            if layer in (each.layers or ()) and stack in (None, each.stack):
                return each
        raise KeyError((layer, stack))
