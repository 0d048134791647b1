"""How many parameters a model's attention and its other parts have, and how many bytes store them."""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.results.common import Part


@dataclass(frozen=True, repr=False)
class PartCount(Part):
    """The size of one part of a model.

    Attributes:
        name: for attention `W_Q`, `W_K`, `W_V`, `W_O`, `norms`, `biases`, `latents`, …; for the rest
            `embedding`, `output`, `experts`, `other`, …; for a kind of storage its dtype.
        n_parameter: the number of parameters. Numbers that only describe how others are stored, such as
            scales, are none.
        n_bytes: what stores them, scales and the like included; None: not known.
    """

    name: str
    n_parameter: int
    n_bytes: int | None


@dataclass(frozen=True, repr=False)
class WeightsCount(Part):
    """The sizes of a model's parts.

    Attributes:
        attention: the parts of attention that the model has.
        rest: the other parts that it has.
        dtypes: the same parameters by how they are stored, such as `BF16` or `4 bits in I32`.
        source: `headers`; `configuration`; or `transformers`, whose model has no values.
        n_active: parameters that take part in the computation of one token of text: all but input
            embeddings, towers, draft layers and the experts that are not chosen; None: not known.
        uncertain: a sentence for each thing that could not be decided, and why.
    """

    attention: tuple[PartCount, ...]
    rest: tuple[PartCount, ...]
    dtypes: tuple[PartCount, ...]
    source: str
    n_active: int | None = None
    uncertain: tuple[str, ...] = ()

    @property
    def n_parameter(self) -> int:
        """The number of parameters of the model."""
        return sum(part.n_parameter for part in (*self.attention, *self.rest))

    @property
    def n_attention(self) -> int:
        """The number of parameters of attention."""
        return sum(part.n_parameter for part in self.attention)

    @property
    def n_bytes(self) -> int | None:
        """The bytes of all parts; None: those of one part are not known."""
        return total_bytes((*self.attention, *self.rest))


def total_bytes(parts: tuple[PartCount, ...]) -> int | None:
    """Return the bytes of several parts; None: those of one are not known."""
    sizes = [part.n_bytes for part in parts]
    return None if None in sizes else sum(size for size in sizes if size is not None)
