"""What becomes of axes in operators: which axis of a result is which axis of an operand.

An axis is known by where it comes from and not by its size: two axes of one size are two axes. An
operator that is not listed here ends what is known: the axes of its result are new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

import torch

from attnscope.observe.axes.expressions import Expression, of_number, of_word
from attnscope.observe.by_tensor import ByTensor
from attnscope.observe.instrument.recorder import shape_of
from attnscope.observe.operator_names import (
    ATEN_MOVES,
    ATEN_PRODUCTS,
    ATEN_SAME,
    ATEN_SOFTMAXES,
    ATEN_VIEWS,
    axes_after,
)

ONE = of_number(1)


class Piece(NamedTuple):
    """A factor of an axis: its size in this run, and as an expression."""

    size: int
    value: Expression


Axis = tuple[Piece, ...]
"""The factors of an axis, in their order: several where a view has merged axes."""

Axes = tuple[Axis, ...]

PRODUCTS = {name: places for name, places in ATEN_PRODUCTS.items() if name != "dot"}
"""The result of `dot` has no axes."""

SAME = {
    *ATEN_SAME, *ATEN_SOFTMAXES, "_log_softmax", "tril", "triu", "cumsum", "flip", "roll",
    "native_dropout", "native_layer_norm", "_fused_rms_norm", "zeros_like", "ones_like", "empty_like",
    "full_like", "rand_like", "randn_like", "masked_fill", "bernoulli", "scatter", "sort", "argsort",
}  # fmt: skip
"""Operators whose results have the axes of their first argument, as far as the sizes are equal."""

REDUCTIONS = {
    "sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "prod", "logsumexp", "any", "all",
    "var", "std", "norm", "linalg_vector_norm",
}  # fmt: skip


class Flow:
    """Follows the axes of all tensors through the operators of one call."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}  #: the size of each origin of an axis, by its symbol
        #: what is known of a symbol: the expression that it equals
        self.values: dict[str, Expression] = {}
        #: axes that an operator requires to be equal, although their origins differ: the pairs of each
        #: operator, those of one operand together
        self.equal: list[list[tuple[Axis, Axis]]] = []
        #: the symbols of the axes of the call's arguments, which are free
        self.inputs: set[str] = set()
        self.named: set[str] = set()  #: the symbols that the code has a name for
        self._axes = ByTensor[Axes]()

    # Symbols.

    def symbol(self, size: int) -> Expression:
        """Return a new symbol for a size; 1 for an axis of size 1, which may be any."""
        name = f"s{len(self.sizes)}"
        self.sizes[name] = size
        return of_word(name)

    def new(self, size: int) -> Axis:
        """Return a new axis."""
        return (Piece(size, ONE if size == 1 else self.symbol(size)),)

    def resolved(self, value: Expression) -> Expression:
        """Return an expression in terms of symbols of which nothing is known."""
        while any(word in self.values for word in value.words):
            value = value.of({word: self.values.get(word, of_word(word)) for word in value.words})
        return value

    def has_size(self, value: Expression, size: int) -> bool:
        """Check whether an expression has this size in this run."""
        try:
            return value.size(self.sizes) == size
        except ArithmeticError:
            return False

    def equate(self, one: Expression, other: Expression, *, join: bool = False) -> None:
        """Note that two expressions are equal, if that says what a symbol without a name is."""
        one, other = self.resolved(one), self.resolved(other)
        if len(one.terms) > 1 and len(other.terms) > 1:  # n_past + n_new
            shared = Expression(tuple({*one.terms} & {*other.terms}))
            one, other = one - shared, other - shared
        if len(one.terms) != 1 or len(other.terms) != 1:
            return
        ratio = one * other.inverse()  # 1
        ((powers, number),) = ratio.terms
        unknown = sorted(ratio.words - self.named, key=lambda word: int(word[1:]), reverse=True)
        is_pair = len(unknown) == len(powers) == 2 and sum(power for _, power in powers) == 0
        if not (len(unknown) == 1 or (join and is_pair and number == 1)):
            return
        value = self.solved(ratio, unknown[0])
        if value is not None:
            self.values[unknown[0]] = value

    def solved(self, ratio: Expression, symbol: str) -> Expression | None:
        """Return what a symbol is if a product of it and others is 1; None if that is not its size."""
        ((powers, _),) = ratio.terms
        power = dict(powers)[symbol]
        value = of_word(symbol) * (ratio if power < 0 else ratio.inverse())
        return value if abs(power) == 1 and self.has_size(value, self.sizes[symbol]) else None

    # Tensors.

    def of(self, tensor: torch.Tensor) -> Axes:
        """Return the axes of a tensor; new ones if its origin is unknown."""
        known = self._axes.get(tensor)
        if known is not None:
            return known
        return self.set(tensor, tuple((Piece(size, self.symbol(size)),) for size in shape_of(tensor)))

    def set(self, tensor: torch.Tensor, axes: Axes) -> Axes:
        """Set the axes of a tensor, and return them."""
        self._axes[tensor] = axes
        return axes

    def operator(self, func: Any, args: tuple, kwargs: Mapping[str, Any], out: Any) -> None:
        """Follow axes through an ATen operator that has run."""
        name = func._overloadpacket.__name__
        is_row = isinstance(out, tuple | list)
        rule = RULES.get(name)
        if rule is None and torch.Tag.pointwise in func.tags:
            rule = _pointwise
        elif rule is None and name.startswith("_scaled_dot_product"):
            rule = _attention
        if rule is None or (func._schema.is_mutable and not is_row):  # its result is its argument
            return
        op = Operation(self, name, args, kwargs, out if is_row else (out,))
        for tensor, axes in zip(op.results, rule(op), strict=False):
            shape = shape_of(tensor) if isinstance(tensor, torch.Tensor) else ()
            if axes is not None and isinstance(tensor, torch.Tensor) and len(axes) == len(shape):
                fits = zip(axes, shape, strict=True)
                self.set(tensor, tuple(a if size_of(a) == n else self.new(n) for a, n in fits))

    def merge(self, axes: Sequence[Axis]) -> Axis:
        """Return the axis that equal axes make together: the first that the code has a name for."""
        first = next((axis for axis in axes if self.is_named(axis)), axes[0])
        for each in axes:
            self.require([(first, each)])
        return first

    def require(self, pairs: Iterable[tuple[Axis, Axis]]) -> None:
        """Note that an operator requires axes to be equal; of size 1, they need not be."""
        some = [(a, b) for a, b in pairs if a is not b and size_of(a) == size_of(b) > 1]
        if some and not any(map(has_unit, (axis for pair in some for axis in pair))):
            self.equal.append(some)

    def is_named(self, axis: Axis) -> bool:
        """Check whether the code has names for all that an axis consists of."""
        words = {word for piece in axis for word in self.resolved(piece.value).words}
        return bool(words) and words <= self.named


def size_of(axis: Axis) -> int:
    """Return the size of an axis."""
    return prod(piece.size for piece in axis)


def has_unit(axis: Axis) -> bool:
    """Check whether an axis contains one of size 1, merged with its left, or rather with its right."""
    return len(axis) > 1 and any(piece.size == 1 for piece in axis)


def whole(axis: Axis) -> Expression:
    """Return the size of an axis as an expression."""
    value = axis[0].value
    for piece in axis[1:]:
        value *= piece.value
    return value


def viewed(flow: Flow, axes: Axes, shape: Sequence[int]) -> Axes:
    """Return the axes after a view: the factors in their order, merged and split again."""
    if 0 in shape:
        return tuple(map(flow.new, shape))
    n_same = 0  # axes at the end
    for axis, size in zip(axes[::-1], shape[::-1], strict=False):
        if size_of(axis) != size or has_unit(axis):
            break
        n_same += 1
    end = len(axes) - n_same
    left = [piece for axis in axes[:end] for piece in axis]
    result: list[Axis] = []
    for size in shape[: len(shape) - n_same]:
        factors = _next_factors(flow, left, size)
        if factors is None:  # no axis begins or ends where another did
            return (*result, *map(flow.new, shape[len(result) : len(shape) - n_same]), *axes[end:])
        result.append(factors)
    kept, units = axes[end:], tuple(piece for piece in left if piece.value != ONE)  # of size 1
    if units and result:  # they may belong to either side
        result[-1] = result[-1] + units
    if units and kept:
        kept = (units + kept[0], *kept[1:])
    return (*result, *kept)


def _next_factors(flow: Flow, left: list[Piece], size: int) -> Axis | None:
    """Remove factors of this size from the front of a list; None if they do not fit."""
    taken: list[Piece] = []
    while left and (size_of(tuple(taken)) < size or not taken):
        piece = left.pop(0)
        missing = size // size_of(tuple(taken))
        if size == 1 < piece.size:
            left.insert(0, piece)
            break
        if piece.size > missing:
            if missing == 1 or piece.size % missing:
                return None
            part = flow.symbol(missing)
            left.insert(0, Piece(piece.size // missing, piece.value * part.inverse()))
            piece = Piece(missing, part)
        if size == 1 or piece.value != ONE:
            taken.append(piece)
    if size == 1 and not taken:
        return (Piece(1, ONE),)
    return tuple(taken) if size_of(tuple(taken)) == size and taken else None


# Rules: each returns the axes of the results; None for those of which nothing is known.


class Operation(NamedTuple):
    """An operator that has run."""

    flow: Flow
    name: str
    args: tuple
    kwargs: Mapping[str, Any]
    results: Sequence[Any]

    @property
    def axes(self) -> Axes:
        """The axes of its first argument."""
        return self.flow.of(self.args[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its first result."""
        return shape_of(self.results[0])

    def argument(self, place: int, name: str, default: Any = 0) -> Any:
        """Return an argument by its position or name."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)


Rule = Callable[[Operation], Iterable[Axes | None]]


def _same(op: Operation) -> Iterator[Axes]:
    for result in op.results[:2]:
        if isinstance(result, torch.Tensor) and len(shape_of(result)) == len(op.axes):
            yield op.axes


def _pointwise(op: Operation) -> list[Axes]:
    flow = op.flow
    operands = [flow.of(each) for each in op.args if isinstance(each, torch.Tensor)]
    aligned = zip_longest(*(axes[::-1] for axes in operands))
    result = []
    for size, axes in zip(op.shape[::-1], aligned, strict=False):
        fitting = [axis for axis in axes if axis is not None and size_of(axis) == size]
        if size == 1:
            fitting = [axis for axis in fitting if whole(axis) != ONE] or fitting
        named = next((axis for axis in fitting if flow.is_named(axis)), None)
        result.append(named or (fitting[0] if fitting else flow.new(size)))
    for operand in operands:
        flow.require(zip(result, operand[::-1], strict=False))
    return [tuple(result[::-1])]


def _product(op: Operation) -> list[Axes]:
    a, b = (op.flow.of(op.args[place]) for place in PRODUCTS[op.name])
    batch = tuple(op.flow.merge([x, y]) for x, y in zip(a[:-2], b[:-2], strict=False))
    op.flow.require([(a[-1], b[-2] if len(b) > 1 else b[-1])])
    return [(*batch, a[-2], *b[-1:]) if len(b) > 1 else (*batch, a[-2])]


def _attention(op: Operation) -> list[Axes]:
    q, k, v = (op.flow.of(each) for each in op.args[:3])
    batch = tuple(
        op.flow.merge([*axes]) if size_of(axes[0]) == size_of(axes[1]) else axes[0]
        for axes in zip(q[:-2], k[:-2], strict=True)
    )
    op.flow.require([(q[-1], k[-1])])
    op.flow.require([(k[-2], v[-2])])
    return [(*batch, q[-2], v[-1])]


def _moved(op: Operation) -> list[Axes]:
    axes, shape = op.axes, op.shape
    # where an expanded axis has another size, `operator` makes a new one
    places = axes_after(op.name, op.args, len(axes), len(shape))
    return [tuple(axes[i] if i >= 0 else op.flow.new(n) for i, n in zip(places, shape, strict=False))]


def _squeeze(op: Operation) -> list[Axes]:
    which = op.argument(1, "dim", range(len(op.axes)))
    dropped = {i % len(op.axes) for i in ([which] if isinstance(which, int) else which) if op.axes}
    return [tuple(axis for i, axis in enumerate(op.axes) if i not in dropped or size_of(axis) != 1)]


def _split(op: Operation) -> list[Axes]:
    axes, new = op.axes, op.flow.new
    place = op.argument(2, "dim") % len(axes)
    sizes = [shape_of(each)[place] for each in op.results]
    part = whole(axes[place]) * of_number(Fraction(1, len(sizes)))
    are_equal = len({*sizes}) == 1 and not isinstance(op.args[1], list | tuple)  # and not by chance
    parts = [(Piece(n, part),) if are_equal and n > 1 else new(n) for n in sizes]
    return [(*axes[:place], each, *axes[place + 1 :]) for each in parts]


def _unbind(op: Operation) -> list[Axes]:
    place = op.argument(1, "dim") % len(op.axes)
    return [(*op.axes[:place], *op.axes[place + 1 :])] * len(op.results)


def _cat(op: Operation) -> list[Axes]:
    several = [op.flow.of(each) for each in op.args[0] if len(shape_of(each)) == len(op.shape)]
    place = op.argument(1, "dim") % len(op.shape)
    joined = (Piece(op.shape[place], sum((whole(each[place]) for each in several), of_number(0))),)
    columns = enumerate(zip(*several, strict=True))
    return [tuple(joined if i == place else op.flow.merge(each) for i, each in columns)]


def _stack(op: Operation) -> list[Axes]:
    axes = [op.flow.merge(each) for each in zip(*map(op.flow.of, op.args[0]), strict=True)]
    count = len(op.args[0])
    axes.insert(op.argument(1, "dim") % (len(axes) + 1), (Piece(count, of_number(count)),))
    return [tuple(axes)]


def _index(op: Operation) -> list[Axes | None]:
    axes, indexed = op.axes, [i for i, each in enumerate(op.args[1]) if each is not None]
    if len(indexed) != 1 or op.args[1][indexed[0]].dtype == torch.bool:
        return [None]
    return [(*axes[: indexed[0]], *op.flow.of(op.args[1][indexed[0]]), *axes[indexed[0] + 1 :])]


def _index_select(op: Operation) -> list[Axes]:
    axes = list(op.axes)
    axes[op.args[1]] = op.flow.of(op.args[2])[0]
    return [tuple(axes)]


def _reduce(op: Operation) -> list[Axes | None]:
    axes, args = op.axes, op.args
    is_norm = len(args) > 2 and isinstance(args[2], list)
    which = args[2] if is_norm else args[1:2]
    which = which[0] if len(which) == 1 and isinstance(which[0], list | tuple) else which
    if not all(type(each) is int for each in which) or not which:
        return [None]
    places = {each % len(axes) for each in which}
    if len(op.shape) < len(axes):
        return [tuple(axis for i, axis in enumerate(axes) if i not in places)] * 2
    return [tuple((Piece(1, ONE),) if i in places else axis for i, axis in enumerate(axes))] * 2


RULES: dict[str, Rule] = {
    **dict.fromkeys(SAME, _same),
    **dict.fromkeys(ATEN_VIEWS, lambda op: [viewed(op.flow, op.axes, op.shape)]),
    **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys(PRODUCTS, _product),
    **dict.fromkeys(ATEN_MOVES, _moved),
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    "squeeze": _squeeze,
    "slice": lambda op: [op.axes],
    "unbind": _unbind,
    "cat": _cat,
    "stack": _stack,
    "embedding": lambda op: [(*op.flow.of(op.args[1]), op.axes[-1])],
    "index": _index,
    "index_select": _index_select,
}
