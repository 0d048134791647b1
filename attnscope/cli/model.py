"""`attnscope model`: one attention head of a checkpoint: its weights, or what it looks at."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.options import OUTPUT, RUN, Format, Stack

READS, SHOWN = "What it reads", "What is shown"


class Pool(StrEnum):
    """What a cell shows that several tokens share; or that none is shared."""

    MAX = "max"
    MEAN = "mean"
    NONE = "none"


def model(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="minilm (bundled), a folder, or a hub name such as bert-base-uncased.",
        ),
    ],
    layer: Annotated[
        str | None,
        typer.Option(
            "--layer",
            metavar="N",
            help="Which layer, counted from 0; with a text also 0-3, 0,2 or all.",
            show_default="the first that attends",
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            "--head",
            metavar="N",
            help="Which head, counted from 0; with a text also 0-3, 0,2 or all.",
            show_default="0",
        ),
    ] = None,
    stack: Annotated[
        Stack | None,
        typer.Option(
            "--stack",
            help="Whose layers, in models that have several.",
            show_default="encoder; cross, where a decoder reads",
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            "--text", help="A text to read: the attention in it is shown.", rich_help_panel=READS
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="FILE",
            parser=options.file_name,
            help="A file to read as one text.",
            rich_help_panel=READS,
        ),
    ] = None,
    ids: options.Ids = None,
    tokens: options.Tokens = None,
    pair: Annotated[
        str | None,
        typer.Option("--pair", metavar="TEXT", help="The second text of a pair.", rich_help_panel=READS),
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
    image: Annotated[
        Path | None,
        typer.Option(
            "--image",
            metavar="FILE",
            parser=options.file_name,
            help="A picture, for models that see.",
            rich_help_panel=READS,
        ),
    ] = None,
    generate: Annotated[
        int | None,
        typer.Option(
            "--generate",
            metavar="N",
            min=1,
            help="Let the model write N tokens more, and show what these look at.",
            rich_help_panel=READS,
        ),
    ] = None,
    truncate: Annotated[
        bool,
        typer.Option(
            "--truncate", help="Cut a text that is longer than the model takes.", rich_help_panel=READS
        ),
    ] = False,
    query: Annotated[
        int | None,
        typer.Option(
            "--query", metavar="I", help="Only what token I looks at, key by key.", rich_help_panel=SHOWN
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            "--top",
            metavar="K",
            min=1,
            help="List the K strongest keys of each query.",
            rich_help_panel=SHOWN,
        ),
    ] = None,
    without_sink: Annotated[
        bool,
        typer.Option(
            "--without-sink",
            help="Leave the first token and special ones out of the keys of --top, and of the scale of"
            " colours.",
            rich_help_panel=SHOWN,
        ),
    ] = False,
    pool: Annotated[
        Pool | None,
        typer.Option(
            "--pool",
            help="Pool maps to at most 256 × 256 cells, which show their largest weight or the mean; or"
            " show and write whole maps, however large.",
            show_default="max, where whole maps take 256 MiB; --save writes whole ones",
            rich_help_panel=SHOWN,
        ),
    ] = None,
    steps: Annotated[
        bool,
        typer.Option(
            "--steps",
            help="The layer's attention step by step: Q, K, V, scores, mask, attention, x_raw.",
            rich_help_panel=SHOWN,
        ),
    ] = False,
    circuits: Annotated[
        bool,
        typer.Option(
            "--circuits",
            help="Singular values of the head's QK and OV products, from its weights.",
            rich_help_panel=SHOWN,
        ),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Compare with transformers: the weights at work, or the maps with its own; exit 1"
            " if one differs.",
            rich_help_panel=SHOWN,
        ),
    ] = False,
    plot: options.Plot = None,
    page: Annotated[
        Path | None,
        typer.Option(
            "--page",
            metavar="FILE.html",
            parser=options.file_name,
            help="A page to click through, all layers and heads in one file.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    dtype: options.ModelDtype = None,
    device: Annotated[
        str,
        typer.Option(
            "--device", help="Where it runs: cpu, cuda, cuda:1, mps, xpu.", rich_help_panel=RUN
        ),
    ] = "cpu",
    memory: options.Memory = None,
    show: Annotated[
        list[str] | None,
        typer.Option(
            "--show",
            metavar="NAME[INDEX]",
            help='Print values too: "W_Q[0,:5]", "attention[3]"; with --steps "scores[0,1]";'
            " again for several.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    stats: options.Stats = False,
    save: options.Save = None,
    force: options.Force = False,
    format: options.OutputFormat = Format.TABLE,
    wide: options.Wide = False,
) -> int:
    """One attention head of a model: its weights; with --text or --image, what it looks at."""
    given = dict(locals())  # the options, by name
    from attnscope.cli.request import Request

    request = Request(**given)
    request.check()
    if request.reads:
        from attnscope.cli.looking import show_attention

        return show_attention(request)
    from attnscope.cli.weights import show_weights

    return show_weights(request)
