"""Products of two tensors, as `lead row width` times `lead column width`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from attnscope.observe.operator_names import MATRIX_PRODUCTS
from attnscope.observe.operators.tape import TorchCall, Value


@dataclass(frozen=True)
class ProductOperand:
    """An operand of a product, and how to arrange its axes as `lead n width`.

    Attributes:
        value: the operand.
        axes: an einsum pattern from its own axes to the common ones: `ij` for each.
    """

    value: Value
    axes: str


@dataclass(frozen=True)
class Product:
    """A product of two tensors: out[l, i, j] = Σ_w first[l, i, w] · second[l, j, w].

    Attributes:
        call: the call that computes it.
        first, second: its operands.
        lead: the axes that the operands and the result share, as letters.
        rows: the axes of the first operand and the result; columns: those of the second.
        width: the axes that are summed.
        out: the axes of the result.
        sizes: the size of each axis.
    """

    call: TorchCall
    first: ProductOperand
    second: ProductOperand
    lead: str
    rows: str
    columns: str
    width: str
    out: str
    sizes: dict[str, int]

    def swapped(self) -> Product:
        """Return the same product with its operands exchanged."""
        return Product(
            self.call, self.second, self.first, self.lead, self.columns, self.rows, self.width,
            self.out, self.sizes,
        )  # fmt: skip

    def with_other_rows(self) -> Iterator[Product]:
        """Yield the product with each axis of only the first operand as its rows, this one first."""
        yield self
        for each in self.first.axes:
            if each in self.lead and each not in self.second.axes:
                lead = "".join(
                    axis for axis in self.out if axis in self.lead + self.rows and axis != each
                )
                yield replace(self, lead=lead, rows=each)

    def arranged(self, operand: ProductOperand, tensor: torch.Tensor, axes: str) -> torch.Tensor:
        """Return an operand as `lead n width`, repeated over the lead axes that it does not have."""
        missing = [each for each in self.lead if each not in operand.axes]
        letters = operand.axes
        for each in missing:
            tensor = tensor.unsqueeze(0).expand(self.sizes[each], *tensor.shape)
            letters = each + letters
        tensor = _expanded(tensor, letters, self.sizes)
        tensor = torch.einsum(f"{letters}->{self.lead}{axes}{self.width}", tensor)
        return tensor.reshape(self.count(self.lead), self.count(axes), self.count(self.width))

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

    def count(self, axes: str) -> int:
        """Return the number of positions on some axes."""
        result = 1
        for each in axes:
            result *= self.sizes[each]
        return result


def _expanded(tensor: torch.Tensor, letters: str, sizes: dict[str, int]) -> torch.Tensor:
    """Return a tensor whose axes of size 1 are repeated as the product repeats them."""
    return tensor.expand(*(sizes[each] for each in letters))


def product_of(call: TorchCall) -> Product | None:
    """Return the product that a call computes; None if it computes none of two tensors."""
    if call.name in MATRIX_PRODUCTS:
        return _matrix_product(call)
    if call.name == "linear":
        first, second = call.argument(0, "input"), call.argument(1, "weight")
        if first.tensor.ndim < 2 or second.tensor.ndim != 2:
            return None
        rows = _letters(first.tensor.ndim - 1, "abcdefgh")
        return _product(call, first, second, f"{rows}w", "jw", f"{rows}j")
    if call.name == "einsum":
        return _einsum(call)
    return None


def _letters(n: int, alphabet: str) -> str:
    return alphabet[:n]


def _matrix_product(call: TorchCall) -> Product | None:
    """Return the product of `… i w` and `… w j`."""
    values = [each for each in (*call.args, *call.kwargs.values()) if isinstance(each, Value)]
    first, second = values[-2:] if len(values) >= 2 else (None, None)
    if first is None or second is None or min(first.tensor.ndim, second.tensor.ndim) < 2:
        return None
    out = call.outputs[0].tensor
    lead = _letters(out.ndim - 2, "abcdefgh")
    return _product(
        call,
        first,
        second,
        f"{lead[len(lead) - first.tensor.ndim + 2 :]}iw",
        f"{lead[len(lead) - second.tensor.ndim + 2 :]}wj",
        f"{lead}ij",
    )


def _einsum(call: TorchCall) -> Product | None:
    """Return the product that an einsum of two tensors computes."""
    equation: Any = call.args[0] if call.args else None
    if not isinstance(equation, str) or len(call.parents) != 2:
        return None
    first, second = call.parents
    inputs, _, out = equation.replace(" ", "").partition("->")
    if not out or inputs.count(",") != 1:
        return None
    left, right = inputs.split(",")
    free = [each for each in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if each not in equation]

    def without_dots(axes: str, n: int) -> str:
        letters = "".join(free[:8][-n:]) if n else ""
        return axes.replace("...", letters)

    n_left = first.tensor.ndim - len(left.replace("...", ""))
    n_right = second.tensor.ndim - len(right.replace("...", ""))
    n_out = max(n_left, n_right) if "..." in out else 0
    return _product(
        call,
        first,
        second,
        without_dots(left, n_left),
        without_dots(right, n_right),
        without_dots(out, n_out),
    )


def _product(
    call: TorchCall, first: Value, second: Value, left: str, right: str, out: str
) -> Product | None:
    """Return a product by the letters of its axes; None if it is not one of two matrices."""
    if any(len(set(each)) < len(each) for each in (left, right, out)):
        return None
    sizes: dict[str, int] = {}
    for letters, tensor in ((left, first.tensor), (right, second.tensor)):
        for letter, size in zip(letters, tensor.shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    lead = "".join(each for each in out if each in left and each in right)
    only_left = "".join(each for each in out if each in left and each not in right)
    only_right = "".join(each for each in out if each in right and each not in left)
    width = "".join(each for each in left if each in right and each not in out)
    return _with_axes(
        Product(
            call,
            ProductOperand(first, left),
            ProductOperand(second, right),
            lead,
            only_left,
            only_right,
            width,
            out,
            sizes,
        )
    )


def _with_axes(product: Product) -> Product | None:
    """Return a product whose rows and columns are one axis each; an axis of only one operand leads.

    In `bhqd,bkd->bhqk`, as when all heads share their keys, h is an axis of the queries only.
    """
    first, second = product.first.axes, product.second.axes
    if not product.width or set(first) - set(product.out) - set(product.width):
        return None
    if set(second) - set(product.out) - set(product.width):
        return None
    rows, columns = product.rows, product.columns
    lead = product.lead
    if product.call.name == "einsum":
        rows, more_lead = _last(rows, product.out)
        columns, even_more = _last(columns, product.out)
        lead = "".join(each for each in product.out if each in lead + more_lead + even_more)
    if not rows or not columns:
        return None
    return Product(
        product.call, product.first, product.second, lead, rows, columns, product.width, product.out,
        product.sizes,
    )  # fmt: skip


def _last(axes: str, out: str) -> tuple[str, str]:
    """Return the last of some axes in a result, and the others."""
    ordered = [each for each in out if each in axes]
    return "".join(ordered[-1:]), "".join(ordered[:-1])
