"""What a model's attention computes and moves: FLOPs, bytes, and the sizes of attention maps."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnscope.results.common import Part


@dataclass(frozen=True, repr=False)
class Flops(Part):
    """The FLOPs of all sequences; a multiply and an add are two.

    Attributes:
        attention: of Q · Kᵀ and attention · V, of an indexer, and of the states of recurrences; None:
            not known.
        rest: of all weights, W_Q, W_K, W_V and W_O among them: two for each active parameter and token;
            None: not known.
    """

    attention: int | None
    rest: int | None

    @property
    def total(self) -> int | None:
        """The sum; None if one part is not known."""
        return None if self.attention is None or self.rest is None else self.attention + self.rest


@dataclass(frozen=True, repr=False)
class Work(Part):
    """The work of a model at a context.

    Attributes:
        prefill: of reading all tokens of the context at once.
        token: of one more token of each sequence, which sees the whole context, itself included; None:
            an encoder generates none.
        dominates_from: the length, in tokens, from which one token's attention takes more FLOPs than the
            rest; None: never, or not known.
        bytes_moved: for one more token of each sequence: the active weights once, and the keys and
            values of all sequences; None: not known.
        limit: what bounds one more token: `bandwidth` or `compute`; None: no device was named.
        seconds: the least time of one more token of each sequence by that limit.
        maps_bytes: of the attention maps of all layers, whole, n_Q × n_K for each head; None: not known.
        block_bytes: of a block of queries of the largest layer, all heads and keys; None: not known.
        block: the queries of that block.
        notices: a sentence for each thing that is not known, and why.
    """

    prefill: Flops
    token: Flops | None
    dominates_from: int | None
    bytes_moved: int | None
    limit: str | None
    seconds: float | None
    maps_bytes: int | None
    block_bytes: int | None
    block: int
    notices: list[str] = field(default_factory=list)

    @property
    def intensity(self) -> float | None:
        """The FLOPs for each byte moved, for one more token; None: not known."""
        total = self.token.total if self.token else None
        return total / self.bytes_moved if total is not None and self.bytes_moved else None
