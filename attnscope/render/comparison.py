"""Parts common to all views of a comparison."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from attnscope.render.columns import AXIS_STYLES, WIDTH_STYLE, Column
from attnscope.render.styles import GOOD, WRONG
from attnscope.render.text import shape_text, shorten
from attnscope.results.comparison import (
    ComparedGradient,
    ComparedTensor,
    Comparison,
    Divergence,
    Site,
    WeightCopy,
)

STATUS = {
    "equal": ("equal", GOOD),
    "different": ("✗ differs", WRONG),
    "follows": ("follows", "dim"),
    "form": ("other form", "dim"),
}
"""The word and the style for the status of a tensor."""

LONGEST = 24
"""The most characters of an expression in the table."""


def heading(result: Comparison) -> list[str]:
    """Return a title with the verdict, and lines with both sides, the sizes and the run."""
    sizes = " · ".join(f"{axis} {size}" for axis, size in result.sizes.items())
    run = " · ".join(filter(None, [result.dtype, f"seed {result.seed}"]))
    return [
        line
        for line in (f"compare: {verdict(result)}", f"a: {result.a} · b: {result.b}", sizes, run)
        if line
    ]


def verdict(result: Comparison) -> str:
    """Return whether the two are equal, in words."""
    if result.status == "equal":
        return f"equal up to rounding in {result.dtype}"
    if result.status == "undecided":
        return "undecided"
    where = [each.role for each in result.divergences or []]
    if not where and any(each.status == "different" for each in result.gradients or []):
        return "different: the outputs are equal, and the gradients are not"
    return f"different, first in {where[0]}" if where else "different"


def number(value: float | None) -> str:
    """Return a difference in two digits."""
    if value is None:
        return "–"
    return "0" if value == 0 else f"{value:.1e}"


def columns(result: Comparison) -> list[Column]:
    """Return the columns of the tensors that both sides compute, the most important first."""
    tensors = list(shown(result))

    def numbers(key: str, title: str, style: str = "", **more: Any) -> Column:
        values = [getattr(each, key) for each in tensors]
        return Column(
            title, key, [[(number(each), style)] for each in values], values, right=True, **more
        )

    names = [[(each.role, "bold")] for each in tensors]
    status = [[STATUS[each.status]] for each in tensors]
    share = [[(f"{each.share:.0%}", "")] for each in tensors]
    return [
        Column("tensor", "role", names, [each.role for each in tensors], essential=True, lead=True),
        Column("", "status", status, [each.status for each in tensors], essential=True),
        numbers("largest", "difference", essential=True),
        numbers("rounding", "rounding", "dim"),
        _texts("b", "b", [_short(each.b) for each in tensors]),
        _texts("a", "a", [_short(each.a) for each in tensors]),
        Column(
            "dims", "dims", [_dims(each) for each in tensors], [" ".join(each.dims) for each in tensors]
        ),
        _texts("shape", "shape", [shape_text(each.shape) for each in tensors]),
        Column("different", "share", share, [each.share for each in tensors], right=True, wide=True),
        Column("", "a_file", [], [each.a.file for each in tensors]),
        Column("", "a_line", [], [each.a.line for each in tensors]),
        Column("", "b_file", [], [each.b.file for each in tensors]),
        Column("", "b_line", [], [each.b.line for each in tensors]),
    ]


def _texts(title: str, key: str, values: list[str], style: str = "", **more: Any) -> Column:
    """Return a column of texts."""
    return Column(title, key, [[(value, style)] for value in values], values, **more)


def shown(result: Comparison) -> Iterator[ComparedTensor]:
    """Yield the tensors that a table lists: the split only where something differs there."""
    for each in result.tensors:
        if not each.role.endswith("_split") or each.status == "different":
            yield each


def _dims(each: ComparedTensor) -> list[tuple[str, str]]:
    return [(axis, AXIS_STYLES.get(axis, WIDTH_STYLE)) for axis in each.dims]


def _short(site: Site) -> str:
    """Return a tensor's variable, or the expression that computes it, and its line."""
    where = f" :{site.line}" if site.line else ""
    text = shorten(site.name or site.expression, LONGEST)
    return (text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…") + where


def _assignment(site: Site) -> str:
    """Return an expression with the variable that it is assigned to."""
    if not site.expression or site.name is None or _is_statement(site):
        return site.expression or site.name or ""
    return f"{site.name} = {site.expression}"


def _is_statement(site: Site) -> bool:
    """Return whether an expression is a statement that changes its variable, such as `scores /= 2`."""
    return (
        re.match(rf"{re.escape(site.name or '')}(\[.*\])?\s*[^\s=!<>\w]*=(?!=)", site.expression)
        is not None
    )


def divergence_lines(result: Comparison, each: Divergence) -> Iterator[tuple[str, str]]:
    """Yield lines about a place where the two part, each with the sign in front of it."""
    tensor = result[each.role]
    at = ", ".join(f"{axis} {i}" for axis, i in tensor.index.items())
    share = (
        f"{tensor.share:.0%} of its elements differ"
        if tensor.share < 1
        else "all of its elements differ"
    )
    largest = (
        "only one of them is finite"
        if tensor.largest == float("inf")
        else f"by up to {number(tensor.largest)}"
    )
    rounding = f" (rounding is {number(tensor.rounding)})" if tensor.rounding else ""
    yield "✗ ", f"{each.role}: differs, {largest} at {at}{rounding}; {share}"
    if each.largest is not None and tensor.largest and each.largest < tensor.largest / 2:
        yield "  ", f"with what is above corrected, it differs by up to {number(each.largest)}"
    for letter, site in (("a", tensor.a), ("b", tensor.b)):
        yield "  ", f"{letter}  {place(site)}"
    yield "  ", cause(result, each)


def place(site: Site) -> str:
    """Return an expression with its file and line."""
    if not site.expression:
        return f"{site.name}, as it was passed"
    return f"{site.file}:{site.line}  {_assignment(site)}"


def cause(result: Comparison, each: Divergence) -> str:
    """Return a sentence about the cause, or that none is known."""
    if each.cause is not None:
        return f"{each.cause}: {each.explanation}; then they differ by {number(each.rest)}"
    none = f"none of {result.n_causes} common causes explains it"
    if each.explanation is None:
        return none
    return f"{none}; the closest leaves {number(each.rest)}: {each.explanation}"


def after(result: Comparison) -> str | None:
    """Return a sentence about what remains when all causes are removed; None if there are none."""
    if not result.divergences:
        return None
    n = len(result.divergences)
    if result.explained:
        return (
            "with this corrected, the outputs are equal"
            if n == 1
            else f"with these {n} corrected, the outputs are equal"
        )
    if all(each.cause for each in result.divergences):
        return "with all of this corrected, the outputs still differ"
    return None


def gradient_columns(gradients: list[ComparedGradient]) -> list[Column]:
    """Return the columns of the gradients that were compared."""
    texts = partial(_texts, essential=True)
    status = [[STATUS[each.status]] for each in gradients]
    return [
        texts("gradient of a", "a", [each.a for each in gradients], lead=True),
        Column("", "status", status, [each.status for each in gradients], essential=True),
        texts("difference", "largest", [number(each.largest) for each in gradients], right=True),
        texts("rounding", "rounding", [number(each.rounding) for each in gradients], right=True),
        texts("of b", "b", [each.b for each in gradients]),
        texts("shape", "shape", [shape_text(each.shape) for each in gradients]),
    ]


def weight_columns(copies: list[WeightCopy]) -> list[Column]:
    """Return the columns of the weights that were copied."""

    def part(name: str, words: str) -> str:
        return f"{name}, {words}" if words else name

    texts = partial(_texts, essential=True)
    return [
        texts("weight", "weight", [each.role or "" for each in copies], "bold"),
        texts("a", "a", [part(each.a, each.a_part) for each in copies]),
        texts("b", "b", [part(each.b, each.b_part) for each in copies]),
        texts("shape", "shape", [shape_text(each.shape) for each in copies]),
    ]
