"""What a model reads: the tokens of its sequences, or the patches of an image."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Token:
    """One token of the sequence of queries or of keys."""

    #: as the tokenizer decodes it, including a leading space; `##` marks the continuation of a word in
    #: BERT's vocabulary; for an image patch, its row and column.
    text: str
    #: 0; in a pair of texts, 1 for tokens of the second.
    segment: int = 0
    #: whether the tokenizer or the model added it: `[CLS]`, `</s>`.
    special: bool = False
    generated: bool = False


@dataclass(frozen=True)
class Picture:
    """The image that a vision model attended to."""

    #: rows, columns: the size of the grid of patches; their tokens come row by row.
    rows: int
    columns: int
    #: how many tokens come before the patches, such as `[CLS]`.
    first: int
    #: the image after cropping and resizing for the model, as the bytes of a PNG file.
    png: bytes = field(repr=False)
