"""`attnscope scaling`: why scores are divided by √d_K."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnscope.base.errors import warn_unused
from attnscope.base.options import keywords, option
from attnscope.cli import options
from attnscope.cli.options import Format, FormatOptions
from attnscope.cli.output import draw, print_result, shown_progress, written_first
from attnscope.formula.options import Experiment, Widths

EXAMPLES = {
    "attnscope scaling": "softmax with and without the scale, for six widths",
    "attnscope scaling --dk 64,128 --nk 16": "other widths, fewer keys",
    "attnscope scaling --plot scaling.svg": "a figure of it",
}


@dataclass(frozen=True)
class ScalingOutput(FormatOptions):
    """The options of the output."""

    bars: bool | None = option("Draw bars below the table.", "--bars/--no-bars", shown="bars")
    plot: Path | None = option("Draw a figure: .png, .svg or .pdf.", metavar="FILE")
    force: bool = option("Replace an existing file.", default=False)


@options.expanded
def scaling(widths: Widths, experiment: Experiment, output: ScalingOutput) -> int:
    """Run `attnscope scaling` and return its exit status."""
    from attnscope.formula.scaling.measure import measure_scaling

    plot = output.plot
    if plot is not None:
        from attnscope.document.figure import check_plot

        check_plot(plot, force=output.force)
    with shown_progress() as progress:
        result = measure_scaling(**keywords(widths, experiment), progress=progress)
    no_bars = output.bars is not None and output.format is not Format.TABLE
    warn_unused(
        [
            (
                no_bars,
                "bars" if output.bars else "no_bars",
                f"bars are drawn below a table, not in {output.format}",
            ),
            (output.force and plot is None, "force", "no file is written"),
        ]
    )
    with written_first(lambda: draw(result, plot, force=output.force)):
        print_result(result, output, result.document(bars=output.bars is not False))
    return 0
