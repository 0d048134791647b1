"""`attnscope heads`: what every head of a model does, in numbers, over one text or many."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.options import OUTPUT, Format, expanded
from attnscope.cli.output import (
    notices_shown,
    print_json,
    progress,
    put,
    shown_progress,
    stdout,
    tell,
    written_first,
)
from attnscope.errors import warn_idle
from attnscope.models.heads.options import (
    HeadOptions,
    MetricOptions,
    OrderOptions,
    RunOptions,
    TextOptions,
)
from attnscope.options import keywords
from attnscope.process.launch import is_first
from attnscope.results.heads import HeadTable


@expanded
def heads(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="minilm (bundled), a folder, or a hub name such as bert-base-uncased.",
        ),
    ],
    reads: TextOptions,
    metrics: MetricOptions,
    order: OrderOptions,
    selection: HeadOptions,
    run: RunOptions,
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
    """Run `attnscope heads` and return its exit status."""
    from attnscope import measure_heads

    _check_output(plot, page, force=force, format=format, wide=wide)
    with notices_shown(), shown_progress() as show:
        table = measure_heads(
            model,
            **keywords(reads),
            **keywords(metrics),
            **keywords(order),
            **keywords(selection),
            **keywords(run),
            page=page is not None,
            progress=show,
        )
    if is_first():
        with written_first(lambda: _write(table, plot, page, force=force)):
            _print(table, format, wide=wide)
    if table.unsaved is not None:
        raise table.unsaved
    return 130 if table.partial else 0


def _check_output(
    plot: Path | None, page: Path | None, *, force: bool, format: Format, wide: bool
) -> None:
    """Raise an AttnscopeError if a file cannot be written; warn about options without effect."""
    if plot is not None:
        from attnscope.render.figures.save_figure import check_plot

        check_plot(plot, force=force)
    if page is not None:
        from attnscope.render.page.page import check_page

        check_page(page, name="heads.html", force=force)
    warn_idle(
        [
            (wide and format is not Format.TABLE, "--wide", f"{format} has all columns anyway"),
            (force and not (plot or page), "--force", "no file is written"),
        ]
    )


def _print(table: HeadTable, format: Format, *, wide: bool) -> None:
    """Print the table in a format."""
    from attnscope.render.heads import heads_heading
    from attnscope.render.records import records

    if format is Format.JSON:
        print_json(table.to_dict())
    elif format is Format.CSV:
        put(records.csv_text(table))
        for sentence in [*heads_heading(table)[2:], *table.notices]:  # csv has no place for them
            tell(sentence)
    elif format is Format.MARKDOWN:
        put(records.markdown_text(table))
    else:
        from attnscope.render.terminal.heads import print_heads

        print_heads(table, stdout(), wide=wide)


def _write(table: HeadTable, plot: Path | None, page: Path | None, *, force: bool) -> None:
    """Write the plot and the page, and report that."""
    from attnscope.render.files.save import save
    from attnscope.units import bytes_text

    if plot is not None:
        with progress(f"drawing {plot} …"):
            n_bytes = save(table, plot, force=force)
        tell(f"drew {plot}, {bytes_text(n_bytes)}")
    if page is not None:
        with progress(f"writing {page} …"):
            n_bytes = save(table, page, force=force)
        n, size = len(table.rows), bytes_text(n_bytes)
        several, maps = ("a head", "its map") if n == 1 else (f"{n} heads", "their maps")
        if table.why_no_maps is None:
            tell(f"wrote {several} with {maps}, {size}, to {page}")
        else:
            tell(f"wrote {several}, {size}, to {page}; without maps: {table.why_no_maps}")
