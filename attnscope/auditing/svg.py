"""Evidence as HTML, with its picture as SVG, and the data of that for the script of a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from attnscope.auditing.picture import (
    MEANINGS,
    MISSING,
    NONE,
    RIGHT,
    WRONG,
    Cells,
    panels,
)
from attnscope.auditing.result import Influence
from attnscope.base.text import printable
from attnscope.base.units import numbers_text
from attnscope.document.grid.axes import label
from attnscope.document.grid.pooling import chunks

if TYPE_CHECKING:
    from markupsafe import Markup

MAX_CELLS = 128
"""The most cells along an axis."""

PIXELS, TALLEST = 18, 480
"""Of a cell, at most, and of a picture."""

LEGIBLE = 11
"""The pixels of letters."""

LEVELS = 8
"""The number of shades of influence."""

MARKS = {WRONG: "l.5 .5m0-.5l-.5 .5", MISSING: "m0 .25a.25 .25 0 1 0 .5 0a.25 .25 0 1 0-.5 0"}
"""A cross and a circle, from the upper left corner of the middle of a cell."""


def html(lines: list[str], influence: Influence | None, number: int) -> str:
    """Return lines about what is broken, and the picture; see `EvidenceDrawing`."""
    from markupsafe import Markup

    found = Markup("")
    if lines:
        first, *others = map(printable, lines)
        found += Markup(
            '<hr>\n<p><span class="red bold">✗</span> <span class="bold">{}</span></p>\n'
        ).format(first)
        found += Markup("").join(Markup("<p>{}</p>\n").format(line) for line in others)
    if influence is not None:
        cells = _cells(influence)
        drawn = list(panels(influence, cells, cells))
        figures = Markup("").join(
            Markup("<figure><figcaption>{}</figcaption>{}</figure>\n").format(
                printable(panel.title), _picture(influence, panel, cells)
            )
            for panel in drawn
        )
        found += Markup('<div class="grids" data-picture="{}">\n{}</div>\n').format(number, figures)
        found += Markup('<p class="soft">{}</p>\n').format(" · ".join(_legend(influence, drawn[0].top)))
    return found


def _legend(influence: Influence, top: float) -> list[str]:
    """Explain rows, columns, marks and shades, of which the strongest is that of `top`."""
    parts = ["rows are outputs, columns inputs"]
    pairs = {WRONG: influence.wrong, MISSING: influence.missing}
    parts += [f"{'✗○'[kind - WRONG]} {meaning}" for kind, meaning in MEANINGS.items() if pairs[kind]]
    if top:
        parts.append(f"the strongest shade: {top:.2g} of the largest output, or more")
    return parts


def data_of(influence: Influence) -> dict[str, Any]:
    """Collect what a page says of each cell: its positions, its influence, and the mask."""
    cells = _cells(influence)
    measured, *masks = panels(influence, cells, cells)
    amounts = [[float(f"{each:.2g}") for each in row] for row in measured.amounts.tolist()]
    return {
        "positions": _names(influence, cells, " ({})"),
        "amounts": amounts if measured.top else None,
        "kinds": _rows(measured.kinds),
        "mask": _rows(masks[0].amounts.astype(int)) if masks else None,
    }


def _rows(matrix: Any) -> list[str]:
    """Return each row of digits as a text."""
    return ["".join(map(str, row)) for row in matrix.tolist()]


def _cells(influence: Influence) -> list[range]:
    return chunks(len(influence.measured), MAX_CELLS)


def _names(influence: Influence, cells: Sequence[range], token: str = " {}") -> list[str]:
    """Return the positions of each cell; if it is one, with its token in the format `token`."""
    names = [f"{each[0]}" if len(each) == 1 else f"{each[0]}–{each[-1]}" for each in cells]
    if influence.tokens is None or len(cells) < len(influence.tokens):
        return names
    texts = [token.format(printable(label(each))) for each in influence.tokens]
    return [name + text for name, text in zip(names, texts, strict=True)]


def _picture(influence: Influence, panel: Cells, cells: list[range]) -> Markup:
    """Return one panel: each row is a group, whose tooltip names the output and its inputs."""
    from markupsafe import Markup, escape

    n = len(cells)
    pixels = max(3, min(PIXELS, TALLEST // n))
    font = LEGIBLE / pixels
    every = 1 if font <= 1 else 5 * -(-int(font * 1.3) // 5)
    names = _names(influence, cells)
    labels = {i: names[i] for i in range(0, n, every)}
    margin = font * (0.62 * max(map(len, labels.values())) + 0.8)
    rows = []
    for i, name in enumerate(names):
        text = f'<text x="{-font / 2:.2f}" y="{i + 0.5 + font / 3:.2f}">{escape(name)}</text>'
        rows.append(
            f"<g><title>{escape(_sentence(name, panel.kinds[i].tolist(), cells))}</title>"
            f'{text if i in labels else ""}<path class="row" d="M0 {i}h{n}v1h-{n}z"/>'
            f"{''.join(_paths(panel, i))}</g>"
        )
    numbers = "".join(
        f'<text class="key" x="{i + 0.5:g}" y="{-font / 3:.2f}">{cells[i][0]}</text>'
        for i in range(0, n, max(every, 5))
    )
    above = 1.2 * font
    view = f"{-margin:.2f} {-above:.2f} {n + margin:.2f} {n + above:.2f}"
    return Markup(
        f'<svg class="influence" viewBox="{view}" width="{(n + margin) * pixels:.0f}"'
        f' height="{(n + above) * pixels:.0f}" role="img" font-size="{font:.2f}">'
        f"<title>{len(influence.measured)} outputs downwards, as many inputs across</title>"
        f"{numbers}{''.join(rows)}</svg>"
    )


def _sentence(name: str, kinds: list[int], cells: Sequence[range]) -> str:
    """Return the positions that influence an output, and those that should not or should."""
    parts = []
    for kind, meaning in ({RIGHT: ""} | MEANINGS).items():
        inputs = [
            position
            for cell, each in zip(cells, kinds, strict=True)
            if each == kind
            for position in cell
        ]
        if inputs:
            parts.append(f"{meaning} {numbers_text(inputs)}".strip())
    return f"output {name}: {'; '.join(parts) or 'no input'}"


def _paths(panel: Cells, i: int) -> Iterator[str]:
    """Yield the cells of a row by shade, and the marks of those that are wrong."""
    amounts, kinds = panel.amounts[i].tolist(), panel.kinds[i].tolist()
    shades = [_shade(amount, panel.top) for amount in amounts]
    drawn: dict[int, str] = {}
    start = 0
    for shade, run in groupby(shades):
        length = len(list(run))
        if shade:
            drawn[shade] = drawn.get(shade, "") + f"M{start} {i}h{length}v1h-{length}z"
        start += length
    for shade, path in drawn.items():
        yield f'<path fill-opacity="{0.2 + 0.8 * shade / LEVELS:.2g}" d="{path}"/>'
    for kind, mark in MARKS.items():
        path = "".join(
            f"M{k + 0.25:g} {i + 0.25:g}{mark}" for k, each in enumerate(kinds) if each == kind
        )
        if path:
            yield f'<path class="wrong" d="{path}"/>'


def _shade(amount: float, largest: float) -> int:
    """Return the shade of a cell: 0 for none, and 1 for the smallest influence."""
    if amount == 0:
        return NONE
    return LEVELS // 2 if largest == 0 else max(1, min(LEVELS, round(amount / largest * LEVELS)))
