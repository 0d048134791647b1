"""Pictures of influence in any format: which are drawn, their cells, and what is wrong in each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscope.auditing.result import Audit, Evidence, Influence, Property
from attnscope.base.units import counted, few
from attnscope.document.blocks import Heading
from attnscope.document.grid.pooling import pooled
from attnscope.document.text import READABLE, shorten

if TYPE_CHECKING:
    import numpy as np

NONE, RIGHT, WRONG, MISSING = range(4)
"""What is in a cell: nothing, influence, influence that should not be, or none that should be."""

MEANINGS = {WRONG: "should not be", MISSING: "is missing"}
"""What the marks of wrong cells mean."""

MASK = "the mask that reached the layer"
"""The title of the second panel."""


@dataclass(frozen=True)
class Cells:
    """The cells of one panel."""

    title: str
    #: the influence of the strongest shade; 0: there is one shade, as it is not known how large
    #: influence is, but only whether there is any
    top: float
    #: `rows columns`, the largest influence in each cell; of a mask, 1 if a pair is visible
    amounts: np.ndarray
    kinds: np.ndarray  #: `rows columns`, what is in each cell: NONE, RIGHT, WRONG or MISSING


def subjects(result: Audit) -> list[tuple[Property | None, Influence | None]]:
    """List the broken properties, with their pictures; and what was measured, if none has a picture."""
    broken = [
        (each, None if each.evidence is None else each.evidence.influence) for each in result.broken
    ]
    if any(influence is not None for _, influence in broken):
        return [*broken]
    return [*broken, *((None, each) for each in result.influences)]


def pictures(result: Audit) -> list[tuple[Property | None, Influence]]:
    """List the pictures, each with its broken property if there is one."""
    return [(each, influence) for each, influence in subjects(result) if influence is not None]


def panels(influence: Influence, rows: Sequence[range], columns: Sequence[range]) -> Iterator[Cells]:
    """Yield the cells of what was measured, and of the mask that reached attention, if one did.

    Rows hold positions of the output, columns of the input.
    """
    import numpy as np

    has_amounts = any(amount not in (0.0, 1.0) for row in influence.measured for amount in row)
    shown = [(influence.of, top(influence) if has_amounts else 0.0, _finite(influence))]
    if influence.received is not None:
        shown.append((MASK, 0.0, np.array(influence.received)))
    q, k = slice(rows[0].start, rows[-1].stop), slice(columns[0].start, columns[-1].stop)
    rows, columns = (
        [range(each.start - axis[0].start, each.stop - axis[0].start) for each in axis]
        for axis in (rows, columns)
    )
    for title, largest, matrix in shown:
        part = matrix[q, k]
        promised = part > 0 if influence.promised is None else np.array(influence.promised)[q, k]
        kinds = np.zeros((len(rows), len(columns)), dtype=np.int8)
        for kind, pairs in (
            (RIGHT, (part > 0) & promised),
            (MISSING, (part == 0) & promised),
            (WRONG, (part > 0) & ~promised),
        ):
            kinds[pooled(pairs, rows, columns)] = kind
        yield Cells(title, largest, pooled(part.astype(float), rows, columns), kinds)


def _finite(influence: Influence) -> np.ndarray:
    """Put the largest number in place of infinity: `n_Q n_K`."""
    import numpy as np

    measured = np.array(influence.measured, dtype=float)
    largest = measured[np.isfinite(measured)].max(initial=0.0)
    return np.nan_to_num(measured, nan=0.0, posinf=largest or 1.0)


def top(influence: Influence) -> float:
    """Return the largest influence of a position on another: on itself, a residual's is far larger."""
    import numpy as np

    measured = _finite(influence)
    others = measured[np.eye(*measured.shape) == 0]
    return float(others.max(initial=0.0) or measured.max(initial=0.0))


def n_panels(influence: Influence) -> int:
    """Return the number of panels: 2 with that of the mask, if one reached attention."""
    return 1 if influence.received is None else 2


def mask_sentences(influence: Influence) -> Iterator[str]:
    """Yield what the mask says of the pairs that are wrong: whether it is the mask that is wrong."""
    if influence.received is None:
        return
    for pairs, kind, verb, visible in (
        (influence.wrong, "wrong pair", "shows", True),
        (influence.missing, "missing pair", "hides", False),
    ):
        if pairs:
            n = sum(influence.received[query][key] == visible for query, key in pairs)
            how_many = {len(pairs): "all", 0: "none"}.get(n, f"{n:,}")
            yield f"of {counted(len(pairs), kind)}, {MASK} {verb} {how_many}"


def heading(result: Audit) -> Heading:
    """Build a title with the verdict, and a line with what ran."""
    runs = f"{result.n_forward:g} forward passes"
    what = f"{result.kind} · {counted(result.n_tokens, 'position')} · {result.dtype} · {runs}"
    about = [what]
    if result.outputs:
        total = len(result.outputs) + len(result.left_out)
        about.append(f"of {counted(total, 'output')}: {few(result.outputs)}")
    return Heading(f"audit of {result.name}: {result.verdict}", about)


def evidence_lines(each: Property) -> Iterator[str]:
    """Yield lines about why a property is broken: the first says what changed what."""
    found = each.evidence
    assert found is not None
    yield f"{each.name}: {each.found}"
    if each.source:
        yield f"why it should hold: {each.source}"
    if math.isinf(found.amount):
        yield "it is finite before the change or after it, and not both times"
    elif found.amount > 0:
        percent = 100 * found.amount
        amount = f"{percent:,.0f}" if percent >= 10 else f"{percent:.2g}"
        noise = f"; rounding: {100 * found.rounding:.1g} %" if found.rounding else ""
        yield f"the output changes by {amount} % of its largest value{noise}"
    yield from _place(found)


def _place(found: Evidence) -> Iterator[str]:
    """Yield where it begins: the layer, and the line."""
    if found.layer is not None:
        yield f"first in layer {found.layer} ({found.path})"
    elif found.path:
        yield f"first {found.path}" if found.path.startswith("before") else f"first in {found.path}"
    if found.line is not None:
        expression = shorten(found.line.expression, READABLE)
        yield f"{found.line.place}: {expression}"
        if found.cause:
            yield found.cause
    elif found.no_line:
        yield found.no_line
    if found.influence is not None:
        yield from mask_sentences(found.influence)
