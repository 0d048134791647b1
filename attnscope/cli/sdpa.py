"""`attnscope sdpa`: scaled dot-product attention, of drawn tensors or the user's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from attnscope.cli import options
from attnscope.cli.options import OUTPUT, RUN, Format
from attnscope.errors import OptionError
from attnscope.options import keywords
from attnscope.textbook.options import (
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
    from attnscope.cli.output import Output
    from attnscope.results.trace import Trace

DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="The same rows, computed from the sizes alone: at once, at any size, without torch.",
        rich_help_panel=RUN,
    ),
]
Numbers = Annotated[
    bool,
    typer.Option(
        "--numbers", help="Print every tensor's values: corners, if many.", rich_help_panel=OUTPUT
    ),
]


@options.expanded
def sdpa(
    sizes: SdpaSizes,
    tensors: SdpaTensors,
    masking: Masking,
    scaling: Scale,
    stages: Stages,
    form: Form,
    place: RunOptions,
    dry_run: DryRun = False,
    *,
    explanations: Explanations,
    numbers: Numbers = False,
    stats: options.Stats = False,
    show: options.Show = None,
    save: options.Save = None,
    force: options.Force = False,
    format: options.OutputFormat = Format.TABLE,
    wide: options.Wide = False,
) -> int:
    """Run `attnscope sdpa` and return its exit status."""
    from attnscope.cli.output import Output

    groups = (sizes, tensors, masking, scaling, stages, form, place)
    output = Output(format, wide, show or (), save, force)
    if dry_run:
        return print_dry_run("sdpa", groups, explanations, output, numbers=numbers, stats=stats)
    return print_computed("sdpa", groups, explanations, output, numbers=numbers, stats=stats)


def print_dry_run(
    formula: Literal["sdpa", "mha"],
    groups: tuple[Any, ...],
    explanations: Explanations,
    output: Output,
    *,
    numbers: bool,
    stats: bool,
) -> int:
    """Print the rows of `sdpa` or `mha` without computing anything.

    Args:
        formula: the name of the formula.
        groups: the options of the library.
        explanations: the output in addition to the tensors.
        output: the options of the output.
        numbers: whether the values of every tensor were requested.
        stats: whether the statistics of every tensor were requested.
    """
    from attnscope import dry_run

    trace = dry_run(formula, explain=explanations.explain, source=explanations.source, **_merged(groups))
    reason = "a dry run", "--dry-run"
    _check(output, trace, explanations, numbers=numbers, stats=stats, without_values=reason)
    output.print_run(trace, source=explanations.source)
    return 0


def print_computed(
    formula: Literal["sdpa", "mha"],
    groups: tuple[Any, ...],
    explanations: Explanations,
    output: Output,
    *,
    numbers: bool,
    stats: bool,
) -> int:
    """Compute `sdpa` or `mha`, write and print it; arguments as in `print_dry_run`.

    Returns:
        The exit status: 1 if a check fails.
    """
    from attnscope import compute
    from attnscope.cli.output import exit_status, shown_progress, written_first
    from attnscope.render.values import stored, values_of

    choices = _merged(groups)

    def reserve(plan: Trace) -> int:
        reason = ("meta", "choose --device cpu") if choices["device"] == "meta" else None
        _check(output, plan, explanations, numbers=numbers, stats=stats, without_values=reason)
        return output.bytes_needed(plan, numbers=numbers)

    with shown_progress() as progress:
        trace = compute(
            formula,
            keep=numbers or output.keep,
            stats=stats,
            reserve=reserve,
            progress=progress,
            **keywords(explanations),
            **choices,
        )
    tensors = {step.name: stored(step) for step in trace.steps} if output.save else {}
    values = values_of(trace) if numbers else None
    with written_first(lambda: output.write(tensors)):
        output.print_run(trace, output.shown_of(trace), source=explanations.source, numbers=values)
    return exit_status(trace.checks)


def _merged(groups: tuple[Any, ...]) -> dict[str, Any]:
    """Return the options of several groups as keywords."""
    return {name: value for group in groups for name, value in keywords(group).items()}


def _check(
    output: Output,
    plan: Trace,
    explanations: Explanations,
    *,
    numbers: bool,
    stats: bool,
    without_values: tuple[str, str] | None,
) -> None:
    """Raise an AttnscopeError if the requested output is impossible.

    Args:
        output, explanations, numbers, stats: the requested output.
        plan: the plan of the run.
        without_values: if there are no values: what has none, and a hint.
    """
    from attnscope.cli.output import refuse_in_csv

    needed = {"--stats": stats, "--show": bool(output.show), "--save": output.save is not None}
    needed |= {"--verify": explanations.verify, "--numbers": numbers}
    option = next((option for option, is_needed in needed.items() if is_needed), None)
    if option and without_values:
        what, instead = without_values
        raise OptionError(
            f"{option} needs values, and {what} has none.", hint=f"leave out {option}, or {instead}"
        )
    more = {"--verify": explanations.verify, "--source": explanations.source, "--numbers": numbers}
    refuse_in_csv(output.format, more)
    output.check([plan.dtype or ""])
    output.check_selections(
        {step.name: (step.shape, step.dims) for step in plan.steps}, f"the steps of {plan.title}"
    )
