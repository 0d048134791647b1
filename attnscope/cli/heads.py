"""`attnscope heads`: what every head of a model does, in numbers, over one text or many."""

from __future__ import annotations

from attnscope.cli.options import FigureOptions, Format, ModelName, TableOptions, expanded
from attnscope.cli.output import (
    draw,
    notices_shown,
    print_notice,
    print_result,
    shown_progress,
    written_first,
)
from attnscope.errors import warn_unused
from attnscope.heads.options import (
    MeasuredHeads,
    MeasurementRun,
    MetricOptions,
    OrderOptions,
    TextOptions,
)
from attnscope.models.heads.result import HeadTable
from attnscope.options import keywords
from attnscope.process.launch import is_first

EXAMPLES = {
    'attnscope heads minilm --text "The cat sat."': "what every head attends to in a text",
    'attnscope heads minilm --text "The cat sat." --sort previous --top 5': "the strongest heads",
    "attnscope heads minilm --corpus texts.txt": "means over many texts, a line each",
    'attnscope heads minilm --text "The cat sat." --page heads.html': "a page to explore",
}


@expanded
def heads(
    model: ModelName,
    reads: TextOptions,
    metrics: MetricOptions,
    order: OrderOptions,
    selection: MeasuredHeads,
    run: MeasurementRun,
    files: FigureOptions,
    output: TableOptions,
) -> int:
    """Run `attnscope heads` and return its exit status."""
    from attnscope.heads.measure_heads import measure_heads

    _check_output(files, output)
    with notices_shown(), shown_progress() as show:
        options = keywords(reads, metrics, order, selection, run)
        table = measure_heads(model, **options, page=files.page is not None, progress=show)
    if is_first():
        with written_first(
            lambda: draw(table, files.plot, files.page, lambda: _contents(table), force=files.force)
        ):
            print_result(table, output)
            for remark in table.remarks if output.format is Format.CSV else []:  # it has no heading
                print_notice(remark)
    if table.unsaved is not None:
        raise table.unsaved
    return 130 if table.partial else 0


def _check_output(files: FigureOptions, output: TableOptions) -> None:
    """Raise an AttnscopeError if a file cannot be written; warn about options without effect."""
    files.check_drawings("heads.html")
    format = output.format
    warn_unused(
        [
            (output.wide and format is not Format.TABLE, "--wide", f"{format} has all columns anyway"),
            (files.force and not (files.plot or files.page), "--force", "no file is written"),
        ]
    )


def _contents(table: HeadTable) -> tuple[str, str]:
    """Describe what the page contains, and explain why it has no maps."""
    n = len(table.rows)
    several, maps = ("a head", "its map") if n == 1 else (f"{n} heads", "their maps")
    if table.why_no_maps is None:
        return f"{several} with {maps}", ""
    return several, f"; without maps: {table.why_no_maps}"
