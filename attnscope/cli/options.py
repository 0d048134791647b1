"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"


SIZES, RUN, OUTPUT = "Sizes", "Run", "Output"

Batch = Annotated[int, typer.Option("--batch", help="n_batch: sequences.", rich_help_panel=SIZES)]
NQ = Annotated[int, typer.Option("--nq", help="n_Q: queries.", rich_help_panel=SIZES)]
Seed = Annotated[
    int, typer.Option("--seed", help="What random values are drawn with.", rich_help_panel=RUN)
]
DType = Annotated[
    str,
    typer.Option("--dtype", help="float64, float32, float16 or bfloat16.", rich_help_panel=RUN),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        help="cpu, cuda, cuda:1, mps, xpu, or meta (shapes without values).",
        rich_help_panel=RUN,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="The same rows, computed from the sizes alone: at once, at any size, without torch.",
        rich_help_panel=RUN,
    ),
]
Stats = Annotated[
    bool,
    typer.Option(
        "--stats",
        help="Min, mean, max, std of each tensor's finite values; NaN and inf counted.",
        rich_help_panel=OUTPUT,
    ),
]
Wide = Annotated[
    bool,
    typer.Option(
        "--wide",
        help="All columns, however wide the terminal is (json and csv always have them).",
        rich_help_panel=OUTPUT,
    ),
]
OutputFormat = Annotated[
    Format, typer.Option("--format", "-f", help="How to print it.", rich_help_panel=OUTPUT)
]
Show = Annotated[
    str | None,
    typer.Option(
        "--show",
        metavar="NAME[INDEX]",
        help='Print a tensor\'s values too: "attention", "attention[0,1]", "Q[0,:2]".',
        rich_help_panel=OUTPUT,
    ),
]
Save = Annotated[
    Path | None,
    typer.Option(
        "--save",
        metavar="FILE",
        help="Write the tensors by name: .safetensors, .npz or .pt.",
        rich_help_panel=OUTPUT,
    ),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Let --save replace a file that is there.", rich_help_panel=OUTPUT),
]
