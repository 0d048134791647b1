"""What a model reads: the tokens of its sequences, or the patches of an image."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Token:
    """One token of the sequence of queries or of keys.

    Attributes:
        text: as the tokenizer decodes it, including a leading space; `##` marks the continuation of a
            word in BERT's vocabulary; for an image patch, its row and column.
        segment: 0; in a pair of texts, 1 for tokens of the second.
        special: whether the tokenizer or the model added it: `[CLS]`, `</s>`.
        generated: whether the model generated it.
    """

    text: str
    segment: int = 0
    special: bool = False
    generated: bool = False


@dataclass(frozen=True)
class Picture:
    """The image that a vision model attended to.

    Attributes:
        rows, columns: the size of the grid of patches; their tokens come row by row.
        first: how many tokens come before the patches, such as `[CLS]`.
        png: the image after cropping and resizing for the model, as the bytes of a PNG file.
    """

    rows: int
    columns: int
    first: int
    png: bytes = field(repr=False)
