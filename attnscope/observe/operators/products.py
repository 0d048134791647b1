"""Products of two tensors, as `lead row width` times `lead column width`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from attnscope.observe.operator_names import MATRIX_PRODUCTS
from attnscope.observe.operators.tape import TorchCall, Value


@dataclass(frozen=True)
class ProductOperand:
    """An operand of a product, and how to arrange its axes as `lead n width`."""

    value: Value
    axes: str  #: an einsum pattern from its own axes to the common ones: `ij` for each


@dataclass(frozen=True)
class Product:
    """A product of two tensors: out[l, i, j] = Σ_w first[l, i, w] · second[l, j, w]."""

    call: TorchCall
    first: ProductOperand  #: its operands
    second: ProductOperand
    lead: str  #: the axes that the operands and the result share, as letters
    rows: str  #: the axes of the first operand and the result; columns: those of the second
    columns: str
    width: str  #: the axes that are summed
    out: str  #: the axes of the result
    sizes: dict[str, int]  #: the size of each axis

    def swapped(self) -> Product:
        """Return the same product with its operands exchanged."""
        return replace(self, first=self.second, second=self.first, rows=self.columns, columns=self.rows)

    def with_other_rows(self) -> Iterator[Product]:
        """Yield the product with each axis of only the first operand as its rows, this one first."""
        yield self
        for each in self.first.axes:
            if each in self.lead and each not in self.second.axes:
                lead = [axis for axis in self.out if axis in self.lead + self.rows and axis != each]
                yield replace(self, lead="".join(lead), rows=each)

    def arranged(self, operand: ProductOperand, tensor: torch.Tensor, axes: str) -> torch.Tensor:
        """Return an operand as `lead n width`, repeated over the lead axes that it does not have."""
        missing = "".join(each for each in self.lead if each not in operand.axes)
        letters = missing + operand.axes
        tensor = tensor.expand(*(self.sizes[each] for each in letters))  # axes of size 1 repeat
        width = "".join(each for each in self.width if each in letters)
        tensor = torch.einsum(f"{letters}->{self.lead}{axes}{width}", tensor)
        return tensor.reshape(self.count(self.lead), self.count(axes), self.count(width))

    def first_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the first operand as `lead n width`."""
        return self.arranged(self.first, tensor, self.rows)

    def second_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the second operand as `lead n width`."""
        return self.arranged(self.second, tensor, self.columns)

    def out_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the result as `lead row column`."""
        tensor = torch.einsum(f"{self.out}->{self.lead}{self.rows}{self.columns}", tensor)
        return tensor.reshape(self.count(self.lead), self.count(self.rows), self.count(self.columns))

    def positions_of(
        self, tensor: torch.Tensor, elements: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the lead, row and column of elements of the result, whose flat indices are `tensor`."""
        arranged = self.out_of(tensor)
        _, n_row, n_column = arranged.shape
        place = torch.empty(arranged.numel(), dtype=torch.long)
        place[arranged.reshape(-1)] = torch.arange(arranged.numel())
        position = place[elements]
        return position // (n_row * n_column), position // n_column % n_row, position % n_column

    def count(self, axes: str) -> int:
        """Return the number of positions on some axes."""
        return prod(self.sizes[each] for each in axes)


def product_of(call: TorchCall) -> Product | None:
    """Return the product that a call computes; None if it computes none of two tensors."""
    if call.name in MATRIX_PRODUCTS:
        return _matrix_product(call)
    if call.name == "linear":
        first, second = call.argument(0, "input"), call.argument(1, "weight")
        if first.tensor.ndim < 2 or second.tensor.ndim != 2:
            return None
        rows = "abcdefgh"[: first.tensor.ndim - 1]
        return _product(call, first, second, f"{rows}w", "jw", f"{rows}j")
    axes = _einsum_axes(call) if call.name == "einsum" and len(call.parents) == 2 else None
    if axes is None:
        return None
    (first, second), (left, right, out) = call.parents, axes
    return _product(call, first, second, left, right, out)


def contracts(call: TorchCall) -> bool:
    """Check whether a product of two tensors sums over an axis, of more than one element."""
    if call.name != "einsum":
        return call.parents[0].tensor.shape[-1] > 1
    equation = call.args[0] if isinstance(call.args[0], str) else ""
    inputs, _, out = equation.replace(" ", "").partition("->")
    left, _, right = inputs.partition(",")
    return bool(set(left) & set(right) - {".", *out})


def _matrix_product(call: TorchCall) -> Product | None:
    """Return the product of `… i w` and `… w j`."""
    values = [each for each in (*call.args, *call.kwargs.values()) if isinstance(each, Value)]
    first, second = values[-2:] if len(values) >= 2 else (None, None)
    if first is None or second is None or min(first.tensor.ndim, second.tensor.ndim) < 2:
        return None
    lead = "abcdefgh"[: call.outputs[0].tensor.ndim - 2]
    left, right = (lead[len(lead) - each.tensor.ndim + 2 :] for each in (first, second))
    return _product(call, first, second, f"{left}iw", f"{right}wj", f"{lead}ij")


def scaled_product_of(call: TorchCall) -> tuple[Product, ProductOperand] | None:
    """Return the product of two tensors in an einsum of three, and the third, which scales its result.

    In `nlhd,nhmd,nlh->nlhm`, the last one divides each query's sum by its normaliser.
    """
    if call.name != "einsum" or len(call.parents) != 3 or not isinstance(call.args[0], str):
        return None
    *operands, out = _einsum_axes(call) or ("",)
    for i, letters in enumerate(operands):
        others = [j for j in range(len(operands)) if j != i]
        (first, left), (second, right) = ((call.parents[j], operands[j]) for j in others)
        if set(letters) <= set(out) & {*left, *right} and len(letters) < min(len(left), len(right)):
            product = _product(call, first, second, left, right, out)
            return None if product is None else (product, ProductOperand(call.parents[i], letters))
    return None


def _einsum_axes(call: TorchCall) -> list[str] | None:
    """Return the letters of each operand of an einsum, and of its result; None if it names no result."""
    equation: Any = call.args[0] if call.args else None
    if not isinstance(equation, str):
        return None
    inputs, _, out = equation.replace(" ", "").partition("->")
    operands = inputs.split(",")
    if not out or len(operands) != len(call.parents):
        return None
    free = [each for each in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if each not in equation]
    pairs = zip(call.parents, operands, strict=True)
    counts = [each.tensor.ndim - len(axes.replace("...", "")) for each, axes in pairs]

    def without_dots(axes: str, n: int) -> str:
        return axes.replace("...", "".join(free[:8][-n:]) if n else "")

    named = [without_dots(axes, n) for axes, n in zip(operands, counts, strict=True)]
    return [*named, without_dots(out, max(counts))]


def _product(
    call: TorchCall, first: Value, second: Value, left: str, right: str, out: str
) -> Product | None:
    """Return a product by the letters of its axes; None if it is not one of two matrices.

    Its rows and columns are one axis each; an axis of only one operand leads. In `bhqd,bkd->bhqk`, as
    when all heads share their keys, h is an axis of the queries only.
    """
    if any(len(set(each)) < len(each) for each in (left, right, out)):
        return None
    sizes: dict[str, int] = {}
    for letters, tensor in ((left, first.tensor), (right, second.tensor)):
        for letter, size in zip(letters, tensor.shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))

    def letters_in(of: str, *others: str, without: str = "") -> str:
        return "".join(each for each in of if all(each in o for o in others) and each not in without)

    lead = letters_in(out, left, right)
    rows, columns = letters_in(out, left, without=right), letters_in(out, right, without=left)
    width = letters_in(left, right, without=out)
    if not width or {*left, *right} - {*out, *width}:
        return None
    if call.name == "einsum":
        lead = "".join(each for each in out if each in lead + rows[:-1] + columns[:-1])
        rows, columns = rows[-1:], columns[-1:]
    if not rows or not columns:
        return None
    operands = ProductOperand(first, left), ProductOperand(second, right)
    return Product(call, *operands, lead, rows, columns, width, out, sizes)
