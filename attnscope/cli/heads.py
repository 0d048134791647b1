"""`attnscope heads`: what every head of a model does, in numbers, over one text or many."""

from __future__ import annotations

from attnscope.base.errors import warn_unused
from attnscope.base.options import keywords
from attnscope.base.process.launch import is_first
from attnscope.cli.options import FigureOptions, Format, ModelName, TableOptions, expanded
from attnscope.cli.output import notices_shown, print_heads, shown_progress
from attnscope.model.heads.options import MeasuredHeads, MeasurementRun, TextOptions

EXAMPLES = {
    'attnscope heads minilm --text "The cat sat."': "what every head attends to in a text",
    'attnscope heads minilm --text "The cat sat." --sort previous --top 5': "the strongest heads",
    "attnscope heads minilm --corpus texts.txt": "means over many texts, a line each",
    "attnscope heads gpt2 --needle needles.jsonl": "which heads copy from a text into the answer",
    'attnscope heads minilm --text "The cat sat." --page heads.html': "a page to explore",
}


@expanded
def heads(
    model: ModelName,
    reads: TextOptions,
    measured: MeasuredHeads,
    run: MeasurementRun,
    files: FigureOptions,
    output: TableOptions,
) -> int:
    """Run `attnscope heads` and return its exit status."""
    from attnscope.model.heads.measure_heads import measure_heads

    _check_output(files, output)
    with notices_shown(), shown_progress() as show:
        options = keywords(reads, measured, run)
        table = measure_heads(model, **options, page=files.page is not None, progress=show)
    if is_first():
        print_heads(table, files, output)
    if table.unsaved is not None:
        raise table.unsaved
    return 130 if table.partial else 0


def _check_output(files: FigureOptions, output: TableOptions) -> None:
    """Raise an AttnscopeError if a file cannot be written; warn about options without effect."""
    files.check_drawings("heads.html")
    format = output.format
    warn_unused(
        [
            (output.wide and format is not Format.TABLE, "wide", f"{format} has all columns anyway"),
            (files.force and not (files.plot or files.page), "force", "no file is written"),
        ]
    )
