"""Shapes in jaxtyping's annotations: `Float[Tensor, "b n d"]`.

Source: https://docs.kidger.site/jaxtyping/api/array/
"""

from __future__ import annotations

import ast
import re

from attnscope.observe.axes.expressions import parse_expression
from attnscope.tracing.comments.parse import ANY, REST, Axis, Claim, Shape

_DTYPE = re.compile(r"Shaped|Bool|Num|Inexact|Real|Complex\d*|B?Float\w*|Integer|U?Int\d*")


def annotated_shapes(annotation: ast.expr) -> tuple[list[ast.Subscript], list[Claim | None]]:
    """Return jaxtyping's types in an annotation, of a tuple those of its elements.

    Returns:
        The types; and for each value (one, or the elements of a tuple) the claim about it; None if
        it has none, or none that can be read.
    """
    node = _unquoted(annotation)
    elements = [node]
    if isinstance(node, ast.Subscript) and _name(node.value) in ("tuple", "Tuple"):
        elements = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    types = [_types(each) for each in elements]
    return [each for several in types for each in several], [_claim(several) for several in types]


def _claim(types: list[ast.Subscript]) -> Claim | None:
    shapes = [_shape(each) for each in types]
    whole = tuple(shape for shape in shapes if shape is not None)
    return Claim((), whole) if whole and len(whole) == len(shapes) else None


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
