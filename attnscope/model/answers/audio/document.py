"""Show when words were said, and which heads follow a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.base.units import MISSING, few
from attnscope.document.columns import Column
from attnscope.model.heads.result import head_name

if TYPE_CHECKING:
    from attnscope.model.answers.audio.alignment import SpeechAlignment

MOST = 10  #: the most heads that are listed, beside those that times are taken from


def word_columns(alignment: SpeechAlignment) -> list[Column]:
    """Return a row for each word, with the seconds from which and to which it was said."""
    words = alignment.words
    first = [[(f"{word.first:.2f}", "")] for word in words]
    end = [[(MISSING, "dim") if word.end is None else (f"{word.end:.2f}", "")] for word in words]
    texts = [[(word.text.strip() or repr(word.text), "bold")] for word in words]
    return [
        Column("word", "word", texts, [word.text for word in words], lead=True),
        Column("from second", "first", first, [word.first for word in words], right=True),
        Column("to", "end", end, [word.end for word in words], right=True),
    ]


def head_columns(alignment: SpeechAlignment) -> list[Column]:
    """Return a row for each head that follows best, and for those that the model names."""
    used = set(alignment.used)
    shown = [
        each
        for i, each in enumerate(alignment.heads)
        if (i < MOST and each.score > 0) or each.named or (each.layer, each.head) in used
    ]
    marks = ["yes" if (each.layer, each.head) in used else "" for each in shown]
    named = ["yes" if each.named else "" for each in shown]

    def numbers(name: str) -> list[list[tuple[str, str]]]:
        return [[(f"{getattr(each, name):.2f}", "")] for each in shown]

    places = [head_name(each.layer, each.head) for each in shown]
    return [
        Column("head of cross-attention", "head", [[(each, "bold")] for each in places], places),
        Column("follows", "score", numbers("score"), [each.score for each in shown], right=True),
        Column("in order", "monotone", numbers("monotone"), [], right=True),
        Column("near its peak", "peaked", numbers("peaked"), [], right=True),
        Column("named by the model", "named", [[(each, "")] for each in named], []),
        Column("gives the times", "used", [[(each, "")] for each in marks], []),
    ]


def origin(alignment: SpeechAlignment) -> str:
    """Say which heads the times are taken from, and why these."""
    heads = few([head_name(layer, head) for layer, head in alignment.used])
    why = {
        "named": "which the model's generation config names",
        "measured": "which follow the recording best",
        "selected": "which were selected",
    }
    return f"times are those of {heads}, {why[alignment.origin]}"
