"""`attnscope card`: a model's attention and its cost, before it is loaded."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli.options import Format, TableOptions, expanded
from attnscope.cli.output import draw, put, shown_progress, stdout, tell, written_first
from attnscope.completion import completion
from attnscope.cost.options import CostOptions
from attnscope.errors import warn_idle
from attnscope.options import keywords, option
from attnscope.results.card import Card
from attnscope.results.cards import Cards
from attnscope.text import encodable_json

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
    from attnscope import card, cards

    plot = output.plot
    if plot is not None:
        from attnscope.render.figures.save_figure import check_plot

        check_plot(plot, force=output.force)
    warn_idle(
        [
            (output.wide and output.always_wide, "--wide", f"{output.format} has all columns anyway"),
            (output.force and plot is None, "--force", "no file is written"),
        ]
    )
    with shown_progress() as progress:
        result: Card | Cards
        if len(models) == 1:
            result = card(models[0], **keywords(cost), progress=progress)
        else:
            result = cards(models, **keywords(cost), progress=progress)
    with written_first(lambda: draw(result, plot, force=output.force)):
        _print(result, output)
    return 1 if result.differs else 0


def _print(result: Card | Cards, output: TableOptions) -> None:
    if output.format is Format.TABLE:
        from attnscope.render.terminal.card import print_card, print_cards

        if isinstance(result, Card):
            print_card(result, stdout(), wide=output.wide)
        else:
            print_cards(result, stdout(), wide=output.wide)
        return
    from attnscope.render.records import records  # which imports the views of every result

    if output.format is Format.JSON:
        text = records.json_text(result.to_dict())
        print(encodable_json(text, sys.stdout.encoding))
    elif output.format is Format.CSV:
        put(records.csv_text(result))
        findings = [each.message for each in result.findings] if isinstance(result, Card) else []
        for notice in [*findings, *result.notices]:
            tell(notice)
    else:
        put(records.markdown_text(result, wide=output.wide))
