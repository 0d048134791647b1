"""`attnscope example`: the formula worked out with small whole numbers, in three forms that agree."""

from __future__ import annotations

from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.options import OUTPUT, VARIANT, Format, Layout
from attnscope.errors import OptionError, SizeError


def example(
    layout: Annotated[
        Layout | None,
        typer.Option(
            "--layout", help="This form alone.", show_default="every form", rich_help_panel=VARIANT
        ),
    ] = None,
    query: Annotated[
        int | None,
        typer.Option(
            "--query",
            help="One query as vectors, counted from 0; alone, unless --layout is given too.",
            show_default="0, beside the other forms",
            rich_help_panel=VARIANT,
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain/--no-explain", help="Say what each step is.", rich_help_panel=OUTPUT),
    ] = True,
    format: options.OutputFormat = Format.TABLE,
) -> int:
    """The formula worked out with small whole numbers: by rows, by columns, and as vectors."""
    from attnscope.cli.output import Output, progress
    from attnscope.cli.textbook import values_of
    from attnscope.cli.worked import EXAMPLE, compare, worked
    from attnscope.process.memory import check_imports

    if format is Format.CSV:
        raise OptionError("csv holds one table, and the example has many.", hint="--format json")
    n = len(EXAMPLE["X"])
    if query is not None and not 0 <= query < n:
        raise SizeError(f"there is no query {query}: n_Q is {n}, so they are 0 to {n - 1}.")
    everything = layout is None and query is None
    forms = ["sdpa"] if everything or layout is Layout.ROWS else []
    forms += ["columns"] if everything or layout is Layout.COLUMNS else []
    forms += ["query"] if everything or query is not None else []

    check_imports()
    with progress("working it out …"):
        traces = {form: worked(form, query or 0, explain) for form in ("sdpa", "columns", "query")}
        compare(traces, query or 0)
    shown = [traces[form] for form in forms]
    Output(format).print_example([(trace, values_of(trace)) for trace in shown])
    return 0 if all(check.ok for trace in shown for check in trace.checks) else 1
