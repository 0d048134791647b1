"""`attnscope audit`: which positions can influence which."""

from __future__ import annotations

from typing import Annotated

import typer

from attnscope.cli.options import Format, TableOptions, expanded
from attnscope.cli.output import notices_shown, print_json, put, shown_progress, stdout
from attnscope.completion import completion
from attnscope.errors import warn_idle
from attnscope.influence.options import Inputs, Promises, Run
from attnscope.options import keywords
from attnscope.process.streams import user_streams

EXAMPLES = {
    "attnscope audit minilm": "everything that a model of its kind promises",
    'attnscope audit minilm --text "The cat sat on the mat."': "the same on a text of yours",
    "attnscope audit ./my-minilm --bidirectional --padding": "what it should be, by options",
    "attnscope audit mine.py:MHA --init d_model=64 --init h=8 --bidirectional": (
        "your code: --causal names the line of a leak"
    ),
}

HOLDS, BROKEN = 0, 1


@expanded
def audit(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A model; or file.py:Class, file.py:function or package.module:Class.",
            autocompletion=completion("targets"),
        ),
    ],
    promises: Promises,
    inputs: Inputs,
    run: Run,
    output: TableOptions,
) -> int:
    """Run `attnscope audit` and return its exit status."""
    from attnscope import audit
    from attnscope.render.records import records
    from attnscope.render.terminal.audit import print_audit

    always_wide = output.wide and output.format in (Format.JSON, Format.CSV)
    warn_idle([(always_wide, "--wide", f"{output.format} has all columns anyway")])
    options = keywords(promises) | keywords(inputs) | keywords(run)
    with shown_progress() as progress, user_streams(), notices_shown():
        result = audit(target, **options, progress=progress)
    if output.format is Format.JSON:
        print_json(result.to_dict())
    elif output.format is Format.CSV:
        put(records.csv_text(result))
    elif output.format is Format.MARKDOWN:
        put(records.markdown_text(result, wide=output.wide))
    else:
        print_audit(result, stdout(), wide=output.wide)
    return BROKEN if result.broken or result.undecided else HOLDS
