"""The console that everything is shown on: text from data cannot steer the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from attnscope.text import LEFT_TO_RIGHT_MARK, printable_lines


class Terminal(Console):
    """A console that escapes what is not printable, and knows no markup in texts.

    Views escape names and messages where they compose a line of them, newlines included. This is the
    last gate: styles and lines pass, and nothing else that is not printable.

    Args:
        options: those of `rich.console.Console`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As `rich.console.Console.render`."""
        for segment in super().render(renderable, options):
            if segment.control:  # of Rich itself: it moves the cursor of a progress bar
                yield segment
            else:
                yield Segment(printable_lines(segment.text, LEFT_TO_RIGHT_MARK), segment.style)
