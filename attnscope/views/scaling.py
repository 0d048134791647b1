"""What the scale does: a table with and without it side by side, bars below, and what they say."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isfinite, log

from rich.console import Console
from rich.text import Text

from attnscope.results import Finding, Scaling, ScalingRow
from attnscope.views.columns import Column
from attnscope.views.records import csv_table, markdown_table
from attnscope.views.table import GAP, print_columns, print_line

MEASURES = {
    "variance": ("variance", 1),
    "entropy": ("entropy", 2),
    "largest_weight": ("largest weight", 3),
    "gradient_norm": ("gradient", 2),
}
"""What is measured, by its key: its heading for people, and how many decimals they read."""

SCALED = {False: ("without", "red"), True: ("with", "green")}
"""How rows without the scale and with it are called and coloured."""

LONGEST_BAR, SHORTEST_BAR = 50, 8  # in characters
EIGHTHS = " ▏▎▍▌▋▊▉"

HARD = 0.9
"""From this largest weight on, a mean over rows, the softmax is called a hard choice."""
NEARLY_NONE = 0.1
"""Up to this share of the gradient that there is with the scale, hardly any comes through."""
ALIKE = 0.25
"""By this share numbers may differ that are called much the same."""


def heading(result: Scaling) -> list[str]:
    """A title, and below it the sizes, and what else decides the numbers."""
    return [
        "scaling",
        " · ".join(f"{axis} {size}" for axis, size in result.sizes.items()),
        f"scores with and without the scale 1/√d_K · {result.dtype} · seed {result.seed}",
    ]


def legend(result: Scaling) -> list[str]:
    """What the columns are."""
    bound = _figure(log(result.sizes["n_K"]), MEASURES["entropy"][1])
    return [
        f"variance: of all scores · entropy (nats, at most ln n_K = {bound}), largest weight:"
        " mean of the rows",
        "gradient: norm of ∂attention/∂scores of a row, median of the rows",
    ]


def findings(result: Scaling) -> list[Finding]:
    """What a run's numbers say of the scale, and nothing that they do not show."""
    rows, n_K = result.rows, result.sizes["n_K"]
    widest, narrowest = max(row.d_K for row in rows), min(row.d_K for row in rows)
    if not all(isfinite(getattr(row, key)) for row in rows for key in MEASURES):
        said = f"Some scores are beyond what {result.dtype} holds: what is made of them is no number."
    elif n_K == 1:
        said = (
            "There is one key, and its weight is 1 whatever its score is: it takes more, as with"
            " --nk 64, to see what the scale does."
        )
    elif widest == 1:
        said = (
            "At d_K 1 the scale is 1/√1 = 1 and changes nothing: it takes wider keys, as with"
            " --dk 1,64,1024, to see what it does."
        )
    else:
        without, scaled = _row(rows, widest, scaled=False), _row(rows, widest, scaled=True)
        said = (
            f"Without the scale, at d_K {widest}, the variance of the scores is"
            f" {_text(without, 'variance')} and the largest weight {_text(without, 'largest_weight')}:"
            f" {_choice(without)}, and {_gradient(without, scaled)}."
        )
        then = f"With the scale they are {_three(scaled)}"
        if narrowest < widest:
            least = _row(rows, narrowest, scaled=True)
            alike = all(_alike(row, least) for row in rows if row.scaled)
            then += f", {'much as' if alike else 'and'} at d_K {narrowest}"
            then += f" ({_three(least)})" if alike else f" {_three(least)}"
        return [Finding(said), Finding(then + ".")]
    return [Finding(said)]


def print_scaling(result: Scaling, console: Console, *, plot: bool = True) -> None:
    """Print a table, with the scale and without it side by side, bars, and what they say.

    Args:
        result: what was measured.
        console: where; a narrow terminal gets several tables, and piped output is never cut.
        plot: whether to draw the bars.
    """
    title, *about = heading(result)
    print_line(console, Text(title, style="bold"))
    for line in about:
        print_line(console, Text(line))
    print_columns(_pairs(result), console, wide=True)
    print_line(console, Text())
    for line in legend(result):
        print_line(console, Text(line, style="dim"))
    if plot:
        for bar in _bars(result.rows, console.width):
            console.print(bar, soft_wrap=True)
    print_line(console, Text())
    for finding in result.findings:
        print_line(console, Text(finding.message))


def csv_text(result: Scaling) -> str:
    """Two lines for each width, without the scale and with it, in plain numbers."""
    return csv_table(_columns(result))


def markdown_text(result: Scaling) -> str:
    """The same rows as a Markdown table, with what was run above and what they say below."""
    title, *about = heading(result)
    parts = [f"**{title}**", *about, markdown_table(_columns(result)), *legend(result)]
    return "\n\n".join([*parts, *(f"- {finding.message}" for finding in result.findings)])


def _columns(result: Scaling) -> list[Column]:
    """A column for each thing that was measured, and a row for each width and scale."""
    rows = result.rows

    def column(title: str, key: str, text: Callable[[ScalingRow], str], *, right: bool = True) -> Column:
        raw = [getattr(row, key) for row in rows]
        return Column(title, key, [[(text(row), "")] for row in rows], raw, right=right)

    return [
        column("d_K", "d_K", lambda row: str(row.d_K)),
        column("scale", "scaled", lambda row: SCALED[row.scaled][0], right=False),
        *(column(title, key, partial(_text, key=key)) for key, (title, _) in MEASURES.items()),
        Column("", "gradient_norm_mean", [], [row.gradient_norm_mean for row in rows]),
    ]


def _pairs(result: Scaling) -> list[Column]:
    """A column for each thing that was measured: two numbers side by side, and a row for each width."""
    halves = [[row for row in result.rows if row.scaled is scaled] for scaled in SCALED]
    columns = [Column("\nd_K", "d_K", [[(str(row.d_K), "bold")] for row in halves[0]], [], right=True)]
    for key, (title, _) in MEASURES.items():
        shown = []  # the halves of the column: each its name, and below it its numbers, equally long
        for (name, style), half in zip(SCALED.values(), halves, strict=True):
            texts = [name, *(_text(row, key) for row in half)]
            width = max(map(len, texts))
            shown.append([(text.rjust(width), style) for text in texts])
        names, *cells = [list(pair) for pair in zip(*shown, strict=True)]
        below = (" " * GAP).join(name for name, _ in names)
        above = f" {title} ".center(max(len(below), len(title) + 4), "─")
        columns.append(Column(f"{above}\n{below}", key, cells, [], right=True, joint=" " * GAP))
    return columns


def _bars(rows: list[ScalingRow], width: int) -> list[Text]:
    """The largest weight at each width, without the scale and with it, each a bar between 0 and 1."""
    names = {scaled: name for scaled, (name, _) in SCALED.items()}
    values = [_text(row, "largest_weight") for row in rows]
    digits = max(len("d_K"), *(len(str(row.d_K)) for row in rows))
    called, valued = max(map(len, names.values())), max(map(len, values))
    before = digits + GAP + called + GAP
    longest = max(SHORTEST_BAR, min(LONGEST_BAR, width - before - GAP - valued))
    axis = f"0{'largest weight':─^{longest - 2}}1"
    lines = [Text(), Text(f"{'d_K':>{digits}}".ljust(before) + axis, "dim")]
    for row, value in zip(rows, values, strict=True):
        name, style = SCALED[row.scaled]
        d_K = "" if row.scaled else str(row.d_K)
        line = Text.assemble((d_K.rjust(digits), "bold"), " " * GAP, name.ljust(called), " " * GAP)
        line.append(_bar(row.largest_weight, longest).ljust(longest), style)
        lines.append(line.append(" " * GAP + value.rjust(valued)))
    return lines


def _bar(share: float, longest: int) -> str:
    """A bar of a share of the longest, to an eighth of a character; what there is is seen."""
    if not share > 0:
        return ""
    eighths = max(1, round(min(share, 1) * longest * 8))
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _row(rows: list[ScalingRow], d_K: int, *, scaled: bool) -> ScalingRow:
    return next(row for row in rows if (row.d_K, row.scaled) == (d_K, scaled))


def _choice(row: ScalingRow) -> str:
    """What a largest weight makes of the softmax."""
    if row.largest_weight >= HARD:
        return "the softmax is a hard choice"
    if row.largest_weight > 0.5:
        return "most of a row's weight is one key's"
    return "several keys share a row's weight"


def _gradient(without: ScalingRow, scaled: ScalingRow) -> str:
    """How much gradient comes through the softmax, beside what does with the scale."""
    passed = _text(without, "gradient_norm")
    if without.gradient_norm == scaled.gradient_norm:
        return f"as much gradient comes through it as with the scale ({passed})"
    if without.gradient_norm <= NEARLY_NONE * scaled.gradient_norm:
        return f"nearly no gradient comes through it ({passed})"
    much = "less" if without.gradient_norm < scaled.gradient_norm else "more"
    return f"{much} gradient comes through it than with the scale ({passed})"


def _alike(one: ScalingRow, other: ScalingRow) -> bool:
    keys = ("variance", "largest_weight", "gradient_norm")
    pairs = [(getattr(one, key), getattr(other, key)) for key in keys]
    return all(abs(a - b) <= ALIKE * max(a, b) for a, b in pairs)


def _three(row: ScalingRow) -> str:
    return f"{_text(row, 'variance')}, {_text(row, 'largest_weight')} and {_text(row, 'gradient_norm')}"


def _text(row: ScalingRow, key: str) -> str:
    """One measured number, as people read it."""
    return _figure(getattr(row, key), MEASURES[key][1])


def _figure(number: float, decimals: int) -> str:
    """A number to some decimals; to two digits, if these would show hardly anything of it."""
    small = abs(number) < 10**-decimals
    return f"{number:.2g}" if small else f"{number:.{decimals}f}"
