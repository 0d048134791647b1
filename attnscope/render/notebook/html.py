"""Return what a notebook shows for a result."""

from __future__ import annotations

import io
from functools import cache, singledispatch
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from attnscope.render.columns import check_columns
from attnscope.render.crash import crash_lines
from attnscope.render.heading import heading, summary
from attnscope.render.notebook.pieces import pieces_of, shown_columns
from attnscope.render.notebook.rows import trace_rows
from attnscope.render.terminal.console import Terminal
from attnscope.render.terminal.result import print_result
from attnscope.results.trace import Trace
from attnscope.text import printable

if TYPE_CHECKING:
    from jinja2 import Environment

WIDTH = 100  # characters of what is shown as text


def html(result: Any) -> str:
    """Return a fragment of HTML that shows a result, with its style.

    Everything that comes from data is escaped: by Jinja, as text.
    """
    style = files(__package__).joinpath("notebook.css").read_text(encoding="utf-8")
    return _environment().get_template("output.html.j2").render(style=style, content=content(result))


@singledispatch
def content(result: Any) -> str:
    """Return the HTML of a result without its style."""
    console = Terminal(file=io.StringIO(), width=WIDTH, color_system=None)
    with console.capture() as captured:
        print_result(result, console)
    return _rendered("text", text=captured.get())


@content.register
def _(trace: Trace) -> str:
    return _rendered(
        "trace",
        heading=_printable(heading(trace)),
        rows=trace_rows(trace),
        summary=summary(trace),
        crash=[pieces_of(line) for line in crash_lines(trace.crash)] if trace.crash else [],
        checks=shown_columns(check_columns(trace.checks or [])),
        notices=_printable(trace.notices),
    )


def _rendered(template: str, **values: Any) -> str:
    """Render a template, whose values are escaped."""
    return _environment().get_template(f"{template}.html.j2").render(**values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader(str(__package__)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _printable(lines: list[str]) -> list[str]:
    """Escape characters that are invisible, or would change the direction of the text."""
    return [printable(line) for line in lines]
