"""The description of an expression that failed."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnscope.observe.instrument.rewrite import Place

Shape = tuple[int, ...]


@dataclass(frozen=True)
class FailedTensor:
    """A tensor in an expression that failed: its source text, its place, and its shape."""

    text: str
    place: Place
    shape: Shape


@dataclass
class Failure:
    """An exception in traced code.

    Attributes:
        file, line: the location of the expression that failed.
        expression: its source text, on one line.
        place: its place in the source, if it is an expression.
        parts: the tensors in it.
        kind: `contraction`, `broadcast`, `view`, `join`, or empty for anything else.
        axes: pairs of axes that do not fit together, each as the index of its part and its own index.
        exception: the exception that was raised.
    """

    file: str
    line: int
    expression: str
    place: Place | None
    parts: list[FailedTensor]
    exception: BaseException
    kind: str = ""
    axes: list[tuple[int, int]] = field(default_factory=list)
