"""What the code says of axes whose sizes no other run tells apart.

Where a size is the same in all runs, an axis of the same size may be another one by chance: a third of
a head is as long as the sequence. Then it has the name only if the code says that it is this axis.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from attnscope.observe.axes.expressions import Expression, of_word, parse_expression
from attnscope.observe.axes.from_source import ObservedAxes
from attnscope.observe.axes.symbols import AxisOrigin
from attnscope.observe.instrument.failure import FailedTensor
from attnscope.observe.trace import Step


class AxisOrigins:
    """What one run of the code says of the axes of its steps.

    Args:
        observed: where the axes come from.
        names: the named sizes; a quotient of two is named by its text.
        equations: the expressions that the user says some of them equal.
    """

    def __init__(
        self,
        observed: ObservedAxes,
        names: Collection[str],
        equations: Iterable[tuple[str, Expression]],
    ) -> None:
        self.observed = observed
        self.sizes = observed.sizes_by_step()
        self.values = {name: observed.values_of(name) for name in names}
        quotients = ((name, parse_expression(name)) for name in names if not name.isidentifier())
        for name, expression in (*equations, *quotients):
            value = expression and _in_symbols(expression, self.values)
            if value is not None and name in self.values:
                self.values[name].add(observed.flow.resolved(value))

    def of_step(self, step: Step) -> tuple[AxisOrigin, ...]:
        """Find where the code gets the size of each axis of a step."""
        return self._origins(self.sizes.get(id(step)), len(step.shape))

    def of_part(self, part: FailedTensor) -> tuple[AxisOrigin, ...]:
        """Find where the code gets the size of each axis of an expression."""
        return self._origins(self.observed.sizes_of_part(part), len(part.shape))

    def _origins(self, sizes: list[Expression | None] | None, n_axes: int) -> tuple[AxisOrigin, ...]:
        known = sizes if sizes is not None and len(sizes) == n_axes else [None] * n_axes
        return tuple(map(self._of_size, known))

    def _of_size(self, size: Expression | None) -> AxisOrigin:
        """Return the names that a size is, and those that it consists of."""
        if size is None:
            return AxisOrigin()
        whole = {name for name, values in self.values.items() if size in values}
        within = {
            name
            for name, values in self.values.items()
            if any(value.words and value.words <= size.words for value in values)
        }
        return AxisOrigin(frozenset(whole), frozenset(whole | within), self._in_names(size))

    def _in_names(self, size: Expression) -> str | None:
        """Return a sum, product or quotient of names; None if a part of it has no name."""
        if size.word is not None:
            return None
        names = {}
        for word in size.words:
            known = (name for name, values in self.values.items() if of_word(word) in values)
            names[word] = next(known, None)
        if not names or None in names.values():
            return None
        return str(size.of({word: of_word(name) for word, name in names.items() if name}))


def _in_symbols(
    expression: Expression, values: Mapping[str, Collection[Expression]]
) -> Expression | None:
    """Return an expression of names in terms of what they are; None if one is unknown or unclear."""
    if any(len(values.get(name, ())) != 1 for name in expression.words):
        return None
    return expression.of({name: next(iter(values[name])) for name in expression.words})
