"""`attnscope heads`: what every head of a model does, in numbers, over one text or many."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.options import OUTPUT, RUN, Format, Stack

READS, SHOWN = "What it reads", "What is shown"


def heads(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="minilm (bundled), a folder, or a hub name such as bert-base-uncased.",
        ),
    ],
    text: Annotated[str | None, typer.Option("--text", help="A text.", rich_help_panel=READS)] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="FILE",
            parser=options.file_name,
            help="A file that is one text, of any length.",
            rich_help_panel=READS,
        ),
    ] = None,
    ids: options.Ids = None,
    tokens: options.Tokens = None,
    corpus: Annotated[
        str | None,
        typer.Option(
            "--corpus",
            metavar="FILE",
            help="Many texts: .txt (a line each), .jsonl (an object each), either with .gz; - for"
            " standard input.",
            rich_help_panel=READS,
        ),
    ] = None,
    field: Annotated[
        str | None,
        typer.Option(
            "--field",
            metavar="NAME",
            help="The field of each object that is its text.",
            show_default="text",
            rich_help_panel=READS,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="TEXT",
            help="What the decoder beside an encoder reads.",
            rich_help_panel=READS,
        ),
    ] = None,
    target_field: Annotated[
        str | None,
        typer.Option(
            "--target-field",
            metavar="NAME",
            help="The field of each object that the decoder reads.",
            rich_help_panel=READS,
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            "--max-length",
            metavar="N",
            min=1,
            help="Cut longer texts to N tokens.",
            show_default="of a corpus 4096, or what the model takes",
            rich_help_panel=READS,
        ),
    ] = None,
    truncate: Annotated[
        bool,
        typer.Option(
            "--truncate", help="Cut a text that is longer than the model takes.", rich_help_panel=READS
        ),
    ] = False,
    special: Annotated[
        bool,
        typer.Option(
            "--special/--no-special",
            help="Whether [CLS], [SEP] and the like count as queries.",
            rich_help_panel=READS,
        ),
    ] = True,
    without_sink: Annotated[
        bool,
        typer.Option(
            "--without-sink",
            help="Measure what goes to other keys than the first token and special ones, as if they were"
            " all there is.",
            rich_help_panel=SHOWN,
        ),
    ] = False,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="NAME,…",
            help="Only these: entropy, entropy_share, self, previous, next, first, separator,"
            " punctuation, same, induction, distance, largest, effective.",
            show_default="all",
            rich_help_panel=SHOWN,
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort",
            metavar="NAME",
            help="Rank the heads by this metric, the largest first.",
            rich_help_panel=SHOWN,
        ),
    ] = None,
    reverse: Annotated[
        bool, typer.Option("--reverse", help="The smallest first.", rich_help_panel=SHOWN)
    ] = False,
    top: Annotated[
        int | None,
        typer.Option("--top", metavar="K", min=1, help="Only the first K heads.", rich_help_panel=SHOWN),
    ] = None,
    stack: Annotated[
        Stack | None,
        typer.Option(
            "--stack",
            help="Whose layers, in models that have several.",
            show_default="all that run",
            rich_help_panel=SHOWN,
        ),
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(
            "--layer",
            metavar="N",
            help="Which layers, counted from 0: 3, 0-3 or 0,2.",
            show_default="all",
            rich_help_panel=SHOWN,
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            "--head",
            metavar="N",
            help="Which heads, counted from 0.",
            show_default="all",
            rich_help_panel=SHOWN,
        ),
    ] = None,
    dtype: options.ModelDtype = None,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            help="Where it runs: cpu, cuda, cuda:1, mps, xpu. Under torchrun, cuda is one GPU each.",
            rich_help_panel=RUN,
        ),
    ] = "cpu",
    device_map: Annotated[
        str | None,
        typer.Option(
            "--device-map",
            metavar="auto",
            help="Divide the model among all devices, with accelerate.",
            rich_help_panel=RUN,
        ),
    ] = None,
    memory: options.Memory = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            "--batch-tokens",
            metavar="N",
            min=1,
            help="How many tokens of a corpus are read at once.",
            show_default="4096; 16384 on a GPU",
            rich_help_panel=RUN,
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="FILE.npz",
            parser=options.file_name,
            help="Where a run over a corpus is kept, and goes on from if it is there.",
            rich_help_panel=RUN,
        ),
    ] = None,
    plot: options.Plot = None,
    page: Annotated[
        Path | None,
        typer.Option(
            "--page",
            metavar="FILE.html",
            parser=options.file_name,
            help="A page to click through: the heads by metric; of a short text their maps too.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Let --plot and --page replace a file that is there.", rich_help_panel=OUTPUT
        ),
    ] = False,
    format: options.OutputFormat = Format.TABLE,
    wide: options.Wide = False,
) -> int:
    """What every head of a model does: how widely and how far it looks, and at what."""
    given = dict(locals())  # the options, by name
    from attnscope.cli.asked import Asked

    asked = Asked(**given)
    asked.check()
    from attnscope.cli.measuring import show_heads

    return show_heads(asked)
