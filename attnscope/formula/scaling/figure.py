"""Draw the effect of the scale: a panel for each measure, with and without the scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.formula.scaling.result import MEASURES, Scaling

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANEL = 2.4  # inches
LINES = {False: ("without 1/√d_K", "tab:red", "--", "o"), True: ("with 1/√d_K", "tab:blue", "-", "s")}
"""How measurements without and with the scale are drawn; the dashes show in black and white, too."""
LOGARITHMIC = ("variance", "gradient_norm")
"""Measures that span orders of magnitude."""


def draw_scaling(figure: Figure, result: Scaling) -> None:
    """Draw each measure as a function of d_K, with and without the scale.

    Args:
        figure: the figure to draw into.
        result: the measurements.
    """
    figure.set_size_inches(len(MEASURES) * PANEL * 1.2, PANEL)
    panels = figure.subplots(1, len(MEASURES))
    widths = sorted({row.d_K for row in result.rows})
    for axes, measure in zip(panels, MEASURES, strict=True):
        for scaled, (name, colour, dashes, marker) in LINES.items():
            values = [getattr(result[d_K, scaled], measure) for d_K in widths]
            axes.plot(widths, values, dashes, color=colour, marker=marker, markersize=3, label=name)
        axes.set_title(measure.replace("_", " "), loc="left")
        axes.set_xscale("log", base=2)
        axes.set_xticks(widths, [str(d_K) for d_K in widths], minor=False)
        axes.set_xlabel("d_K")
        if measure in LOGARITHMIC:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
    panels[0].legend(frameon=False)
    figure.tight_layout()
