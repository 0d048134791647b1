"""What is known of an expression that failed."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnscope.tracing.instrument.rewrite import Place

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """A tensor in an expression that failed: its text, where it stands, and its shape."""

    text: str
    place: Place
    shape: Shape


@dataclass
class Failure:
    """An exception in traced code.

    Attributes:
        file, line: where the expression stands that failed.
        expression: its text, on one line.
        place: where it stands, if it is one.
        parts: the tensors in it.
        kind: `contraction`, `broadcast`, `view`, `join`, or nothing if it is none of these.
        axes: two axes that do not fit together, each as the number of its part and its own.
        exception: what was raised.
    """

    file: str
    line: int
    expression: str
    place: Place | None
    parts: list[Part]
    exception: BaseException
    kind: str = ""
    axes: list[tuple[int, int]] = field(default_factory=list)
