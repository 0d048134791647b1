"""Find the line that lets positions influence positions that they should not.

Runs of the code are recorded on tapes, with and without changes, and compared tensor by tensor. A tensor
in which no position moves that should not is clean. One with an axis of positions, in which some do,
leaks. One without such an axis, or with several, is mixed as long as it is not clean. Which axes are
positions is seen from another run, with one position less. Without it, sizes decide.

A line is named if its correction alone removes the leak, when the tapes are computed again with it: the
mask that is expected in place of a mask, before a softmax or where a mask is applied; or what a tensor
held before the change, if all that it is computed from is clean.
"""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

import attnscope
from attnscope.auditing.measure.corrections import Leak
from attnscope.auditing.measure.difference import ChangedRun
from attnscope.auditing.result import Evidence, Line
from attnscope.base.errors import AttnscopeError
from attnscope.base.units import bytes_text
from attnscope.code.pairs.implementation import same
from attnscope.code.pairs.rounding import EXACT
from attnscope.observe.operators.tape import Tape, TooLargeError, Value, tensors_in

OWN = os.path.dirname(attnscope.__file__) + os.sep
"""The folder of attnscope's own code."""

LIMIT = 2**31
"""The bytes that a tape may take."""


def too_large() -> str:
    """Return in words that a run does not fit on a tape."""
    return f"the tensors of a run take more than {bytes_text(LIMIT)}; smaller sizes show it"


@dataclass(frozen=True)
class Cause:
    """The line of a leak, or why it is not known."""

    line: Line | None = None  #: the line; None: unknown
    why: str = ""  #: what its correction shows; or why no line is named, if that helps

    def added_to(self, evidence: Evidence) -> Evidence:
        """Return evidence with the line, or why it is not known."""
        if self.line is None:
            return replace(evidence, no_line=self.why)
        return replace(evidence, line=self.line, cause=self.why)


Run = Callable[[], Any]
"""Calls code, and returns what it returns."""


def first_leak(
    run: Run,
    changed: Sequence[tuple[Run, Collection[int]]],
    n: int,
    shorter: Run | None = None,
    rounding: float = EXACT,
    *,
    visible: torch.Tensor | None = None,
    place: int | None = None,
    weights: Mapping[int, str] = MappingProxyType({}),
    inputs: Mapping[str, Any] = MappingProxyType({}),
    module: torch.nn.Module | None = None,
) -> Cause:
    """Find the line whose correction alone removes a leak.

    Args:
        run: runs the code.
        changed: runs it with another input, beside the positions that should not move then.
        n: the number of positions.
        shorter: runs the code with one position less, which it may refuse; None: it cannot.
        rounding: the amount that rounding may cause, that of float64 unless said otherwise; otherwise
            code that asks for float32 gets it.
        visible: the keys that each query should see in each layer, `n n`; None: no mask is expected.
        place: which of the tensors that the code returns leaks; None: any.
        weights: the names of buffers and parameters, by their `id`.
        inputs: the arguments by name.
        module: the code, if it is one, whose class makes buffers and parameters.

    Returns:
        Nothing if the runs differ in what they call, or nothing leaks.
    """
    exact = rounding <= EXACT
    try:
        tape, returned = recorded(run, exact, weights)
        others = [recorded(each, exact)[0] for each, _ in changed]
    except TooLargeError:
        return Cause(None, f"its line is not known: {too_large()}")
    names = [each.name for each in tape.values]
    if any([each.name for each in other.values] != names for other in others):
        return Cause()
    lengths = None
    if shorter is not None:
        with suppress(AttnscopeError, TooLargeError):
            lengths = _lengths(tape, recorded(shorter, exact)[0])
    ends = [each for i, each in enumerate(returned) if place in (None, i)]
    changes = [
        ChangedRun(other, torch.tensor(sorted(still)), tape, n, lengths, rounding)
        for other, (_, still) in zip(others, changed, strict=True)
    ]
    ends = [end for end in ends if any(each.state(end.index) != "clean" for each in changes)]
    if not ends:
        return Cause()
    found = Leak(tape, changes, ends, n, visible).correction()
    if found is None:
        return Cause(None, "its line is not known: no correction of one line removes it")
    if found.root is None:
        return Cause(line_of(found.value), found.why)
    weight, mask = found.root.weight, found.root.tensor
    given = [
        name for name, each in inputs.items() if isinstance(each, torch.Tensor) and same(each, mask)
    ]
    name = weight or next(iter(given), "")
    what = f"{name} is the mask" if name else "the mask is made elsewhere"
    line = _definition_of(module, weight) if weight else None
    return Cause(line or line_of(found.value), f"{what}: {found.why}")


def _lengths(tape: Tape, short: Tape) -> list[torch.Size] | None:
    """Return the shapes of tensors in a shorter run; None if they are not those of the same calls."""
    calls = [[(each.name, each.tensor.dim()) for each in one.values] for one in (tape, short)]
    return [each.tensor.shape for each in short.values] if calls[0] == calls[1] else None


def recorded(
    run: Run, exact: bool, weights: Mapping[int, str] = MappingProxyType({})
) -> tuple[Tape, list[Value]]:
    """Return the tape of a run, and the tensors that it returns."""
    tape = Tape(weights, limit=LIMIT, exact=exact)
    with tape:
        outputs = [tape.value_of(each) for each in tensors_in(run())]
    return tape, outputs


def line_of(value: Value) -> Line | None:
    """Find the line that computes a tensor."""
    place = value.place
    if place is None or place.file.startswith(OWN):  # a kernel that the audit itself calls
        return None
    return Line(place.file, place.line, place.text)


def _definition_of(module: torch.nn.Module | None, name: str) -> Line | None:
    """Return the line that makes a buffer or parameter, by its name; None: unknown."""
    if module is None:
        return None
    path, _, attribute = name.rpartition(".")
    for owner in type(module.get_submodule(path)).__mro__:
        try:
            lines, first = inspect.getsourcelines(owner)
            file = inspect.getsourcefile(owner) or ""
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            continue
        for node in _definitions(tree, attribute):
            return Line(file, first + node.lineno - 1, ast.unparse(node))
    return None


def _definitions(tree: ast.AST, attribute: str) -> Iterator[ast.stmt]:
    """Yield statements such as `self.register_buffer("mask", …)` and `self.mask = …`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and node.value.args:
            called, name = node.value.func, node.value.args[0]
            is_registered = isinstance(called, ast.Attribute) and called.attr.startswith("register_")
            if is_registered and isinstance(name, ast.Constant) and name.value == attribute:
                yield node
        elif isinstance(node, ast.Assign) and any(
            isinstance(each, ast.Attribute) and each.attr == attribute for each in node.targets
        ):
            yield node
