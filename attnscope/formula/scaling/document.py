"""The document of the experiment about the scale: what is measured with and without it, and bars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import log
from operator import methodcaller

from rich.console import Console
from rich.text import Text

from attnscope.document.blocks import Block, Drawing, Heading, Plot, Sentence
from attnscope.document.columns import Column, shown_columns
from attnscope.document.html import rendered
from attnscope.document.markdown import markdown_table
from attnscope.document.styles import GREEN, RED
from attnscope.document.terminal import print_columns
from attnscope.document.text import GAP
from attnscope.formula.scaling.figure import draw_scaling
from attnscope.formula.scaling.result import MEASURES, Scaling, ScalingRow, rounded

TITLES = {
    "variance": "variance",
    "entropy": "entropy",
    "largest_weight": "largest weight",
    "gradient_norm": "gradient",
}
"""The headings of the measured quantities, by key."""

SCALED = {False: ("without", RED), True: ("with", GREEN)}
"""Names and colours of rows without and with the scale."""

LONGEST_BAR, SHORTEST_BAR = 50, 8  # in characters
EIGHTHS = " ▏▎▍▌▋▊▉"


def document(result: Scaling, *, bars: bool = True) -> list[Block]:
    """Build the table, what its columns mean, bars on a terminal, and the conclusions."""
    blocks: list[Block] = [_heading(result), ScalingTable(result)]
    blocks += [
        Sentence(line, "dim", joint=" · ", apart=i == 0) for i, line in enumerate(_legend(result))
    ]
    if bars:
        blocks.append(Bars(result.rows))
    for i, finding in enumerate(result.findings):
        blocks.append(Sentence(finding.message, joint=None, apart=i == 0, item=True))
    return [*blocks, Plot(partial(draw_scaling, result=result))]


def _heading(result: Scaling) -> Heading:
    distribution = "" if result.draw == "normal" else f"Q and K {result.draw} in [0, 1) · "
    sizes = " · ".join(f"{axis} {size}" for axis, size in result.sizes.items())
    run = f"{distribution}{result.dtype} · seed {result.seed}"
    return Heading("scaling", [sizes, f"scores with and without the scale 1/√d_K · {run}"])


def _legend(result: Scaling) -> list[str]:
    """Return lines that explain the columns."""
    bound = rounded(log(result.sizes["n_K"]), MEASURES["entropy"])
    return [
        f"variance: of all scores · entropy (nats, at most ln n_K = {bound}), largest weight:"
        " mean of the rows",
        "gradient: norm of ∂attention/∂scores of a row, median of the rows",
    ]


def columns(result: Scaling) -> list[Column]:
    """Return a column for each quantity, with two rows for each width: without and with the scale."""
    rows = result.rows

    def column(title: str, key: str, text: Callable[[ScalingRow], str], *, right: bool = True) -> Column:
        raw = [getattr(row, key) for row in rows]
        return Column(title, key, [[(text(row), "")] for row in rows], raw, right=right)

    return [
        column("d_K", "d_K", lambda row: str(row.d_K)),
        column("scale", "scaled", lambda row: SCALED[row.scaled][0], right=False),
        *(column(title, key, methodcaller("text", key)) for key, title in TITLES.items()),
        Column("", "gradient_norm_mean", [], [row.gradient_norm_mean for row in rows]),
    ]


@dataclass(frozen=True)
class ScalingTable(Drawing):
    """The measurements: on a terminal, those without and with the scale side by side."""

    result: Scaling

    def print(self, console: Console, *, wide: bool = False) -> None:
        """Print a row for each width; a narrow terminal gets several tables."""
        print_columns(_pairs(self.result), console, wide=True)

    def html(self) -> str:
        """Return two rows for each width, with the largest weight as a bar."""
        bars = [(SCALED[row.scaled][1], f"{100 * row.largest_weight:.1f}") for row in self.result.rows]
        return rendered(TABLE, columns=shown_columns(columns(self.result)), bars=bars)

    def markdown(self) -> list[str]:
        """Return two rows for each width."""
        return [markdown_table(columns(self.result))]


TABLE = """\
{% import "parts.html.j2" as parts %}
<div class="scroll"><table>
<thead><tr>{% for column in columns %}<th scope="col"{{ ' class="right"' | safe if column.right }}>{{ column.title }}</th>{% endfor %}<th scope="col" class="wide">largest weight, of 1</th></tr></thead>
<tbody>
{% for style, share in bars %}
{% set i = loop.index0 %}
<tr>{% for column in columns %}<td{{ ' class="right"' | safe if column.right }}>{{ parts.pieces(column.cells[i]) }}</td>{% endfor %}<td><div class="bar {{ style | classes }}" style="width:{{ share }}%"></div></td></tr>
{% endfor %}
</tbody>
</table></div>
"""  # noqa: E501


def _pairs(result: Scaling) -> list[Column]:
    """Return a column for each measured quantity, with two numbers side by side for each width."""
    halves = [[row for row in result.rows if row.scaled is scaled] for scaled in SCALED]
    columns = [Column("\nd_K", "d_K", [[(str(row.d_K), "bold")] for row in halves[0]], [], right=True)]
    for key, title in TITLES.items():
        shown = []  # the halves of the column: each its name, and below it its numbers, equally long
        for (name, style), half in zip(SCALED.values(), halves, strict=True):
            texts = [name, *(row.text(key) for row in half)]
            width = max(map(len, texts))
            shown.append([(text.rjust(width), style) for text in texts])
        names, *cells = [list(pair) for pair in zip(*shown, strict=True)]
        below = (" " * GAP).join(name for name, _ in names)
        above = f" {title} ".center(max(len(below), len(title) + 4), "─")
        columns.append(Column(f"{above}\n{below}", key, cells, [], right=True, joint=" " * GAP))
    return columns


@dataclass(frozen=True)
class Bars(Drawing):
    """The largest weight at each width as bars between 0 and 1, on a terminal."""

    rows: list[ScalingRow]

    def print(self, console: Console, *, wide: bool = False) -> None:
        """Print a bar for each row, as long as the console allows."""
        names = {scaled: name for scaled, (name, _) in SCALED.items()}
        values = [row.text("largest_weight") for row in self.rows]
        digits = max(len("d_K"), *(len(str(row.d_K)) for row in self.rows))
        called, valued = max(map(len, names.values())), max(map(len, values))
        before = digits + GAP + called + GAP
        longest = max(SHORTEST_BAR, min(LONGEST_BAR, console.width - before - GAP - valued))
        axis = f"0{'largest weight':─^{longest - 2}}1"
        lines = [Text(), Text(f"{'d_K':>{digits}}".ljust(before) + axis, "dim")]
        for row, value in zip(self.rows, values, strict=True):
            name, style = SCALED[row.scaled]
            d_K = "" if row.scaled else str(row.d_K)
            line = Text.assemble((d_K.rjust(digits), "bold"), " " * GAP, name.ljust(called), " " * GAP)
            line.append(_bar(row.largest_weight, longest).ljust(longest), style)
            lines.append(line.append(" " * GAP + value.rjust(valued)))
        for line in lines:
            console.print(line, soft_wrap=True)


def _bar(share: float, longest: int) -> str:
    """Draw a bar to the nearest eighth of a character; any positive share is visible."""
    if not share > 0:
        return ""
    eighths = max(1, round(min(share, 1) * longest * 8))
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
