"""Format the tokens along the axes of a grid: truncated to the space available, in terminal cells."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Protocol

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from attnscope.base.text import LEFT_TO_RIGHT_MARK, printable
from attnscope.document.grid.colours import ColourScale
from attnscope.document.styles import AXIS_STYLES, GREEN

EVERY = 5  # columns between positions in a ruler

QUERY, KEY = AXIS_STYLES["n_Q"], AXIS_STYLES["n_K"]
"""The styles of the two axes, the same in every view."""

GENERATED = f"italic {GREEN}"
SPECIAL = "dim"

NAMED = {"\n": "⏎", "\t": "⇥", " ": "␣", "": "∅"}
"""Symbols for tokens that would be invisible."""


class AxisToken(Protocol):
    """What stands at a position of an axis; the attributes are those of `models.tokens.Token`."""

    @property
    def text(self) -> str: ...
    @property
    def segment(self) -> int: ...
    @property
    def special(self) -> bool: ...
    @property
    def generated(self) -> bool: ...


def label(text: str) -> str:
    r"""Return a token's text on one line, without its leading space, with invisible characters escaped.

    >>> label(" cat"), label("\n"), label(" "), label("a\x1b[1m")
    ('cat', '⏎', '␣', 'a\\x1b[1m')
    """
    if len(text) > 1 and text[0] == " ":
        text = text[1:]
    if text in NAMED:
        return NAMED[text]
    if text.isprintable():
        return text
    return "".join(NAMED["\n"] if each == "\n" else printable(each) for each in text)


def token_text(token: AxisToken, scale: ColourScale) -> str:
    """Return a token on one line, in characters that the console can show."""
    return spelled(label(token.text), scale)


def spelled(text: str, scale: ColourScale) -> str:
    """Return a text in characters that the console can show."""
    return text.encode(scale.encoding, "backslashreplace").decode(scale.encoding)


def token_style(token: AxisToken) -> str:
    """Return the style of a token: generated and special tokens differ from the others."""
    return GENERATED if token.generated else SPECIAL if token.special else ""


def group_text(tokens: Sequence[AxisToken], scale: ColourScale) -> str:
    """Join neighbouring tokens on one line."""
    return " ".join(token_text(token, scale) for token in tokens)


def range_text(positions: range, scale: ColourScale) -> str:
    """Format a range of positions as `6–11`, or as `6` if there is only one."""
    first, last = positions[0], positions[-1]
    return str(first) if first == last else f"{first}{scale.marks.dash}{last}"


def row_labels(
    groups: Sequence[range], tokens: Sequence[AxisToken] | None, width: int, scale: ColourScale
) -> list[Text]:
    """Return the label of each row: its positions, and the tokens that fit into `width` cells."""
    numbers = [range_text(group, scale) for group in groups]
    widest = max(map(cell_len, numbers))
    labels = []
    for number, group in zip(numbers, groups, strict=True):
        line = Text(" " * (widest - cell_len(number))).append(number, QUERY)
        if tokens is not None:
            members = tokens[group.start : group.stop][:width]
            text = cut(group_text(members, scale), width, scale)
            line.append(" ").append(isolated(text), token_style(members[0]))
        labels.append(line)
    return labels


def ruler(groups: Sequence[range], width: int, room: int | None = None) -> Text:
    """Return a line with the first position of every fifth column, above columns of `width` cells.

    The line takes at most `room` cells; None: any number.
    """
    line, free = Text(), 0
    for i, group in enumerate(groups):
        number, place = str(group.start), i * width
        fits = room is None or place + len(number) <= room
        if i % EVERY == 0 and free <= place and fits:
            line.append(" " * (place - line.cell_len)).append(number, KEY)
            free = line.cell_len + 1
    return line


def listed(tokens: Sequence[AxisToken], scale: ColourScale) -> Text:
    """List keys with their positions on one line."""
    line = Text("keys:")
    for position, token in enumerate(tokens):
        line.append(f" {position} ", KEY).append(isolated(token_text(token, scale)), token_style(token))
    return line


def cut(text: str, width: int, scale: ColourScale) -> str:
    """Truncate a text to at most `width` cells, with a mark at the end if it was longer."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + scale.marks.more if width else ""


def left(text: str, width: int, scale: ColourScale, style: str = "") -> Text:
    """Align a text at the left of `width` cells."""
    shown = cut(text, width, scale)
    return Text(isolated(shown) + " " * (width - cell_len(shown)), style)


def centred(text: str, width: int, scale: ColourScale, style: str = "") -> Text:
    """Centre a text in `width` cells, the last of which stays free."""
    shown = cut(text, width - 1, scale)
    free = width - cell_len(shown)
    return Text(" " * (free // 2) + isolated(shown) + " " * (free - free // 2), style)


def downwards(text: str, height: int, width: int, scale: ColourScale) -> list[str]:
    """Write a text vertically, a letter a line, at the bottom of `height` lines of `width` cells."""
    letters = _letters(text)
    if len(letters) > height:
        letters = [*letters[: height - 1], scale.marks.more]
    lines = [""] * (height - len(letters)) + letters
    return [isolated(letter) + " " * (width - cell_len(letter)) for letter in lines]


def height(text: str) -> int:
    """Return the number of lines that a text takes when written vertically."""
    return len(_letters(text))


def _letters(text: str) -> list[str]:
    """Split a text into visible characters: characters of zero width join the one before."""
    letters: list[str] = []
    for character in text:
        if letters and not cell_len(character):
            letters[-1] += character
        else:
            letters.append(character)
    return letters


def isolated(text: str) -> str:
    """End a right-to-left text with a mark, so that it does not reorder the words after it."""
    right_to_left = any(unicodedata.bidirectional(each) in ("R", "AL", "AN") for each in text)
    return text + LEFT_TO_RIGHT_MARK if right_to_left else text
