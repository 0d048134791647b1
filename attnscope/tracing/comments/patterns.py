"""Shapes in the patterns of einops: `rearrange(x, "b n (h d) -> b h n d", h=8)`.

Source: https://einops.rocks/api/rearrange/
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from attnscope.observe.axes.expressions import parse_expression
from attnscope.tracing.comments.parse import REST, Axis, Claim, Shape

_FUNCTIONS = {"rearrange", "reduce", "repeat"}
_AXIS = re.compile(r"\(([^()]*)\)|[^\s()]+")


@dataclass(frozen=True)
class Pattern:
    """A pattern whose result gets names, or is returned.

    Attributes:
        line: the line of the pattern.
        positions: the positions of the names in the code that are bound to its results, or of the
            returned expression.
        operand: the name that the pattern is applied to, if it is just a name.
        before, after: the shapes of the operand and of the result.
    """

    line: int
    positions: tuple[tuple[int, int], ...]
    operand: str | None
    before: Claim
    after: Claim


def patterns_in(tree: ast.AST) -> Iterator[Pattern]:
    """Yield the patterns in a file, as far as their results get names."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Return) and node.value is not None:
            targets = [node.value]
        value = getattr(node, "value", None) if targets else None
        call = _call_of(value) if value is not None else None
        pattern = call and _pattern(call, targets, is_direct=call is value)
        if pattern:
            yield pattern


def _call_of(value: ast.expr) -> ast.Call | None:
    """Return the call that makes a value, or each element of it: `map(lambda t: rearrange(t, …), …)`."""
    if isinstance(value, ast.GeneratorExp | ast.ListComp):
        return _call_of(value.elt)
    if not isinstance(value, ast.Call):
        return None
    name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
    if name == "map" and value.args and isinstance(value.args[0], ast.Lambda):
        return _call_of(value.args[0].body)
    return value if name in _FUNCTIONS else None


def _pattern(call: ast.Call, targets: list[ast.expr], *, is_direct: bool) -> Pattern | None:
    text = call.args[1] if len(call.args) > 1 else None
    if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
        return None
    before, arrow, after = text.value.partition("->")
    left, right = _shape(before.strip()), _shape(after.strip())
    if not arrow or left is None or right is None:
        return None
    leaves = [
        leaf
        for target in targets
        for leaf in (target.elts if isinstance(target, ast.Tuple | ast.List) else [target])
    ]
    operand = call.args[0].id if is_direct and isinstance(call.args[0], ast.Name) else None
    positions = tuple((leaf.lineno, leaf.col_offset) for leaf in leaves)
    return Pattern(text.lineno, positions, operand, Claim((), (left,)), Claim((), (right,)))


def _shape(text: str) -> Shape | None:
    """Parse one side of a pattern; `(h d)` is a product."""
    axes: list[Axis] = []
    entries = []
    for match in _AXIS.finditer(text):
        inside = match[1].split() if match[1] is not None else [match[0]]
        axis: Axis | None = REST if inside == [REST] else parse_expression("*".join(inside) or "1")
        if axis is None or (match[1] is not None and axis == REST):
            return None
        axes.append(axis)
        entries.append(match[0])
    return Shape(f"'{text}'", tuple(axes), tuple(entries)) if axes.count(REST) < 2 else None
