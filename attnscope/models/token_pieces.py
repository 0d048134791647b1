"""What each token contributes to a text, in bytes."""

from __future__ import annotations

from typing import Any

from attnscope.models.tokenize import piece_of


def pieces_of(tokenizer: Any, ids: list[int]) -> list[bytes]:
    """Return the bytes that each token stands for; special tokens are as they are spelled.

    Joined, they are the text, except that sentencepiece and others put a blank before it.

    Args:
        tokenizer: the model's.
        ids: token ids.
    """
    special = set(tokenizer.all_special_ids)
    known = [*dict.fromkeys(ids)]
    pieces = tokenizer.convert_ids_to_tokens(known)
    texts = {
        number: piece_of(tokenizer, number, piece, number in special)
        for number, piece in zip(known, pieces, strict=True)
    }
    return [each if isinstance(each, bytes) else each.encode() for each in map(texts.__getitem__, ids)]
