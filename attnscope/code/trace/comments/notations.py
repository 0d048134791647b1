"""Shapes in the notations of two libraries: jaxtyping's annotations, and the patterns of einops.

    Float[Tensor, "b n d"]
    rearrange(x, "b n (h d) -> b h n d", h=8)

Sources: https://docs.kidger.site/jaxtyping/api/array/, https://einops.rocks/api/rearrange/
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from attnscope.code.trace.comments.parse import ANY, REST, Axis, Claim, Shape
from attnscope.observe.axes.expressions import parse_expression

_DTYPE = re.compile(r"Shaped|Bool|Num|Inexact|Real|Complex\d*|B?Float\w*|Integer|U?Int\d*")
_FUNCTIONS = {"rearrange", "reduce", "repeat"}
_AXIS = re.compile(r"\(([^()]*)\)|[^\s()]+")

# Annotations.


def annotated_shapes(annotation: ast.expr) -> tuple[list[ast.Subscript], list[Claim | None]]:
    """Return jaxtyping's types in an annotation, of a tuple those of its elements.

    Return the types; and for each value (one, or the elements of a tuple) the claim about it, or None if
    it has none, or none that can be read.
    """
    node = _unquoted(annotation)
    elements = [node]
    if isinstance(node, ast.Subscript) and _name(node.value) in ("tuple", "Tuple"):
        elements = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    types = [_types(each) for each in elements]
    claims: list[Claim | None] = []
    for several in types:
        shapes = [shape for each in several if (shape := _shape(each)) is not None]
        is_read = shapes and len(shapes) == len(several)
        claims.append(Claim((), tuple(shapes)) if is_read else None)
    return [each for several in types for each in several], claims


def _types(node: ast.expr) -> list[ast.Subscript]:
    """Return the types in a union: `Float[Tensor, "b n"] | None`, `Optional[…]`, `Annotated[…, …]`."""
    node = _unquoted(node)
    if isinstance(node, ast.BinOp):
        return [*_types(node.left), *_types(node.right)]
    if not isinstance(node, ast.Subscript):
        return []
    inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    name = _name(node.value)
    if name in ("Optional", "Union"):
        return [each for member in inside for each in _types(member)]
    if name == "Annotated":
        return _types(inside[0])
    is_type = _DTYPE.fullmatch(name) and len(inside) == 2 and _text(inside[1]) is not None
    return [node] if is_type else []


def _shape(node: ast.Subscript) -> Shape | None:
    """Return the shape of a type; None if an axis in it cannot be read."""
    assert isinstance(node.slice, ast.Tuple)
    text = _text(node.slice.elts[1]) or ""
    axes: list[Axis] = []
    entries, broadcast = [], set()
    for i, entry in enumerate(text.split()):
        modifiers = re.match(r"[#*?_]*", entry)[0]  # type: ignore[index]
        name = entry[len(modifiers) :].rpartition("=")[2]
        axis: Axis | None = ANY if "_" in modifiers else parse_expression(name)
        if entry == REST or "*" in modifiers:
            axis, name = REST, entry if "_" not in modifiers else REST
        if axis is None:
            return None
        if "#" in modifiers:
            broadcast.add(i)
        axes.append(axis)
        entries.append(name or entry)
    if axes.count(REST) > 1:
        return None
    return Shape(f'"{text}"', tuple(axes), tuple(entries), frozenset(broadcast))


def _unquoted(node: ast.expr) -> ast.expr:
    """Return an annotation in quotes as the expression that it is."""
    text = _text(node)
    if text is None:
        return node
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return node


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _name(node: ast.expr) -> str:
    """Return the last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


# Patterns.


@dataclass(frozen=True)
class Pattern:
    """A pattern whose result gets names, or is returned."""

    line: int
    #: the positions of the names in the code that are bound to its results, or of the returned
    #: expression
    positions: tuple[tuple[int, int], ...]
    operand: str | None  #: the name that the pattern is applied to, if it is just a name
    #: the shapes of the operand and of the result
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
    left, right = _side(before.strip()), _side(after.strip())
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


def _side(text: str) -> Shape | None:
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
