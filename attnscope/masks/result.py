"""Masks: which keys each query sees, in the layers of a model, or by a rule."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import no_such_part
from attnscope.base.text import shortened
from attnscope.base.units import counted, listed, numbers_text, percent
from attnscope.document.result import Check, Part, TensorResult, held_of, of_room
from attnscope.masks.planes import Plane
from attnscope.model.run.tokens import Token

if TYPE_CHECKING:
    import numpy as np


NO_RULE = "no simple rule"
"""Stands for a mask whose pattern has no name."""

LONGEST_PATTERN = 60
"""The most characters of a pattern in a summary."""


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
        name: the module and line of code that computes it; None: it is not from code.
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
    name: str | None = None
    stack: str | None = None
    layers: list[int] | None = None
    n_layer: int | None = None
    kinds: list[str] = field(default_factory=list)
    kernel: str | None = None
    received: str | None = None
    query_tokens: list[list[Token]] | None = field(default=None, repr=False)
    key_tokens: list[list[Token]] | None = field(default=None, repr=False)

    @property
    def sizes_text(self) -> str:
        """Its sizes; of sequences and heads only if there are several."""
        sizes = {"n_batch": self.n_batch, "n_head": self.n_head}
        shown = {axis: size for axis, size in sizes.items() if size > 1}
        shown |= {"n_Q": self.n_Q, "n_K": self.n_K}
        return " · ".join(f"{axis} {size:,}" for axis, size in shown.items())

    def layers_text(self, *, several_stacks: bool = False) -> str:
        """Name its layers: `layers 0–4, 6`."""
        layers = self.layers or []
        stack = f"{self.stack} " if several_stacks else ""
        return f"{stack}layer{'' if len(layers) == 1 else 's'} {numbers_text(layers)}"

    @property
    def pattern_text(self) -> str:
        """The patterns of a mask; those of sequences and heads, if they differ."""
        patterns = list(dict.fromkeys(each or NO_RULE for each in self.patterns))
        more = len(patterns) - 2
        return " or ".join(patterns[:2]) + (f" or {more} more" if more > 0 else "")

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        layers = f"{self.layers_text()}: " if self.layers is not None else ""
        share = percent(self.n_visible / self.n_pairs)
        pattern = shortened(self.pattern_text, LONGEST_PATTERN)
        return f"{layers}{pattern}, {self.sizes_text}, {share} visible"

    @property
    def pattern(self) -> str | None:
        """The pattern of all planes; None: they have none, or different ones."""
        return self.patterns[0] if len(set(self.patterns)) == 1 else None

    @property
    def n_pairs(self) -> int:
        """The number of all pairs of queries and keys."""
        return self.n_batch * self.n_head * self.n_Q * self.n_K

    def to_dict(self) -> dict[str, Any]:
        """Return its record: each query's keys as ranges, from the first to before the last."""
        from attnscope.document.json import plain

        record = {name: value for name, value in plain(self).items() if name != "patterns"}
        record["blocks"] |= {"saved": self.blocks.saved}
        record["n_pairs"] = self.n_pairs
        for name in ("query_tokens", "key_tokens"):
            tokens = getattr(self, name)
            record[name] = tokens and [[token.text for token in row] for row in tokens]
        record["planes"] = [
            {
                "places": plain(plane.places),
                "pattern": pattern,
                "visible": [[[keys.start, keys.stop] for keys in row] for row in plane.rows()],
            }
            for plane, pattern in zip(self.planes, self.patterns, strict=True)
        ]
        return record

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
class AttentionMasks(TensorResult):
    """The masks of a model's layers or of code for an input, or a single mask by a rule.

    Attributes:
        title: the name of the model or the code, or the rule.
        model: the name that the user gave; None: the mask is not from a model.
        masks: each mask, in the order of the first layer that has it.
        cell: the number of queries and keys in a cell of the picture; None: as many as necessary.
        checks: comparisons with what the kernels themselves do; None if none were made.
        notices: further sentences for the reader.
    """

    schema = "mask"
    more_arrays = (".npy",)

    title: str
    model: str | None
    masks: list[AttentionMask]
    cell: int | None = field(default=None, repr=False)
    checks: list[Check] | None = None
    notices: list[str] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        each = self.masks
        what = each[0].summary if len(each) == 1 else counted(len(each), "mask")
        return f"{shortened(self.title)}: {listed([what, *held_of(self.checks)])}"

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
        layers = [each for mask in self.masks for each in mask.layers or ()]
        raise no_such_part(f"layer {layer}", [f"layer {each}" for each in layers], "these masks")

    def save_tensors(self, path: Path, *, force: bool = False) -> int:
        """Write the masks to a file, a single one to a `.npy` file, too; return the size in bytes."""
        return of_room(AttentionMasks, "save_masks", "files")(self, path, force=force)

    def page(self) -> str:
        """Return a page of what a notebook shows."""
        from attnscope.document.page.document import document

        return document(f"{self.title} · masks", self._repr_html_())

    def to_dict(self) -> dict[str, Any]:
        """Return the record that `--format json` prints."""
        return super().to_dict() | {"masks": [each.to_dict() for each in self.masks]}

    def to_json(self) -> str:
        """Return the JSON document, with each row of a mask on one line."""
        from attnscope.document.json import compact_json

        return compact_json(self.to_dict())
