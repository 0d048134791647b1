"""`attnscope compare`: two attentions on the same input."""

from __future__ import annotations

from typing import Annotated

import typer

from attnscope.base.errors import OptionError, warn_unused
from attnscope.base.options import is_code, keywords
from attnscope.base.process.streams import user_streams
from attnscope.cli.completion import completion
from attnscope.cli.options import FigureOptions, Format, TableOptions, expanded
from attnscope.cli.output import (
    draw,
    notices_shown,
    print_result,
    refuse_in_csv,
    shown_progress,
    written_first,
)
from attnscope.code.compare.options import ComparedArguments, ComparedExecution, Models, Reference
from attnscope.code.compare.result import Comparison

EXAMPLES = {
    "attnscope compare mine.py:attention sdpa": "your function with softmax(Q·Kᵀ/√d_K)·V",
    "attnscope compare mine.py:MHA mha --init d_model=64 --init h=8": (
        "your class with multi-head attention of its weights"
    ),
    "attnscope compare mine.py:MHA minilm --layer 0": "your class with a layer of a model",
    "attnscope compare old.py:MHA new.py:MHA --init d_model=64 --init h=8": "before and after a change",
    "attnscope compare minilm ./my-minilm": "two models, head by head",
}

EQUAL, DIFFERENT = 0, 1


@expanded
def compare(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="file.py:Class, file.py:function or package.module:Class; or a model.",
            autocompletion=completion("targets"),
        ),
    ],
    arguments: ComparedArguments,
    reference: Reference,
    models: Models,
    execution: ComparedExecution,
    files: FigureOptions,
    output: TableOptions,
    b: Annotated[
        str | None,
        typer.Argument(
            metavar="B",
            help="What to compare it with: sdpa, mha, other code, or a model.",
            autocompletion=completion("targets"),
        ),
    ] = None,
) -> int:
    """Run `attnscope compare` and return its exit status."""
    from attnscope.code.compare.compare import compare

    files.check_drawings("heads.html")
    if (files.plot or files.page) and (is_code(a) or is_code(b)):
        flag = "--plot" if files.plot else "--page"
        raise OptionError(f"{flag} is for two models, and one side is code.")
    always_wide = output.wide and output.format in (Format.JSON, Format.CSV)
    warn_unused([(always_wide, "wide", f"{output.format} has all columns anyway")])
    refuse_in_csv(output.format, {"backward": arguments.backward})
    with shown_progress() as progress, user_streams(), notices_shown():
        options = keywords(arguments, reference, models, execution)
        result = compare(a, b, **options, progress=progress)
    if isinstance(result, Comparison):
        print_result(result, output)
        return EQUAL if result.is_equal else DIFFERENT
    with written_first(
        lambda: draw(result, files.plot, files.page, lambda: ("their heads", ""), force=files.force)
    ):
        print_result(result, output)
    return DIFFERENT if result.changed else EQUAL
