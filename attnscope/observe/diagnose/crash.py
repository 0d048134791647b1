"""The cause of a failure in traced code: the expression, its tensors, and the axes that do not fit."""

from __future__ import annotations

import ast
import dis
import linecache
import re
import traceback
from collections import namedtuple
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from types import FrameType, MemberDescriptorType, TracebackType
from typing import Any

from attnscope.base.errors import class_attribute, is_a, safe_str, stored_in
from attnscope.base.units import shape_text
from attnscope.observe.instrument.code_swap import Relay
from attnscope.observe.instrument.rewrite import VIEWS, Place
from attnscope.observe.operator_names import PRODUCTS_IN_SOURCE, REGROUPS
from attnscope.observe.operators.place import parsed, span_of, text_of
from attnscope.observe.trace import Crash, Operand

RAISE = dis.opmap["RAISE_VARARGS"]
"""The instruction with which `raise` and `assert` end."""

JOINS = {"cat", "concat", "concatenate", "stack"}
BROADCASTS = {
    *("add", "sub", "mul", "div", "multiply", "divide", "subtract", "true_divide", "where"),
    *("masked_fill", "eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum"),
    *("logical_and", "logical_or", "bitwise_and", "bitwise_or"),
}


def failure_of(
    exception: BaseException, files: Collection[str], shapes: Mapping[Place, Shape]
) -> Failure | None:
    """Locate the origin of an exception in files whose source is known.

    Returns:
        None if no frame of these files is in its traceback.
    """
    tracebacks = _tracebacks(stored_in(exception, "__traceback__"))
    frames = [tb for tb in tracebacks if tb.tb_frame.f_code.co_filename in files]
    if not frames:
        return None
    last = frames[-1]
    frame, line = last.tb_frame, last.tb_lineno
    file = frame.f_code.co_filename
    node = _node_at(file, last)
    if node is None:
        return Failure(file, line, _statement_at(file, line), None, [], exception)
    place = (file, *span_of(node))
    parts = [
        FailedTensor(text, (file, *span_of(each)), shape)
        for each in _operands(node)
        for text, shape in _shapes(each, frame, shapes, file)
    ]
    failure = Failure(file, line, _text(node, file), place, parts, exception)
    _compare(failure, node, frame)
    return failure


def crash_of(
    failure: Failure, dims_of: Callable[[FailedTensor], tuple[str, ...] | None], file: str
) -> Crash:
    """Describe a failure in words."""
    operands = [Operand(part.text, dims_of(part), part.shape) for part in failure.parts]
    error = _error_line(failure.exception).strip().split("\n")[0]
    disagreement = _in_words(failure, operands) or _mask_of_torchs_attention(failure.exception)
    return Crash(file, failure.line, failure.expression, operands, disagreement, error)


def _error_line(exception: BaseException) -> str:
    """Return the line of the traceback that names the exception, without its notes.

    From 3.12 on, Python's own adds "Did you mean", for which it looks through the user's objects.
    """
    if is_a(exception, SyntaxError):
        with suppress(BaseException):  # raised by the exception's own code
            return traceback.format_exception_only(exception)[-1]
    kind = type(exception)
    module = type.__dict__["__module__"].__get__(kind)
    name = str(type.__dict__["__qualname__"].__get__(kind))
    name = name if module in ("builtins", "__main__") else f"{module}.{name}"
    text = safe_str(exception)
    return f"{name}: {text}" if text else name


def _tracebacks(tb: TracebackType | None) -> Iterator[TracebackType]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _node_at(file: str, tb: TracebackType) -> ast.expr | ast.AugAssign | None:
    """Return the expression whose evaluation raised, from the lines and columns that Python stores.

    `x += y` counts too, although it is a statement.
    """
    code = tb.tb_frame.f_code
    if code.co_code[tb.tb_lasti] == RAISE:  # whose columns are those of the condition since Python 3.13
        return None
    positions = list(code.co_positions())
    line, end_line, column, end_column = positions[tb.tb_lasti // 2]
    if None in (line, end_line, column, end_column):
        return None
    ends_here = [
        node
        for node in _computations("".join(linecache.getlines(file))).get((end_line, end_column), [])
        if (node.lineno, node.col_offset) <= (line, column)
    ]
    return max(ends_here, key=lambda node: (node.lineno, node.col_offset), default=None)


_COMPUTES = (ast.Call, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Subscript, ast.Attribute, ast.AugAssign)


def _statement_at(file: str, line: int) -> str:
    """Return the statement that begins in a line, on one line."""
    text = linecache.getline(file, line).strip()
    for node in ast.walk(parsed("".join(linecache.getlines(file)))):
        if isinstance(node, ast.Raise | ast.Assert) and node.lineno <= line <= (node.end_lineno or 0):
            return _text(node, file)
    return text


@lru_cache(maxsize=8)
def _computations(source: str) -> dict[tuple[int | None, int | None], list[Any]]:
    """Return the expressions of a file that may raise, by the line and the column where they end."""
    found: dict[tuple[int | None, int | None], list[Any]] = {}
    for node in ast.walk(parsed(source)):
        if isinstance(node, _COMPUTES):
            found.setdefault((node.end_lineno, node.end_col_offset), []).append(node)
    return found


def _operands(node: ast.expr | ast.AugAssign) -> Iterator[ast.expr]:
    """Return the tensors in an expression, from left to right."""
    match node:
        case ast.BinOp(left=one, right=other) | ast.AugAssign(target=one, value=other):
            yield from (one, other)
        case ast.UnaryOp(operand=value) | ast.Attribute(value=value):
            yield value
        case ast.Compare():
            yield from (node.left, *node.comparators)
        case ast.Subscript():
            yield from (node.value, node.slice)
        case ast.Call():
            if isinstance(node.func, ast.Attribute):
                yield node.func.value
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                inner = argument.value if isinstance(argument, ast.Starred) else argument
                yield from inner.elts if isinstance(inner, ast.List | ast.Tuple) else (inner,)


def _shapes(
    node: ast.expr, frame: FrameType, known: Mapping[Place, Shape], file: str
) -> Iterator[tuple[str, Shape]]:
    import torch

    place = (file, *span_of(node))
    if place in known:
        yield _text(node, file), tuple(known[place])
        return
    value = _value(node, frame)
    if issubclass(type(value), torch.Tensor):
        yield _text(node, file), _shape(value)
    elif issubclass(type(value), list | tuple):
        elements = list.__iter__ if issubclass(type(value), list) else tuple.__iter__
        for i, each in enumerate(elements(value)):
            if issubclass(type(each), torch.Tensor):
                yield f"{_text(node, file)}[{i}]", _shape(each)


def _shape(tensor: Any) -> Shape:
    """Return a tensor's shape without running the user's code."""
    from attnscope.observe.torch_internals.dispatch import TENSOR, without_torch_function

    with without_torch_function():
        return tuple(TENSOR.size(tensor))


def _value(node: ast.expr, frame: FrameType) -> Any:
    """Return the value of a name or of its attribute; nothing else is evaluated."""
    if isinstance(node, ast.Name):
        return {**frame.f_globals, **frame.f_locals}.get(node.id)
    if isinstance(node, ast.Attribute):
        return _stored(_value(node.value, frame), node.attr)
    return None


def _stored(owner: Any, name: str) -> Any:
    """Return a stored attribute of an object; computing one could fail again."""
    import torch

    if issubclass(type(owner), torch.Tensor) and name in VIEWS:
        return None  # if it was computed, its shape is in `known` already
    stored = Relay.attribute(owner, name)
    if stored is None:
        descriptor = class_attribute(owner, name)
        if isinstance(descriptor, MemberDescriptorType | _OF_NAMED_TUPLE):
            with suppress(AttributeError):
                return descriptor.__get__(owner)
    return stored


_OF_NAMED_TUPLE = type(namedtuple("_", "field").field)  # type: ignore[attr-defined]


def _text(node: ast.expr | ast.stmt, file: str) -> str:
    """Return a node's source, on one line."""
    return text_of(file, span_of(node)) or ast.unparse(node)


OF_A_MASK = {"attn_mask", "bsz", "num_heads", "tgt_len", "src_len", "is_batched"}
"""Variables of `multi_head_attention_forward`."""


def _mask_of_torchs_attention(exception: BaseException) -> str | None:
    """Say which axes `multi_head_attention_forward` took for queries and keys, if it refused a mask."""
    from torch import nn

    if not safe_str(exception).startswith(("The shape of the 2D attn_mask", "The shape of the 3D")):
        return None
    frames = [tb.tb_frame.f_locals for tb in _tracebacks(stored_in(exception, "__traceback__"))]
    known, modules = frames[-1], [each.get("self") for each in frames]
    if not known.keys() >= OF_A_MASK:
        return None
    module = next((each for each in modules[::-1] if is_a(each, nn.MultiheadAttention)), None)
    shape, of_heads = _shape(known["attn_mask"]), known["bsz"] * known["num_heads"]
    n_Q, n_K = known["tgt_len"], known["src_len"]
    needed: Shape = (n_Q, n_K)
    names = "n_Q×n_K"
    if len(shape) == 3:
        needed, names = (of_heads, n_Q, n_K), "n_batch·n_head × n_Q × n_K"
    is_first = module is not None and module.batch_first
    why = "" if module is None else f", since batch_first is {module.batch_first}"
    batch = f", and axis {int(not is_first)} as the batch ({known['bsz']}){why}"
    return (
        f"attn_mask is {shape_text(shape)}, but {names} is {shape_text(needed)}: axis"
        f" {int(is_first and known['is_batched'])} of the inputs was read as the length"
        f" (n_Q {n_Q}, n_K {n_K}){batch if known['is_batched'] else ''}"
    )


# Which axes do not fit together.


def _compare(failure: Failure, node: ast.expr | ast.AugAssign, frame: FrameType) -> None:
    """Determine the kind of the expression, and the pairs of axes that disagree."""
    name = ""
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if _is_linear(failure, node, frame):
            failure.kind = "contraction"
            _expect_equal(failure, (0, -1), (len(failure.parts) - 1, -1))
            return
    shapes = [part.shape for part in failure.parts]
    computes = isinstance(node, ast.BinOp | ast.AugAssign | ast.Compare)
    is_product = isinstance(getattr(node, "op", None), ast.MatMult) or name in PRODUCTS_IN_SOURCE
    if is_product or name in ("einsum", "linear"):
        failure.kind = "contraction"
        if name == "einsum":
            _compare_einsum(failure, node)
        elif len(shapes) >= 2 and is_product:
            _compare_product(failure, shapes[-2], shapes[-1], len(shapes) - 2)
        elif len(shapes) >= 2:
            _expect_equal(failure, (0, -1), (1, -1))
    elif computes or name.rstrip("_") in BROADCASTS:
        failure.kind = "broadcast"
        _compare_broadcast(failure, shapes)
    elif name in REGROUPS:
        failure.kind = "view"
    elif name in JOINS:
        failure.kind = "join"
        _compare_joined(failure, shapes)
    elif name == "scaled_dot_product_attention":
        _compare_attention(failure, shapes)


def _is_linear(failure: Failure, node: ast.Call, frame: FrameType) -> bool:
    """Check whether a call runs a linear module; if so, add its weight to the failure's parts."""
    from torch import nn

    module = _value(node.func, frame)
    if not issubclass(type(module), nn.Linear) or not failure.parts or not failure.parts[0].shape:
        return False
    text = f"{_text(node.func, failure.file)}.weight"
    failure.parts.append(FailedTensor(text, failure.parts[0].place, tuple(module.weight.shape)))
    return True


def _compare_product(failure: Failure, left: Shape, right: Shape, first: int) -> None:
    if not left or not right:
        return
    row = max(len(right) - 2, 0)
    _expect_equal(failure, (first, len(left) - 1), (first + 1, row))
    if not failure.axes:
        _compare_broadcast(failure, [left, right], after=2)
        if failure.axes:
            failure.kind = "broadcast"
            failure.axes = [(first + part, axis) for part, axis in failure.axes]


def _compare_broadcast(failure: Failure, shapes: list[Shape], after: int = 0) -> None:
    """Compare the axes of each two shapes, without some at their ends."""
    for i, left in enumerate(shapes):
        for j, right in enumerate(shapes[:i]):
            for back in range(after + 1, min(len(left), len(right)) + 1):
                if left[-back] != right[-back] and 1 not in (left[-back], right[-back]):
                    failure.axes = [(j, len(right) - back), (i, len(left) - back)]
                    return


def _compare_joined(failure: Failure, shapes: list[Shape]) -> None:
    """Compare all axes except the joined one, which torch's message names."""
    match = re.search(r"except in dimension (\d+)", safe_str(failure.exception))
    joined = int(match[1]) if match else None
    for i, other in enumerate(shapes[1:], start=1):
        for axis, (a, b) in enumerate(zip(shapes[0], other, strict=False)):
            if a != b and axis != joined:
                failure.axes = [(0, axis), (i, axis)]
                return


def _compare_attention(failure: Failure, shapes: list[Shape]) -> None:
    """Compare the widths of queries and keys, and the numbers of keys and values."""
    if len(shapes) < 3 or not all(len(shape) >= 2 for shape in shapes[:3]):
        return
    failure.kind = "contraction"
    _expect_equal(failure, (0, -1), (1, -1))
    if not failure.axes:
        _expect_equal(failure, (1, -2), (2, -2))
    if failure.axes:
        return
    failure.kind = "broadcast"
    _compare_broadcast(failure, [shape[:-2] for shape in shapes[:3]])
    if not failure.axes and len(shapes) == 4:
        scores, mask, back = (*shapes[0][:-1], shapes[1][-2]), shapes[3], len(shapes[3])
        for axis, (a, b) in enumerate(zip(scores[-back:], mask, strict=False)):
            if a != b and 1 not in (a, b):
                of_keys, of_queries = (1, len(shapes[1]) - 2), (0, len(shapes[0]) - back + axis)
                failure.axes = [of_keys if axis == back - 1 else of_queries, (3, axis)]
                return


def _compare_einsum(failure: Failure, node: ast.expr | ast.AugAssign) -> None:
    equation = node.args[0] if isinstance(node, ast.Call) and node.args else None
    if not isinstance(equation, ast.Constant) or not isinstance(equation.value, str):
        return
    first_axes: dict[str, tuple[int, int]] = {}
    terms = equation.value.replace(" ", "").split("->")[0].split(",")
    for i, (letters, part) in enumerate(zip(terms, failure.parts, strict=False)):
        before, _, after = letters.partition("...")
        axes = [*enumerate(before), *enumerate(after, start=len(part.shape) - len(after))]
        for axis, letter in axes:
            if not 0 <= axis < len(part.shape):
                return
            first = first_axes.setdefault(letter, (i, axis))
            if failure.parts[first[0]].shape[first[1]] != part.shape[axis]:
                failure.axes = [first, (i, axis)]
                return


def _expect_equal(failure: Failure, one: tuple[int, int], other: tuple[int, int]) -> None:
    """Compare the sizes of two parts' axes, whose indices may be negative."""
    shapes = [failure.parts[part].shape for part, _ in (one, other)]
    if shapes[0][one[1]] != shapes[1][other[1]]:
        failure.axes = [
            (part, axis % len(shape)) for (part, axis), shape in zip((one, other), shapes, strict=True)
        ]


def _in_words(failure: Failure, operands: list[Operand]) -> str | None:
    if failure.kind == "view" and operands:
        return _view_in_words(operands[0], safe_str(failure.exception))
    if not failure.axes:
        return None
    (one, axis), (other, other_axis) = failure.axes
    first, second = _axis_in_words(operands[one], axis), _axis_in_words(operands[other], other_axis)
    why = "to broadcast, they must be equal, or one of them must be 1"
    if failure.kind in ("contraction", "join"):
        joins = failure.kind == "join"
        why = "only the concatenated axis may differ" if joins else "the product contracts over them"
    return f"{first} and {second} disagree: {why}"


def _view_in_words(source: Operand, error: str) -> str | None:
    """Explain, from torch's message, why a tensor cannot be viewed in this shape."""
    count = f"{source.text} has {' · '.join(map(str, source.shape))} = {prod(source.shape)} elements"
    invalid = re.search(r"shape '?\[?([-\d, ]+)\]?'? is invalid", error)
    if invalid:
        requested = [int(size) for size in invalid[1].split(",")]
        fixed = prod(size for size in requested if size > 0)
        into = "×".join("?" if size < 0 else str(size) for size in requested)
        if -1 in requested:
            return f"{count}, which is not a multiple of {fixed}, as {into} requires"
        return f"{count}, but {into} has {fixed}"
    split = re.search(r"sizes \[([\d, ]+)\] don't multiply up to the size of dim (\d+)", error)
    if split:
        sizes = split[1].split(", ")
        parts = f"{' · '.join(sizes)} = {prod(map(int, sizes))}"
        return f"{_axis_in_words(source, int(split[2]))} cannot be split into {parts}"
    if "not compatible with input tensor's size and stride" in error:
        return f"{source.text} is not contiguous, so it cannot be viewed this way: reshape copies it"
    return None


def _axis_in_words(operand: Operand, axis: int) -> str:
    name = f"{operand.dims[axis]} " if operand.dims and not operand.dims[axis].isdigit() else ""
    return f"axis {axis} of {operand.text} ({name}{operand.shape[axis]})"


Shape = tuple[int, ...]


@dataclass(frozen=True)
class FailedTensor:
    """A tensor in an expression that failed: its source text, its place, and its shape."""

    text: str
    place: Place
    shape: Shape


@dataclass
class Failure:
    """An exception in traced code."""

    file: str  #: the location of the expression that failed
    line: int
    expression: str  #: its source text, on one line
    place: Place | None  #: its place in the source, if it is an expression
    parts: list[FailedTensor]  #: the tensors in it
    exception: BaseException
    kind: str = ""  #: `contraction`, `broadcast`, `view`, `join`, or empty for anything else
    #: pairs of axes that do not fit together, each as the index of its part and its own index
    axes: list[tuple[int, int]] = field(default_factory=list)
