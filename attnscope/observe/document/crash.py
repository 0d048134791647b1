"""The exception that traced code raised, drawn below its tensors."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from attnscope.document.axes import dims_pieces, shape_pieces
from attnscope.document.blocks import Drawing
from attnscope.document.html import rendered
from attnscope.document.pieces import pieces_of
from attnscope.document.styles import RED, WRONG
from attnscope.document.terminal import print_hanging
from attnscope.document.text import joined
from attnscope.observe.trace import Crash
from attnscope.text import printable


@dataclass(frozen=True)
class CrashDrawing(Drawing):
    """The expression that failed, its operands, and which axes do not match."""

    crash: Crash

    def print(self, console: Console, *, wide: bool = False) -> None:
        """Print them, the lines of a long sentence below each other."""
        for line in self._lines():
            print_hanging(console, line)

    def html(self) -> str:
        """Return them in the colours of the axes."""
        return rendered(HTML, lines=[pieces_of(line) for line in self._lines()])

    def markdown(self) -> list[str]:
        """Return them as a block of code."""
        return ["\n".join(["```", *(line.plain for line in self._lines()), "```"])]

    def _lines(self) -> list[Text]:
        crash = self.crash
        lines = [Text(f"✗ line {crash.line}: {printable(crash.expression)}", WRONG)]
        texts = [printable(operand.text) for operand in crash.operands]
        width = max(map(len, texts), default=0)
        for operand, text in zip(crash.operands, texts, strict=True):
            axes = joined(dims_pieces(operand.dims))
            shape = joined(shape_pieces(operand.dims, operand.shape), "×")
            lines.append(Text.assemble(f"    {text:{width}}  ", shape, "  ", axes))
        lines += [Text(f"    {printable(crash.disagreement)}", "bold")] if crash.disagreement else []
        return [*lines, Text(f"    {printable(crash.error)}", RED)]


HTML = """\
{% import "parts.html.j2" as parts %}
<pre class="crash">{% for line in lines %}{{ parts.pieces(line) }}
{% endfor %}</pre>
"""
