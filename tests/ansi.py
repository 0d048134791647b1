"""The styles in what a terminal prints."""

from __future__ import annotations

from rich.color import ColorSystem
from rich.style import Style
from rich.text import Text


def in_style(output: str, style: str) -> list[str]:
    """Return the pieces of an output that have a style, in 256 colours or in all."""
    text = Text.from_ansi(output)
    return [
        text.plain[start:end]
        for start, end, each in text.spans
        if isinstance(each, Style) and _key(each) == _key(Style.parse(style))
    ]


def _key(style: Style) -> tuple[int | None, bool]:
    number = style.color.downgrade(ColorSystem.EIGHT_BIT).number if style.color else None
    return number, bool(style.bold)
