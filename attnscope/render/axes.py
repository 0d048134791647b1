"""The tokens along the axes of a map: cut to the room there is, and counted in cells of a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from attnscope.render.colours import Scale
from attnscope.render.columns import AXIS_STYLES
from attnscope.render.tokens import label
from attnscope.results.maps import Token
from attnscope.text import LEFT_TO_RIGHT_MARK

QUERY, KEY = AXIS_STYLES["n_Q"], AXIS_STYLES["n_K"]
"""The styles of the two axes, as everywhere."""

GENERATED = "italic green"
SPECIAL = "dim"


def token_text(token: Token, scale: Scale) -> str:
    """A token on one line, in characters that the console can show."""
    return spelled(label(token.text), scale)


def spelled(text: str, scale: Scale) -> str:
    """A text in characters that the console can show."""
    return text.encode(scale.encoding, "backslashreplace").decode(scale.encoding)


def token_style(token: Token) -> str:
    """What tells the tokens that the model wrote, and those that were added, from the others."""
    return GENERATED if token.generated else SPECIAL if token.special else ""


def group_text(tokens: Sequence[Token], scale: Scale) -> str:
    """Neighbouring tokens on one line."""
    return " ".join(token_text(token, scale) for token in tokens)


def range_text(positions: range, scale: Scale) -> str:
    """The first and the last of some positions: `6–11`; of one, itself."""
    first, last = positions[0], positions[-1]
    return str(first) if first == last else f"{first}{scale.marks.dash}{last}"


def listed(tokens: Sequence[Token], scale: Scale) -> Text:
    """Keys with their positions, one after the other."""
    line = Text("keys:")
    for position, token in enumerate(tokens):
        line.append(f" {position} ", KEY).append(isolated(token_text(token, scale)), token_style(token))
    return line


def cut(text: str, width: int, scale: Scale) -> str:
    """A text of at most `width` cells, with a mark where something was cut off."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + scale.marks.more if width else ""


def left(text: str, width: int, scale: Scale, style: str = "") -> Text:
    """A text in `width` cells, at their left."""
    shown = cut(text, width, scale)
    return Text(isolated(shown) + " " * (width - cell_len(shown)), style)


def centred(text: str, width: int, scale: Scale, style: str = "") -> Text:
    """A text in the middle of `width` cells, the last of which stays free."""
    shown = cut(text, width - 1, scale)
    free = width - cell_len(shown)
    return Text(" " * (free // 2) + isolated(shown) + " " * (free - free // 2), style)


def downwards(text: str, height: int, width: int, scale: Scale) -> list[str]:
    """A text written downwards, a letter on each of `height` lines, as low as it goes.

    Returns:
        `height` pieces of `width` cells.
    """
    letters = _letters(text)
    if len(letters) > height:
        letters = [*letters[: height - 1], scale.marks.more]
    lines = [""] * (height - len(letters)) + letters
    return [isolated(letter) + " " * (width - cell_len(letter)) for letter in lines]


def height(text: str) -> int:
    """How many lines a text takes that is written downwards."""
    return len(_letters(text))


def _letters(text: str) -> list[str]:
    """Characters as they are seen: those that take no cell stand with the one before."""
    letters: list[str] = []
    for character in text:
        if letters and not cell_len(character):
            letters[-1] += character
        else:
            letters.append(character)
    return letters


def isolated(text: str) -> str:
    """A text after which words stand where they would stand after any other."""
    from_the_right = any(unicodedata.bidirectional(each) in ("R", "AL", "AN") for each in text)
    return text + LEFT_TO_RIGHT_MARK if from_the_right else text
