"""`attnscope example`: the formula worked out with a few numbers, in three forms that agree."""

from __future__ import annotations

from attnscope.cli import options
from attnscope.cli.options import Format
from attnscope.errors import OptionError
from attnscope.options import keywords
from attnscope.textbook.options import ExampleForms, ExampleNumbers


@options.expanded
def example(
    numbers: ExampleNumbers, forms: ExampleForms, format: options.OutputFormat = Format.TABLE
) -> int:
    """Run `attnscope example` and return its exit status."""
    from attnscope import worked_example
    from attnscope.cli.output import Output, exit_status, shown_progress

    if format is Format.CSV:
        raise OptionError("csv holds one table, and the example has many.", hint="--format json")
    with shown_progress() as progress:
        result = worked_example(**keywords(numbers), **keywords(forms), progress=progress)
    Output(format).print_example(result)
    return max(exit_status(trace.checks) for trace in result.forms.values())
