"""Find the first number of a run that is not finite: NaN and infinity show nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch

from attnscope.auditing.measure.leak import LIMIT, line_of, too_large
from attnscope.auditing.models.subject import OUTPUT, AuditedModel
from attnscope.observe.operators.chain import first_not_finite
from attnscope.observe.operators.tape import Tape, TooLargeError, Value, tensors_in


def not_finite(rows: torch.Tensor) -> str:
    """Return in words what is not finite among outputs by position, `n_position d`; or nothing."""
    wrong = ~rows.isfinite().flatten(1).all(1)
    positions = wrong.nonzero().flatten().tolist()
    if not positions:
        return ""
    kind = "NaN" if bool(rows.isnan().any()) else "infinite"
    n = len(rows)
    if len(positions) == n:
        where = "every position"
    elif len(positions) <= 3:
        where = f"position{'s' * (len(positions) > 1)} {', '.join(map(str, positions))}"
    else:
        where = f"{len(positions)} of {n} positions"
    return f"the output is {kind} at {where}"


def origin(
    call: Callable[[], torch.Tensor], n: int, weights: Mapping[int, str], inputs: Mapping[int, str]
) -> str:
    """Return in words where the first number arises that is not finite, of those that reach the output.

    Parameters, buffers and arguments are named by the `id` of their tensor.
    """
    tape = Tape(weights, inputs, limit=LIMIT)
    try:
        with tape:
            output = tape.value_of(call())
    except TooLargeError:
        return f"where it arises is not known: {too_large()}"
    first, user, _ = first_not_finite(output)
    name = first.weight or first.input
    why = f"{name} is not finite" if name else _hidden(first, n)
    line = line_of(first if first.call is not None else user)
    place = "" if line is None else f"first in {line.place}: {line.expression}"
    return ", ".join(filter(None, [why, place]))


def _hidden(weights: Value, n: int) -> str:
    """Name the queries that see no key, if that is why the weights of attention are NaN; or nothing."""
    if weights.name != "softmax" or not weights.parents:
        return ""
    scores = weights.parents[0].tensor
    if scores.dim() < 2 or scores.shape[-2] != n:
        return ""
    hidden = (scores == float("-inf")).all(-1).reshape(-1, n).any(0).nonzero().flatten().tolist()
    if not hidden:
        return ""
    if len(hidden) == 1:
        return f"query {hidden[0]} sees no key"
    which = f"queries {', '.join(map(str, hidden))}" if len(hidden) <= 3 else f"{len(hidden)} queries"
    return f"{which} see no key"


def first_not_finite_module(subject: AuditedModel, inputs: dict[str, Any], output: torch.Tensor) -> str:
    """Return in words what of a model's output is not finite, and in which module that begins.

    `output`, `n_position d`, is what it returned for these inputs. The words are empty if all is finite.
    """
    what = not_finite(output)
    if not what:
        return ""
    is_wrong = torch.isnan if bool(output.isnan().any()) else torch.isinf
    found: list[str] = []

    def hook_of(path: str) -> Any:
        def hook(module: torch.nn.Module, _: Any, output: Any) -> None:
            numbers = (each for each in tensors_in(output) if each.is_floating_point())
            if not found and any(bool(is_wrong(each).any()) for each in numbers):
                weights = dict(module.named_parameters(path, recurse=False))
                wrong = [name for name, weight in weights.items() if not bool(weight.isfinite().all())]
                found.append(f"{wrong[0]} is not finite" if wrong else f"first in {path or OUTPUT}")

        return hook

    with ExitStack() as hooks:
        for path, module in subject.module.named_modules():
            hooks.enter_context(module.register_forward_hook(hook_of(path)))
        subject.run(**inputs)
    return "; ".join([what, *found])
