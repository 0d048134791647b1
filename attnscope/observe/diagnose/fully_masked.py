"""Rows of attention that are fully masked: no mistake if the code handles them.

The values of such rows are changed, and each operator that follows is computed again from the changed
values. Where its result stays the same, the code has handled the rows: it replaces them, or leaves them
out.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from attnscope.document.result import Finding
from attnscope.observe.torch_internals.dispatch import unseen


@dataclass(eq=False)
class FullyMaskedRows:
    """Rows of one result."""

    findings: list[Finding]  #: what to say of them, unless the code handles them
    handled: bool = False  #: whether it does


class Counterfactual(NamedTuple):
    """The values that a tensor would have if fully masked rows had other values."""

    of: weakref.ref[torch.Tensor]
    values: torch.Tensor
    has_nan: bool  #: whether the tensor itself has NaN
    rows: frozenset[FullyMaskedRows]  #: the rows that it depends on


@dataclass
class FullyMasked:
    """The fully masked rows of a run, and the tensors that depend on them."""

    rows: list[FullyMaskedRows] = field(default_factory=list)
    _known: dict[int, Counterfactual] = field(default_factory=dict)

    @property
    def findings(self) -> list[Finding]:
        """What is to be said of the rows that the code does not handle."""
        return [each for rows in self.rows if not rows.handled for each in rows.findings]

    def add(self, out: torch.Tensor, is_masked: torch.Tensor, finding: Finding) -> None:
        """Add the rows of a result for which no key is visible.

        Args:
            is_masked: which rows they are, with as many axes as the result; it broadcasts.
        """
        rows = FullyMaskedRows([finding])
        self.rows.append(rows)
        known = self.counterfactual(out)
        values, others = (out, frozenset()) if known is None else (known.values, known.rows)
        with unseen():
            added = torch.linspace(1, 2, out.shape[-1], device=out.device).to(out.dtype)
            values = torch.where(is_masked, values.nan_to_num() + added, values)
        self._set(out, values, frozenset({rows, *others}))

    def add_consequence(self, tensor: torch.Tensor, finding: Finding) -> bool:
        """Add a finding about NaN in a tensor; return whether that depends on fully masked rows."""
        known = self.counterfactual(tensor)
        for rows in known.rows if known is not None else ():
            if len(rows.findings) == 1:  # the first of them is enough
                rows.findings.append(finding)
        return known is not None

    def counterfactual(self, tensor: Any) -> Counterfactual | None:
        """Return the values of a tensor with other values in fully masked rows; None: it has none."""
        known = self._known.get(id(tensor)) if isinstance(tensor, torch.Tensor) else None
        return known if known is not None and known.of() is tensor else None

    def follow(self, func: Any, args: tuple, kwargs: dict, out: Any) -> None:
        """Compute an operator again with other values in fully masked rows.

        If the result is the same, or NaN is gone, the code has handled the rows. Rows that cannot be
        followed count as handled, so that nothing is said of them.
        """
        inputs = [
            found for each in flat((*args, *kwargs.values())) if (found := self.counterfactual(each))
        ]
        if not inputs:
            return
        rows = frozenset[FullyMaskedRows]().union(*(each.rows for each in inputs))
        others = self._computed_again(func, args, kwargs, out, inputs[0])
        pairs = [
            (real, other)
            for real, other in zip(flat((out,)), others, strict=False)
            if isinstance(real, torch.Tensor) and real.is_floating_point() and real.numel()
            if not _is_float8(real)  # which torch does not compare
        ]
        changed = [pair for pair in pairs if _differ(*pair)]
        for real, other in changed:
            self._set(real, other, rows)
        had_nan = any(each.has_nan for each in inputs)
        without_nan = had_nan and not any(self._known[id(real)].has_nan for real, _ in changed)
        if not others or any(map(_is_float8, flat((out,)))) or (pairs and (not changed or without_nan)):
            for each in rows:
                each.handled = True

    def _computed_again(
        self, func: Any, args: tuple, kwargs: dict, out: Any, first: Counterfactual
    ) -> list[Any]:
        """Return the results of an operator with other values; empty: they are not known."""
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        into_another = func._schema.is_mutable and self.counterfactual(args[0]) is None
        with suppress(Exception), unseen():
            if func._overloadpacket.__name__ == "native_dropout":
                return [torch.where(out[1], first.values / (1 - args[1]), 0)]
            if not is_random and not into_another:
                inputs = [self._changed(each) for each in args]
                options = {key: self._changed(each) for key, each in kwargs.items()}
                return list(flat((func(*inputs, **options),)))
        return []

    def _changed(self, value: Any) -> Any:
        """Return an argument of an operator, with other values in fully masked rows."""
        if isinstance(value, list | tuple):
            return [self._changed(each) for each in value]
        known = self.counterfactual(value)
        return value if known is None else known.values

    def _set(self, tensor: torch.Tensor, values: torch.Tensor, rows: frozenset[FullyMaskedRows]) -> None:
        key = id(tensor)
        with unseen():
            has_nan = bool(tensor.isnan().any())
        of = weakref.ref(tensor, lambda _: self._known.pop(key, None))
        self._known[key] = Counterfactual(of, values, has_nan, rows)


def flat(args: Iterable[Any]) -> Iterator[Any]:
    """Yield arguments of an operator, and the members of lists among them."""
    for each in args:
        yield from each if isinstance(each, list | tuple) else (each,)


def _is_float8(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.element_size() == 1


def _differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Check whether two tensors differ by more than rounding, or NaN is elsewhere."""
    with unseen():
        if not torch.equal(one.isnan(), other.isnan()):
            return True
        one, other = one.nan_to_num(), other.nan_to_num()
        tolerance = 16 * torch.finfo(one.dtype).eps * one.abs().max()
        return bool(((one - other).abs() > tolerance).any())
