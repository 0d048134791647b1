"""The console for all output: text from data cannot control the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from attnscope.base.text import LEFT_TO_RIGHT_MARK, printable_lines
from attnscope.document.text import can_show, folded

REPLACEMENTS = dict(zip("─│┼·×–…", "-|+.x-~", strict=True))
"""Characters of tables, and what stands for them where an encoding lacks them."""


@cache
def _replacements(encoding: str) -> dict[int, str]:
    return {ord(each): other for each, other in REPLACEMENTS.items() if not can_show(each, encoding)}


class Terminal(Console):
    """A console that escapes unprintable characters and does not interpret markup in texts.

    Views escape names and messages, including newlines, when they compose lines from them. This is the
    last safeguard: only styles and line breaks pass, and no other unprintable characters.

    Args:
        options: those of `rich.console.Console`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as `rich.console.Console.render` does, with text escaped."""
        for segment in super().render(renderable, options):
            if segment.control:  # Rich's own: it moves the cursor of a progress bar
                yield segment
            else:
                text = printable_lines(segment.text, LEFT_TO_RIGHT_MARK)
                yield Segment(text.translate(_replacements(self.encoding)), segment.style)


def print_message(message: Text) -> None:
    """Print a message on stderr; a terminal's lines end after a word, and paths stay whole."""
    console = Terminal(stderr=True)
    for line in folded(message, console.width, " ") if console.is_terminal else [message]:
        console.print(line, soft_wrap=True)
