"""What the scale does: a table with and without it side by side, bars below, and what they say."""

from __future__ import annotations

from math import isfinite

from rich.console import Console
from rich.text import Text

from attnscope.render.scaling import MEASURES, SCALED, _pairs, _text, heading, legend
from attnscope.render.terminal.table import print_columns, print_line
from attnscope.render.text import GAP
from attnscope.results.common import Finding
from attnscope.results.scaling import Scaling, ScalingRow

LONGEST_BAR, SHORTEST_BAR = 50, 8  # in characters
EIGHTHS = " ▏▎▍▌▋▊▉"

HARD = 0.9
"""From this largest weight on, a mean over rows, the softmax is called a hard choice."""
NEARLY_NONE = 0.1
"""Up to this share of the gradient that there is with the scale, hardly any comes through."""
ALIKE = 0.25
"""By this share numbers may differ that are called much the same."""


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
