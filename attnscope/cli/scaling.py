"""`attnscope scaling`: why scores are divided by √d_K."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli import options
from attnscope.cli.options import OUTPUT, Format
from attnscope.errors import warn_idle
from attnscope.options import keywords
from attnscope.textbook.options import Experiment

if TYPE_CHECKING:
    from attnscope.results.scaling import Scaling


@options.expanded
def scaling(
    experiment: Experiment,
    plot: Annotated[
        bool | None,
        typer.Option(
            "--plot/--no-plot",
            help="Draw bars below the table.",
            show_default="plot",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    format: options.OutputFormat = Format.TABLE,
) -> int:
    """Run `attnscope scaling` and return its exit status."""
    from attnscope import measure_scaling
    from attnscope.cli.output import shown_progress

    choices = keywords(experiment)
    with shown_progress() as progress:
        result = measure_scaling(choices.pop("dk"), **choices, progress=progress)
    option = "--plot" if plot else "--no-plot"
    no_bars = plot is not None and format is not Format.TABLE
    warn_idle([(no_bars, option, f"bars are drawn below a table, not in {format}")])
    _print(result, format, plot is not False)
    return 0


def _print(result: Scaling, format: Format, plot: bool) -> None:
    from attnscope.cli.output import print_json, put, stdout
    from attnscope.render.records import scaling

    if format is Format.JSON:
        print_json(result.to_dict())
    elif format is Format.CSV:
        put(scaling.csv_text(result))
    elif format is Format.MARKDOWN:
        put(scaling.markdown_text(result))
    else:
        from attnscope.render.terminal.scaling import print_scaling

        print_scaling(result, stdout(), plot=plot)
