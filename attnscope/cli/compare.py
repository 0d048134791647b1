"""`attnscope compare`: two attentions on the same input."""

from __future__ import annotations

from typing import Annotated

import typer

from attnscope.cli.options import Format, TableOptions, expanded
from attnscope.cli.output import print_json, put, shown_progress, stdout, tell
from attnscope.comparison.options import Arguments, Execution
from attnscope.completion import completion
from attnscope.errors import warn_idle
from attnscope.options import keywords
from attnscope.process.streams import user_streams
from attnscope.results.comparison import Comparison

EXAMPLES = {
    "attnscope compare mine.py:attention sdpa": "your function with softmax(Q·Kᵀ/√d_K)·V",
    "attnscope compare mine.py:Attention mha --init d_model=64": (
        "your class with multi-head attention of its weights"
    ),
    "attnscope compare old.py:Attention new.py:Attention --init d_model=64": "before and after a change",
}

EQUAL, DIFFERENT = 0, 1


@expanded
def compare(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="file.py:Class, file.py:function or package.module:Class.",
            autocompletion=completion("targets"),
        ),
    ],
    b: Annotated[
        str,
        typer.Argument(
            metavar="B",
            help="What to compare it with: sdpa, mha, or other code.",
            autocompletion=completion("targets"),
        ),
    ],
    arguments: Arguments,
    execution: Execution,
    output: TableOptions,
) -> int:
    """Run `attnscope compare` and return its exit status."""
    from attnscope import compare

    always_wide = output.wide and output.format in (Format.JSON, Format.CSV)
    warn_idle([(always_wide, "--wide", f"{output.format} has all columns anyway")])
    with shown_progress() as progress, user_streams():
        result = compare(a, b, **keywords(arguments), **keywords(execution), progress=progress)
    _print(result, output)
    return EQUAL if result.is_equal else DIFFERENT


def _print(result: Comparison, output: TableOptions) -> None:
    from attnscope.render.records import records

    if output.format is Format.JSON:
        print_json(result.to_dict())
    elif output.format is Format.CSV:
        put(records.csv_text(result))
        for notice in result.notices:
            tell(notice)
    elif output.format is Format.MARKDOWN:
        put(records.markdown_text(result, wide=output.wide))
    else:
        from attnscope.render.terminal.comparison import print_comparison

        print_comparison(result, stdout(), wide=output.wide)
