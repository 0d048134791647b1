"""`attnscope sdpa`: scaled dot-product attention, of drawn tensors or the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from attnscope.base.errors import OptionError
from attnscope.base.options import keywords, option
from attnscope.base.spelling import spelled
from attnscope.cli import options
from attnscope.cli.options import RUN
from attnscope.cli.output import Output, exit_status, refuse_in_csv, shown_progress, written_first
from attnscope.formula.options import (
    Explanations,
    Form,
    Masking,
    RunOptions,
    Scale,
    SdpaSizes,
    SdpaTensors,
    Stages,
)

if TYPE_CHECKING:
    from attnscope.observe.trace import Trace

EXAMPLES = {
    "attnscope sdpa --nq 30 --nk 50": "every tensor from Q, K, V to the output",
    "attnscope sdpa --mask causal --explain": "a causal mask, with a sentence on each step",
    "attnscope sdpa --dry-run --nk 1000000": "the shapes and memory of any size, at once",
    "attnscope sdpa --nq 2 --nk 3 --dk 4 --numbers --verify": "every number, compared with PyTorch",
    "attnscope sdpa --q q.npy --k k.npy --v v.npy": "tensors of your own",
}


@dataclass(frozen=True)
class FormulaOutput(Output):
    """The options of the output of `sdpa` and `mha`."""

    numbers: bool = option(
        "Print the values of every tensor; of a large one, its corners.", default=False
    )
    dry_run: bool = option(
        "Derive the shapes from the sizes, without torch; instant at any size.",
        default=False,
        panel=RUN,
        common=True,
    )


@options.expanded
def sdpa(
    sizes: SdpaSizes,
    tensors: SdpaTensors,
    masking: Masking,
    scaling: Scale,
    stages: Stages,
    form: Form,
    place: RunOptions,
    explanations: Explanations,
    output: FormulaOutput,
) -> int:
    """Run `attnscope sdpa` and return its exit status."""
    groups = (sizes, tensors, masking, scaling, stages, form, place)
    return print_formula("sdpa", groups, explanations, output)


def print_formula(
    formula: Literal["sdpa", "mha"],
    groups: tuple[Any, ...],
    explanations: Explanations,
    output: FormulaOutput,
) -> int:
    """Print a run of `sdpa` or `mha`, or its plan.

    Args:
        formula: the name of the formula.
        groups: the options of the library.
        explanations: the output in addition to the tensors.
        output: the options of the output.

    Returns:
        The exit status: 1 if a check fails.
    """
    choices = keywords(*groups)
    if output.dry_run:
        return _print_plan(formula, choices, explanations, output)
    return _print_run(formula, choices, explanations, output)


def _print_plan(
    formula: Literal["sdpa", "mha"],
    choices: dict[str, Any],
    explanations: Explanations,
    output: FormulaOutput,
) -> int:
    from attnscope.formula.compute import dry_run

    trace = dry_run(formula, explain=explanations.explain, source=explanations.source, **choices)
    _check(output, trace, explanations, without_values=("a dry run", "leave out --dry-run"))
    output.print(trace)
    return 0


def _print_run(
    formula: Literal["sdpa", "mha"],
    choices: dict[str, Any],
    explanations: Explanations,
    output: FormulaOutput,
) -> int:
    """Compute the formula, write the file, print the run."""
    from attnscope.formula.compute import compute

    def reserve(plan: Trace) -> int:
        reason = ("meta", "choose --device cpu") if choices["device"] == "meta" else None
        _check(output, plan, explanations, without_values=reason)
        return output.bytes_needed(plan, numbers=output.numbers)

    with shown_progress() as progress:
        trace = compute(
            formula,
            keep=output.numbers or output.keep,
            stats=output.stats,
            reserve=reserve,
            progress=progress,
            **keywords(explanations),
            **choices,
        )
    tensors = trace.tensors() if output.save else {}
    with written_first(lambda: output.write(tensors)):
        output.print(trace, output.shown_of(trace), numbers=output.numbers)
    return exit_status(trace.checks)


def _check(
    output: FormulaOutput,
    plan: Trace,
    explanations: Explanations,
    *,
    without_values: tuple[str, str] | None,
) -> None:
    """Raise an AttnscopeError if the requested output is impossible.

    Args:
        output, explanations: the requested output.
        plan: the plan of the run.
        without_values: if there are no values: what has none, and a hint.
    """
    needed = {"stats": output.stats, "show": bool(output.show), "save": output.save is not None}
    needed |= {"verify": explanations.verify, "numbers": output.numbers}
    option = next((spelled(option) for option, is_needed in needed.items() if is_needed), None)
    if option and without_values:
        what, instead = without_values
        raise OptionError(
            f"{option} needs values, and {what} has none.", hint=f"leave out {option}, or {instead}"
        )
    more = {
        "verify": explanations.verify,
        "source": explanations.source,
        "numbers": output.numbers,
    }
    refuse_in_csv(output.format, more)
    output.check([plan.dtype or ""])
    output.check_selections(
        {step.name: (step.shape, step.dims) for step in plan.steps}, f"the steps of {plan.title}"
    )
