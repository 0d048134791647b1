"""`attnscope audit`: which positions can influence which."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli.options import FigureOptions, Format, TableOptions, expanded
from attnscope.cli.output import draw, notices_shown, put, shown_progress, stdout, written_first
from attnscope.completion import completion
from attnscope.errors import warn_idle
from attnscope.influence.options import Inputs, Promises, Run
from attnscope.options import keywords, option
from attnscope.process.streams import user_streams
from attnscope.results.audit import Audit
from attnscope.text import encodable_json

EXAMPLES = {
    "attnscope audit minilm": "everything that a model of its kind promises",
    'attnscope audit minilm --text "The cat sat on the mat."': "the same on a text of yours",
    "attnscope audit ./my-minilm --bidirectional --padding": "what it should be, by options",
    "attnscope audit mine.py:MHA --init d_model=64 --init h=8 --bidirectional": (
        "your code: --causal names the line of a leak"
    ),
}

HOLDS, BROKEN = 0, 1


@dataclass(frozen=True)
class AuditFiles(FigureOptions):
    """The files of the result."""

    page: Path | None = option("Write a page: one file.", metavar="FILE.html", common=True)


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
    files: AuditFiles,
    output: TableOptions,
) -> int:
    """Run `attnscope audit` and return its exit status."""
    from attnscope import audit

    files.check_drawings("audit.html")
    always_wide, written = output.wide and output.always_wide, files.plot or files.page
    warn_idle(
        [
            (always_wide, "--wide", f"{output.format} has all columns anyway"),
            (files.force and not written, "--force", "no file is written"),
        ]
    )
    options = keywords(promises) | keywords(inputs) | keywords(run)
    with shown_progress() as progress, user_streams(), notices_shown():
        result = audit(target, **options, progress=progress)
    contents = "the audit", ""
    with written_first(
        lambda: draw(result, files.plot, files.page, lambda: contents, force=files.force)
    ):
        _print(result, output)
    return BROKEN if result.broken or result.undecided else HOLDS


def _print(result: Audit, output: TableOptions) -> None:
    from attnscope.render.records import records

    if output.format is Format.JSON:
        from attnscope.render.records.tables import compact_json

        print(encodable_json(compact_json(result.to_dict()), sys.stdout.encoding))
    elif output.format is Format.CSV:
        put(records.csv_text(result))
    elif output.format is Format.MARKDOWN:
        put(records.markdown_text(result, wide=output.wide))
    else:
        from attnscope.render.terminal.audit import print_audit

        print_audit(result, stdout(), wide=output.wide)
