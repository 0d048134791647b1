"""`attnscope example`: the formula worked out with a few numbers, in three forms that agree."""

from __future__ import annotations

from attnscope.base.errors import OptionError
from attnscope.base.options import keywords
from attnscope.cli import options
from attnscope.cli.options import Format, FormatOptions
from attnscope.cli.output import exit_status, print_result, shown_progress
from attnscope.formula.options import ExampleForms, ExampleNumbers, ExampleText

EXAMPLES = {
    "attnscope example": "each matrix of the formula, with its numbers",
    "attnscope example --layout columns": "with each vector as a column",
    'attnscope example --x "[[1,0,0,1],[0,1,1,0]]"': "with embeddings of your own",
    "attnscope example --query 1": "one query: its scores, softmax and weighted sum",
}


@options.expanded
def example(
    numbers: ExampleNumbers, forms: ExampleForms, text: ExampleText, output: FormatOptions
) -> int:
    """Run `attnscope example` and return its exit status."""
    from attnscope.formula.example.worked_example import worked_example

    if output.format is Format.CSV:
        raise OptionError("csv holds one table, and the example has many.", hint="--format json")
    with shown_progress() as progress:
        result = worked_example(**keywords(numbers, forms, text), progress=progress)
    print_result(result, output)
    return max(exit_status(trace.checks) for trace in result.forms.values())
