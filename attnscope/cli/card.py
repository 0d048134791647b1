"""`attnscope card`: a model's attention and its cost, before it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.base.errors import warn_unused
from attnscope.base.options import keywords, option
from attnscope.cli.completion import completion
from attnscope.cli.options import Format, TableOptions, expanded
from attnscope.cli.output import draw, print_result, refuse_in_csv, shown_progress, written_first
from attnscope.model.card.options import CostOptions

if TYPE_CHECKING:
    from attnscope.model.card.cards import Cards
    from attnscope.model.card.result import Card

EXAMPLES = {
    "attnscope card minilm": "the bundled model",
    "attnscope card config.json --context 128k --batch 4": "the cache of four long sequences",
    "attnscope card minilm ./llama --context 512": "two models side by side",
    "attnscope card config.json --verify": "the formula beside transformers' own cache",
    "attnscope card ./llama --memory 80G --dtype fp8": "what fits beside the weights",
    "attnscope card config.json --plot cache.svg": "a figure of the cache as the context grows",
}


@dataclass(frozen=True)
class CardOutput(TableOptions):
    """The table and the figure."""

    plot: Path | None = option(
        "Draw what keys and values take as the context grows: .png, .svg or .pdf.", metavar="FILE"
    )
    force: bool = option("Replace an existing file.", default=False)


@expanded
def card(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="A folder; a config.json, .safetensors or .gguf file; or a name on the hub."
            " Several are shown side by side.",
            autocompletion=completion("models"),
        ),
    ],
    cost: CostOptions,
    output: CardOutput,
) -> int:
    """Run `attnscope card` and return its exit status."""
    from attnscope.model.card.card import card as card_of
    from attnscope.model.card.card import cards as cards_of

    plot = output.plot
    if plot is not None:
        from attnscope.document.figure import check_plot

        check_plot(plot, force=output.force)
    warn_unused(
        [
            (output.wide and output.always_wide, "wide", f"{output.format} has all columns anyway"),
            (output.force and plot is None, "force", "no file is written"),
        ]
    )
    if output.format is Format.CSV and len(models) == 1:  # that of several has a row for each
        refuse_in_csv(output.format, {"verify": cost.verify})
        idle = "memory cache_memory weights weights_dtype engine_step flops bandwidth".split()
        warn_unused((getattr(cost, name), name, "csv has the layers alone") for name in idle)
    with shown_progress() as progress:
        command = card_of if len(models) == 1 else cards_of
        result: Card | Cards = command(*models, **keywords(cost), progress=progress)
    with written_first(lambda: draw(result, plot, force=output.force)):
        print_result(result, output)
    return 1 if result.differs else 0
