"""`attnscope audit`: which positions can influence which."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from attnscope.auditing.options import AuditRun, CodeInput, ModelInput, Properties
from attnscope.base.errors import warn_unused
from attnscope.base.options import keywords, option
from attnscope.base.process.streams import user_streams
from attnscope.cli.completion import completion
from attnscope.cli.options import FigureOptions, TableOptions, expanded
from attnscope.cli.output import draw, notices_shown, print_result, shown_progress, written_first

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
    properties: Properties,
    of_model: ModelInput,
    of_code: CodeInput,
    run: AuditRun,
    files: AuditFiles,
    output: TableOptions,
) -> int:
    """Run `attnscope audit` and return its exit status."""
    from attnscope.auditing.audit import audit

    files.check_drawings("audit.html")
    always_wide, written = output.wide and output.always_wide, files.plot or files.page
    warn_unused(
        [
            (always_wide, "wide", f"{output.format} has all columns anyway"),
            (files.force and not written, "force", "no file is written"),
        ]
    )
    options = keywords(properties, of_model, of_code, run)
    with shown_progress() as progress, user_streams(), notices_shown():
        result = audit(target, **options, progress=progress)
    contents = "the audit", ""
    with written_first(
        lambda: draw(result, files.plot, files.page, lambda: contents, force=files.force)
    ):
        print_result(result, output)
    return BROKEN if result.broken or result.undecided else HOLDS
