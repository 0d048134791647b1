"""The document of a comparison."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from attnscope.base.process.files import place_text
from attnscope.base.units import difference_text, shape_text
from attnscope.code.compare.result import (
    ComparedGradient,
    ComparedTensor,
    Comparison,
    Divergence,
    Site,
)
from attnscope.code.pairs.pairing import WeightCopy
from attnscope.document.blocks import Block, Heading, Notices, Table, Verdict
from attnscope.document.columns import Column
from attnscope.document.styles import AXIS_STYLES, GOOD, WIDTH_STYLE, WRONG
from attnscope.document.text import shorten

STATUS = {
    "equal": ("equal", GOOD),
    "different": ("✗ differs", WRONG),
    "follows": ("follows", "dim"),
    "form": ("other form", "dim"),
    "undecided": ("undecided", ""),
}
"""The word and the style for the status of a tensor, or of a gradient."""

MAX_EXPRESSION = 16
"""The most characters of an expression in the table."""


def document(result: Comparison) -> list[Block]:
    """Return the verdict, a row for each tensor, and which tensors differ first, and why."""
    sizes = " · ".join(f"{axis} {size}" for axis, size in result.sizes.items())
    run = " · ".join(filter(None, [result.dtype, f"seed {result.seed}"]))
    about = [f"a: {result.a} · b: {result.b}", sizes, run]
    blocks: list[Block] = [Heading(f"compare: {result.verdict}", [line for line in about if line])]
    if result.other_weights:
        blocks.append(Verdict(False, _other_weights(result), []))
    if result.weights:
        pairs = f"the same weights: {weight_pairs(result.weights)}"
        blocks.append(Table(weight_columns(result.weights), instead=pairs))
    blocks.append(Table(columns(result)))
    blocks += [_divergence(result, each) for each in result.divergences or []]
    if (sentence := _rest(result)) is not None:
        blocks.append(Verdict(result.explained, sentence, [], apart=False))
    if result.gradients:
        blocks.append(Table(gradient_columns(result.gradients)))
    return [*blocks, Notices(result.notices)]


MAX_NAMES = 6
"""The most weights that a sentence names."""


def _other_weights(result: Comparison) -> str:
    """Return a sentence about the weights that differ."""
    names, n = result.other_weights, len(result.other_weights)
    more = f" and {n - MAX_NAMES} more" if n > MAX_NAMES else ""
    verb = "differs" if n == 1 else "differ"
    return (
        f"the weights differ: {', '.join(names[:MAX_NAMES])}{more} of b {verb} from a's; below, both"
        " have those of a"
    )


def columns(result: Comparison) -> list[Column]:
    """Return the columns of the tensors that both sides compute, the most important first."""
    tensors = list(shown(result))

    def numbers(key: str, title: str, style: str = "", **more: Any) -> Column:
        values = [getattr(each, key) for each in tensors]
        return Column(
            title, key, [[(difference_text(each), style)] for each in values], values, right=True, **more
        )

    names = [[(each.role, "bold")] for each in tensors]
    status = [[_status(each)] for each in tensors]
    dims = [[(axis, AXIS_STYLES.get(axis, WIDTH_STYLE)) for axis in each.dims] for each in tensors]
    share = [[(f"{each.share:.0%}", "")] for each in tensors]
    return [
        Column("tensor", "role", names, [each.role for each in tensors], essential=True, lead=True),
        Column("", "status", status, [each.status for each in tensors], essential=True),
        numbers("largest", "difference", essential=True),
        _texts("a", "a", [_short(each.a) for each in tensors]),
        _texts("b", "b", [_short(each.b) for each in tensors]),
        _texts("shape", "shape", [shape_text(each.shape) for each in tensors]),
        numbers("rounding", "rounding", "dim"),
        Column("dims", "dims", dims, [" ".join(each.dims) for each in tensors]),
        Column("different", "share", share, [each.share for each in tensors], right=True, wide=True),
        Column("", "a_file", [], [each.a.file for each in tensors]),
        Column("", "a_line", [], [each.a.line for each in tensors]),
        Column("", "b_file", [], [each.b.file for each in tensors]),
        Column("", "b_line", [], [each.b.line for each in tensors]),
    ]


def _status(each: ComparedTensor) -> tuple[str, str]:
    """Return the word and the style for the status of a tensor."""
    is_idle = each.status == "form" and each.largest is not None
    return ("no effect", "dim") if is_idle else STATUS[each.status]


def _texts(title: str, key: str, values: list[str], style: str = "", **more: Any) -> Column:
    return Column(title, key, [[(value, style)] for value in values], values, **more)


def shown(result: Comparison) -> Iterator[ComparedTensor]:
    """Yield the tensors that a table lists: the split only where something differs there."""
    for each in result.tensors:
        if not each.role.endswith("_split") or each.status == "different":
            yield each


def _short(site: Site) -> str:
    """Return a tensor's variable, or the expression that computes it, and its line."""
    where = f" :{site.line}" if site.line else ""
    text = shorten(site.name or site.expression, MAX_EXPRESSION)
    return (text if len(text) <= MAX_EXPRESSION else f"{text[: MAX_EXPRESSION - 1]}…") + where


def _assignment(site: Site) -> str:
    """Return an expression with the variable that it is assigned to."""
    changes_it = rf"{re.escape(site.name or '')}(\[.*\])?\s*[^\s=!<>\w]*=(?!=)"  # as in `scores /= 2`
    if not site.expression or site.name is None or re.match(changes_it, site.expression):
        return site.expression or site.name or ""
    return f"{site.name} = {site.expression}"


def _divergence(result: Comparison, each: Divergence) -> Verdict:
    """Show a tensor that differs first: how far, in which lines, and why."""
    tensor = result[each.role]
    at = ", ".join(f"{axis} {i}" for axis, i in tensor.index.items())
    share = "all" if tensor.share >= 1 else f"{tensor.share:.0%}"
    largest = f"by up to {difference_text(tensor.largest)}"
    if tensor.largest == float("inf"):
        largest = "only one of them is finite"
    rounding = f" (rounding is {difference_text(tensor.rounding)})" if tensor.rounding else ""
    lines = []
    if each.largest is not None and tensor.largest and each.largest < tensor.largest / 2:
        size = difference_text(each.largest)
        lines.append(f"with what is above corrected, it differs by up to {size}")
    in_a, in_b = each.a or tensor.a, each.b or tensor.b
    lines += [f"a  {place(in_a)}", f"b  {place(in_b)}"]
    if in_a == in_b and in_a.line is not None:
        lines.append("one line for both: they differ in a number of it, or in what it calls")
    sentence = f"{each.role}: differs, {largest} at {at}{rounding}; {share} of its elements differ"
    return Verdict(False, sentence, [*lines, _cause(result, each)])


def place(site: Site) -> str:
    """Return an expression with its file and line."""
    if not site.expression or site.file is None or site.line is None:
        return f"{site.name}, as it was passed"
    return f"{place_text(site.file, site.line)}  {_assignment(site)}"


def _cause(result: Comparison, each: Divergence) -> str:
    """Return a sentence about the cause, or that none is known."""
    if each.cause is not None:
        return f"{each.cause}: {each.explanation}; then they differ by {difference_text(each.rest)}"
    none = f"none of {result.n_causes} common causes explains it"
    if each.explanation is None:
        return none
    return f"{none}; the closest leaves {difference_text(each.rest)}: {each.explanation}"


def _rest(result: Comparison) -> str | None:
    """Return a sentence about what remains when all causes are removed; None if there are none."""
    if not result.divergences:
        return None
    n = len(result.divergences)
    if result.explained:
        return f"with {'this' if n == 1 else f'these {n}'} corrected, the outputs are equal"
    if all(each.cause for each in result.divergences):
        return "with all of this corrected, the outputs still differ"
    return None


def gradient_columns(gradients: list[ComparedGradient]) -> list[Column]:
    """Return the columns of the gradients that were compared."""
    texts = partial(_texts, essential=True)
    status = [[STATUS[each.status]] for each in gradients]
    largest, rounding = (
        [difference_text(getattr(each, key)) for each in gradients] for key in ("largest", "rounding")
    )
    return [
        texts("gradient of a", "a", [each.a for each in gradients], lead=True),
        Column("", "status", status, [each.status for each in gradients], essential=True),
        texts("difference", "largest", largest, right=True),
        texts("rounding", "rounding", rounding, right=True),
        texts("of b", "b", [each.b for each in gradients]),
        texts("shape", "shape", [shape_text(each.shape) for each in gradients]),
    ]


def weight_columns(copies: list[WeightCopy]) -> list[Column]:
    """Return the columns of the weights that were copied."""
    texts = partial(_texts, essential=True)
    return [
        texts("weight", "weight", [each.role or "" for each in copies], "bold"),
        texts("a", "a", [_part(each.a, each.a_part) for each in copies]),
        texts("b", "b", [_part(each.b, each.b_part) for each in copies]),
        texts("shape", "shape", [shape_text(each.shape) for each in copies]),
    ]


def weight_pairs(copies: list[WeightCopy]) -> str:
    """List the weights that were copied, in one line: `W_K.weight = qkv.weight, rows 24–47`."""
    pairs = (f"{_part(each.a, each.a_part)} = {_part(each.b, each.b_part)}" for each in copies)
    has_parts = any(each.a_part or each.b_part for each in copies)
    return ("; " if has_parts else ", ").join(dict.fromkeys(pairs))


def _part(name: str, words: str) -> str:
    return f"{name}, {words}" if words else name
