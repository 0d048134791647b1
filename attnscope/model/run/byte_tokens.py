"""Reassemble characters whose bytes are split across several tokens.

Byte-level vocabularies (GPT-2, Llama 3, Qwen, ByT5) and sentencepiece's byte fallback split unknown
characters into bytes. `漢` may then be three tokens, none of which is a character.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

MARK = "⋯"
"""Marks a character that continues in the next token, or began in an earlier one."""


def bytes_of(piece: str) -> bytes | None:
    r"""Return the bytes that a token of a vocabulary stands for; None if it does not stand for bytes.

    Args:
        piece: the token as the vocabulary spells it: `<0xE6>`, or letters of GPT-2's byte alphabet.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2,
    and its published `bytes_to_unicode`; Kudo and Richardson 2018, "SentencePiece", `byte_fallback`.

    >>> bytes_of("<0xE6>"), bytes_of("Ġæ"), bytes_of("漢")
    (b'\xe6', b' \xe6', None)
    """
    if fallback := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", piece):
        return bytes.fromhex(fallback[1])
    alphabet = _byte_alphabet()
    if not all(letter in alphabet for letter in piece):
        return None
    return bytes(alphabet[letter] for letter in piece)


def characters_of(parts: Sequence[bytes]) -> list[str]:
    r"""Give each of several neighbouring tokens the characters that end in it.

    Args:
        parts: the bytes of each token.

    Returns:
        A text for each token. `⋯` before a character says that it began in an earlier token; `⋯` at the
        end says that one goes on in the next. Bytes that are not UTF-8 are escaped.

    Source: RFC 3629, section 3: the first byte of a character says how many it has.

    >>> characters_of([b" \xe6\xbc", b"\xa2", b"!"]), characters_of([b"\xe6", b"\xbc"])
    ([' ⋯', '⋯漢', '!'], ['\\xe6', '\\xbc'])
    """
    content = b"".join(parts)
    token_of = [token for token, part in enumerate(parts) for _ in part]
    texts = [""] * len(parts)
    at = 0
    while at < len(content):
        size = _size_of_character(content[at])
        try:
            character = content[at : at + size].decode("utf-8")
        except UnicodeDecodeError:
            texts[token_of[at]] += f"\\x{content[at]:02x}"
            at += 1
            continue
        first, last = token_of[at], token_of[at + size - 1]
        for token in range(first, last):
            texts[token] += MARK if not texts[token].endswith(MARK) else ""
        texts[last] += (MARK if first < last else "") + character
        at += size
    return texts


def _size_of_character(first: int) -> int:
    """Return the number of bytes of a character by its first byte; 1 if no character begins with it."""
    return 4 if first >= 0xF0 else 3 if first >= 0xE0 else 2 if first >= 0xC0 else 1


@cache
def _byte_alphabet() -> dict[str, int]:
    """Return the byte that each letter of GPT-2's alphabet represents; printable bytes are unchanged."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }
