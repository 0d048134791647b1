"""Return what a notebook shows for a result."""

from __future__ import annotations

from functools import cache, singledispatch
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from attnscope.render import audit, comparison, scaling
from attnscope.render.card import (
    cache_line,
    curve_columns,
    dtypes_line,
    fit_lines,
    parameter_check_columns,
    reserve_columns,
    strip,
    weight_columns,
    work_columns,
    work_lines,
)
from attnscope.render.card import check_columns as cache_checks
from attnscope.render.card import columns as card_columns
from attnscope.render.card import heading as card_heading
from attnscope.render.cards import columns as cards_columns
from attnscope.render.cards import heading as cards_heading
from attnscope.render.circuits import circuit_columns
from attnscope.render.columns import check_columns
from attnscope.render.crash import crash_lines
from attnscope.render.heading import heading, summary
from attnscope.render.heads import heads_heading
from attnscope.render.influence import subjects
from attnscope.render.masks import columns as mask_columns
from attnscope.render.masks import heading as masks_heading
from attnscope.render.notebook import heads, influence
from attnscope.render.notebook.example import forms
from attnscope.render.notebook.maps import in_attribute, page_and_note
from attnscope.render.notebook.masks import pictures
from attnscope.render.notebook.pieces import classes, grows, pieces_of, shown_columns
from attnscope.render.notebook.rows import head_rows, trace_rows
from attnscope.render.page.page import model_name
from attnscope.render.terminal.source import annotated, source_lines
from attnscope.results.audit import Audit
from attnscope.results.card import Card
from attnscope.results.cards import Cards
from attnscope.results.comments import CommentReport, SourceDiff
from attnscope.results.comparison import Comparison
from attnscope.results.example import WorkedExample
from attnscope.results.heads import HeadMetrics
from attnscope.results.maps import AttentionMaps
from attnscope.results.masks import AttentionMasks
from attnscope.results.scaling import Scaling
from attnscope.results.trace import ProgramRun, Trace
from attnscope.results.weights import HeadWeights
from attnscope.text import printable, printable_lines
from attnscope.units import counted

if TYPE_CHECKING:
    from jinja2 import Environment


def html(result: Any) -> str:
    """Return a fragment of HTML that shows a result, with its style.

    Everything that comes from data is escaped: by Jinja, as text.
    """
    style = files(__package__).joinpath("notebook.css").read_text(encoding="utf-8")
    return _environment().get_template("output.html.j2").render(style=style, content=content(result))


@singledispatch
def content(result: Any) -> str:
    """Return the HTML of a result without its style."""
    raise TypeError(f"there is no view of {type(result).__name__}")


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
    page, note = page_and_note(maps)
    title = f"{model_name(maps.model)}: attention maps"
    return _rendered("maps", page=in_attribute(page), note=note, title=printable(title))


@content.register
def _(run: ProgramRun) -> str:
    traces = [content(trace) for trace in run.traces]
    return _rendered("program", traces=traces, notes=_printable(run.notes))


@content.register
def _(head: HeadWeights) -> str:
    circuits = circuit_columns(head.circuits, head.d_head) if head.circuits else []
    return _rendered(
        "head",
        heading=_printable(heading(head)),
        rows=head_rows(head),
        circuits=shown_columns(circuits),
        checks=shown_columns(check_columns(head.checks or [])),
    )


@content.register
def _(table: HeadMetrics) -> str:
    stacks, left_out = heads.grids(table)
    ranking, more = heads.ranking(table)
    return _rendered(
        "heads",
        heading=_printable(heads_heading(table)),
        stacks=stacks,
        ranking=ranking,
        order=heads.order(table),
        more=more,
        notices=_printable([*left_out, *table.notices]),
    )


@content.register
def _(result: Scaling) -> str:
    return _rendered(
        "scaling",
        heading=scaling.heading(result),
        columns=shown_columns(scaling.columns(result)),
        bars=[(scaling.SCALED[row.scaled][1], f"{100 * row.largest_weight:.1f}") for row in result.rows],
        legend=scaling.legend(result),
        findings=[printable(finding.message) for finding in result.findings],
    )


@content.register
def _(result: Audit) -> str:
    return _rendered(
        "audit",
        heading=_printable(audit.heading(result)),
        columns=shown_columns(audit.columns(result)),
        subjects=[
            (
                [] if each is None else _printable(list(audit.evidence_lines(each))),
                [] if picture is None else influence.panels_of(picture),
                "" if picture is None else " · ".join(influence.legend(picture)),
            )
            for each, picture in subjects(result)
        ],
        notices=_printable(result.notices),
    )


@content.register
def _(result: Comparison) -> str:
    divergences = [
        _printable([text for _, text in comparison.divergence_lines(result, each)])
        for each in result.divergences or []
    ]
    return _rendered(
        "comparison",
        heading=_printable(comparison.heading(result)),
        columns=shown_columns(comparison.columns(result)),
        divergences=divergences,
        after=comparison.after(result),
        gradients=shown_columns(comparison.gradient_columns(result.gradients or [])),
        weights=shown_columns(comparison.weight_columns(result.weights)) if result.weights else [],
        notices=_printable(result.notices),
    )


@content.register
def _(result: Cards) -> str:
    return _rendered(
        "cards",
        heading=_printable(cards_heading(result)),
        columns=shown_columns(cards_columns(result)),
        notices=_printable(result.notices),
    )


@content.register
def _(result: Card) -> str:
    return _rendered(
        "card",
        heading=_printable(card_heading(result)),
        strip=strip(result),
        columns=shown_columns(card_columns(result)),
        cache=cache_line(result),
        curve=shown_columns(curve_columns(result)) if result.curve else [],
        reserved=shown_columns(reserve_columns(result)) if result.reserved else [],
        weights=shown_columns(weight_columns(result)) if result.weights is not None else [],
        dtypes=dtypes_line(result),
        work=shown_columns(work_columns(result)),
        work_lines=work_lines(result),
        checks=shown_columns(cache_checks(result)) if result.checks else [],
        parameter_checks=shown_columns(parameter_check_columns(result))
        if result.parameter_checks
        else [],
        fit=fit_lines(result),
        notices=_printable([*(each.message for each in result.findings), *result.notices]),
    )


@content.register
def _(result: AttentionMasks) -> str:
    return _rendered(
        "masks",
        heading=_printable(masks_heading(result)),
        columns=shown_columns(mask_columns(result)),
        pictures=pictures(result),
        checks=shown_columns(check_columns(result.checks or [])),
        notices=_printable(result.notices),
    )


@content.register
def _(example: WorkedExample) -> str:
    return _rendered("example", forms=forms(example))


@content.register
def _(report: CommentReport) -> str:
    lies, notices = _printable([lie.message for lie in report.lies]), _printable(report.notices)
    return _rendered("comments", summary=report.summary, lies=lies, notices=notices)


@content.register
def _(change: SourceDiff) -> str:
    colours = {"+": "green", "-": "red", "@": "cyan"}
    lines = [(colours.get(line[:1], ""), line) for line in printable_lines(change.diff).splitlines()]
    title = f"{change.name}: {counted(change.changed_lines, 'changed line')}"
    return _rendered("diff", title=printable(title), lines=lines)


def _rendered(template: str, **values: Any) -> str:
    """Render a template, whose values are escaped."""
    return _environment().get_template(f"{template}.html.j2").render(**values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(str(__package__)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["classes"] = classes
    environment.tests["growing"] = grows
    return environment


def _printable(lines: list[str]) -> list[str]:
    """Escape characters that are invisible, or would change the direction of the text."""
    return [printable(line) for line in lines]
