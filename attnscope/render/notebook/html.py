"""Return what a notebook shows for a result."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Any

from attnscope.document.columns import check_columns
from attnscope.document.html import environment, html_document, with_style
from attnscope.document.pieces import pieces_of, shown_columns
from attnscope.models.maps.result import AttentionMaps
from attnscope.observe.trace import ProgramRun, Trace
from attnscope.render.crash import crash_lines
from attnscope.render.heading import heading, summary
from attnscope.render.notebook.example import forms
from attnscope.render.notebook.rows import trace_rows
from attnscope.render.terminal.source import annotated, source_lines
from attnscope.text import printable
from attnscope.textbook.example.result import WorkedExample

if TYPE_CHECKING:
    pass


def html(result: Any) -> str:
    """Return a fragment of HTML that shows a result, with its style.

    Everything that comes from data is escaped: by Jinja, as text.
    """
    return with_style(content(result))


@singledispatch
def content(result: Any) -> str:
    """Return the HTML of a result without its style."""
    return html_document(result.document())


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
        source=[
            [pieces_of(line) for line in source_lines(function, lines, None)]
            for function, lines in annotated(trace)
        ],
    )


@content.register
def _(maps: AttentionMaps) -> str:
    if maps.steps is not None:
        return content(maps.steps)
    return html_document(maps.document())


@content.register
def _(run: ProgramRun) -> str:
    traces = [content(trace) for trace in run.traces]
    return _rendered("program", traces=traces, notes=_printable(run.notes))


@content.register
def _(example: WorkedExample) -> str:
    return _rendered("example", forms=forms(example))


def _rendered(template: str, **values: Any) -> str:
    """Render a template, whose values are escaped."""
    return environment().get_template(f"{template}.html.j2").render(**values)


def _printable(lines: list[str]) -> list[str]:
    """Escape characters that are invisible, or would change the direction of the text."""
    return [printable(line) for line in lines]
