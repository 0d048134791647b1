"""A result on one line, as Python's prompt and error messages show it."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from attnscope.render.audit import verdict as verdict_of_audit
from attnscope.render.columns import largest
from attnscope.render.comparison import number as difference_text
from attnscope.render.comparison import verdict
from attnscope.render.heading import named
from attnscope.render.heads import facts
from attnscope.render.masks import layers_text, pattern_text, percent, sizes_text
from attnscope.render.ranking import MISSING
from attnscope.render.text import number_text, shape_text
from attnscope.results.audit import Audit, Evidence, Influence, Property
from attnscope.results.card import CacheCheck, Card, CurvePoint, Fit, LayerKind, ParameterCheck, Reserve
from attnscope.results.cards import Cards
from attnscope.results.comments import CommentReport, SourceDiff
from attnscope.results.common import Check, Finding, Part, Stats
from attnscope.results.comparison import ComparedGradient, ComparedTensor, Comparison
from attnscope.results.differences import HeadDifferences, MapDifferences, WeightChange
from attnscope.results.example import WorkedExample
from attnscope.results.heads import HeadRow, HeadTable
from attnscope.results.maps import AttentionMap, AttentionMaps
from attnscope.results.masks import AttentionMask, AttentionMasks
from attnscope.results.scaling import Scaling, ScalingRow
from attnscope.results.trace import Crash, ProgramRun, Step, Trace
from attnscope.results.weights import Circuit, HeadWeights, WeightSlice
from attnscope.results.weights_count import PartCount, WeightsCount
from attnscope.results.work import Flops, Work
from attnscope.text import printable, shortened
from attnscope.units import bytes_text, count_text, counted, flops_text

LONGEST_PATTERN = 60

FEW = 4
"""The most items that a line lists by name."""


def one_line(result: Part) -> str:
    """Return the class of a result and, in parentheses, what it is: `Trace(sdpa: 6 tensors, …)`."""
    return f"{type(result).__name__}({printable(about(result))})"


@singledispatch
def about(result: Any) -> str:
    """Describe a result on one line, without its class."""
    raise TypeError(f"there is no description of {type(result).__name__}")


@about.register
def _(trace: Trace) -> str:
    parts = [counted(len(trace.steps), "tensor"), _largest(trace)]
    parts += [] if trace.device else ["dry run"]
    parts += ["tracing failed"] if trace.tracing_error else []
    parts += [] if trace.findings is None or trace.crash else [_count(trace.findings)]
    parts += [_crash(trace.crash)] if trace.crash else []
    parts += _verdict(trace.checks)
    return f"{shortened(trace.title)}: {_listed(parts)}"


def _crash(crash: Crash) -> str:
    return f"failed in line {crash.line}: {shortened(crash.disagreement or crash.error)}"


def _count(findings: list[Finding]) -> str:
    return counted(len(findings), "finding") if findings else "no findings"


def _largest(trace: Trace) -> str:
    """Name the largest tensors and their size."""
    steps = largest(trace)
    if not steps:
        return ""
    name = f"{shortened(steps[0].name)} " if len(steps) == 1 else ""
    return f"largest {name}{bytes_text(steps[0].bytes)}"


@about.register
def _(step: Step) -> str:
    name = shortened(step.name)
    if step.members is not None:
        return f"{name}: {counted(len(step.members), 'tensor')}"
    shape = [" ".join(step.dims or ()), shape_text(step.shape)]
    parts = [" = ".join(filter(None, shape)), step.dtype, bytes_text(step.bytes)]
    parts += [f"view of {shortened(step.view_of)}"] if step.view_of else []
    parts += [f"same tensor as {shortened(step.same_as)}"] if step.same_as else []
    parts += [] if step.line is None else [f"line {step.line}"]
    return f"{name}: {_listed(parts)}"


@about.register
def _(stats: Stats) -> str:
    numbers = {name: getattr(stats, name) for name in ("min", "mean", "max", "std")}
    parts = [f"{name} {number_text(number)}" for name, number in numbers.items()]
    parts += [f"{stats.nan} NaN"] if stats.nan else []
    parts += [f"{stats.inf} inf"] if stats.inf else []
    return _listed(parts)


@about.register
def _(check: Check) -> str:
    verdict = {True: "holds", False: "FAILS", None: "undecided"}[check.ok]
    size = check.max_abs_diff
    parts = [verdict, "" if size is None else f"largest difference {size:.2g}"]
    parts += [] if check.tolerance is None else [f"tolerance {check.tolerance:.2g}"]
    return f"{check.name}: {_listed([*parts, shortened(check.note)])}"


def _verdict(checks: list[Check] | None) -> list[str]:
    """Say how many checks hold, if any were made."""
    if not checks:
        return []
    held = sum(check.ok is True for check in checks)
    return [f"{held} of {counted(len(checks), 'check')} hold" + ("s" if len(checks) == 1 else "")]


@about.register
def _(run: ProgramRun) -> str:
    return (
        f"{shortened(run.target)}: {len(run.traces)} of {counted(run.calls, 'call')} traced,"
        f" exit status {run.status}"
    )


@about.register
def _(audit: Audit) -> str:
    return f"{shortened(audit.name)}: {verdict_of_audit(audit)}"


@about.register
def _(each: Property) -> str:
    return f"{each.name}: {each.status}"


@about.register
def _(evidence: Evidence) -> str:
    return f"position {evidence.position} moves by {evidence.amount:.2g}"


@about.register
def _(influence: Influence) -> str:
    return f"{influence.of}: {len(influence.measured)} × {len(influence.measured[0])} positions"


@about.register
def _(comparison: Comparison) -> str:
    return f"{shortened(comparison.a)} and {shortened(comparison.b)}: {verdict(comparison)}"


@about.register
def _(tensor: ComparedTensor) -> str:
    return f"{tensor.role}: {tensor.status}, largest difference {difference_text(tensor.largest)}"


@about.register
def _(gradient: ComparedGradient) -> str:
    return f"{gradient.a}: {gradient.status}, largest difference {difference_text(gradient.largest)}"


@about.register
def _(card: Card) -> str:
    sizes = f"{bytes_text(card.cache_bytes)} of keys and values at {counted(card.context, 'token')}"
    return f"{shortened(card.name)}: {counted(card.n_layer, 'layer')}, {sizes}"


@about.register
def _(cards: Cards) -> str:
    return f"{_few([shortened(name) for name in cards.names])} at {counted(cards.context, 'token')}"


@about.register
def _(kind: LayerKind) -> str:
    return f"{counted(len(kind.layers), 'layer')}, {kind.kind}, {bytes_text(kind.cache_bytes)}"


@about.register
def _(reserve: Reserve) -> str:
    return f"{reserve.engine}: {bytes_text(reserve.n_bytes)}"


@about.register
def _(point: CurvePoint) -> str:
    return f"{counted(point.n_tokens, 'token')}: {bytes_text(point.n_bytes)}"


@about.register
def _(check: CacheCheck) -> str:
    verdict = "equal" if check.ok else f"{check.formula:,} is not {check.held:,}"
    return f"{check.kind}, {counted(check.n_tokens, 'token')}: {verdict}"


@about.register
def _(check: ParameterCheck) -> str:
    verdict = "equal" if check.ok else f"{check.formula:,} is not {check.built:,}"
    return f"parameters of {check.part}: {verdict}"


@about.register
def _(fit: Fit) -> str:
    return f"{bytes_text(fit.memory)}: context {fit.context}, batch {fit.batch}"


@about.register
def _(masks: AttentionMasks) -> str:
    each = masks.masks
    what = about(each[0]) if len(each) == 1 else counted(len(each), "mask")
    return f"{shortened(masks.title)}: {_listed([what, *_verdict(masks.checks)])}"


@about.register
def _(mask: AttentionMask) -> str:
    layers = f"{layers_text(mask)}: " if mask.layers is not None else ""
    share = percent(mask.n_visible / mask.n_pairs)
    pattern = shortened(pattern_text(mask), LONGEST_PATTERN)
    return f"{layers}{pattern}, {sizes_text(mask)}, {share} visible"


@about.register
def _(head: HeadWeights) -> str:
    names = _few([each.name for each in head.weights])
    place = f"layer {head.layer}, head {head.head}"
    widths = f"d_feat {head.d_feat}, d_head {head.d_head}"
    parts = [place, names, widths, *_verdict(head.checks)]
    return f"{shortened(named(head.model, head.stack))}: {_listed(parts)}"


@about.register
def _(weight: WeightSlice) -> str:
    of_head, whole = shape_text(weight.head_shape), shape_text(weight.shape)
    parts = [" ".join(weight.dims), of_head if weight.axis is None else f"{of_head} of {whole}"]
    return f"{weight.name}: {_listed([*parts, weight.stored_as])}"


@about.register
def _(circuit: Circuit) -> str:
    rank = f"effective rank {circuit.effective_rank:.1f} of {len(circuit.singular_values)}"
    return f"{circuit.name}: {rank}, norm {number_text(circuit.norm)}"


@about.register
def _(map: AttentionMap) -> str:
    rows, columns = map.attention.shape
    pooled = ", pooled" if map.mean is not None else ""
    return f"layer {map.layer}, head {map.head}: {rows} × {columns} weights{pooled}"


@about.register
def _(maps: AttentionMaps) -> str:
    n_Q, n_K = len(maps.query_tokens), len(maps.key_tokens)
    queries = f"{n_Q:,} {'query' if n_Q == 1 else 'queries'} × {counted(n_K, 'key')}"
    pooling = maps.pooling
    cells = "" if pooling is None else f"pooled to {len(pooling.queries)} × {len(pooling.keys)}"
    name = shortened(named(maps.model, maps.stack))
    return f"{name}: {_listed([_heads(maps), queries, cells, *_verdict(maps.checks)])}"


def _heads(maps: AttentionMaps) -> str:
    """Name the head, or count the heads."""
    one = maps.one
    return counted(len(maps.maps), "head") if one is None else f"layer {one.layer}, head {one.head}"


@about.register
def _(row: HeadRow) -> str:
    stack = "" if row.stack == "self" else f"{row.stack} "
    values = [
        f"{name} {MISSING if value is None else number_text(value)}"
        for name, value in row.values.items()
    ]
    return f"{stack}layer {row.layer}, head {row.head}: {_few(values)}"


@about.register
def _(table: HeadTable) -> str:
    parts = [counted(len(table.rows), "head"), counted(len(table.metrics), "metric")]
    parts += [counted(table.sequences, "sequence"), counted(table.tokens, "token")]
    parts += ["partial"] if table.partial else []
    return f"{shortened(table.model)}: {_listed(parts)}"


@about.register
def _(table: HeadDifferences) -> str:
    return f"{shortened(table.title)}: {_listed(facts(table))}"


@about.register
def _(table: MapDifferences) -> str:
    return f"{shortened(table.title)}: {_listed(facts(table))}"


@about.register
def _(change: WeightChange) -> str:
    return f"query {change.query}, key {change.key}: {change.a:.3f} → {change.b:.3f}"


@about.register
def _(scaling: Scaling) -> str:
    widths = dict.fromkeys(str(row.d_K) for row in scaling.rows)
    draw = "" if scaling.draw == "normal" else f"{scaling.draw}, "
    return (
        f"d_K {_few(list(widths))}: with and without 1/√d_K, {draw}{scaling.dtype}, seed {scaling.seed}"
    )


@about.register
def _(row: ScalingRow) -> str:
    numbers = [f"variance {row.text('variance')}", f"entropy {row.text('entropy')}"]
    numbers += [f"largest weight {row.text('largest_weight')}"]
    return f"d_K {row.d_K}, {'with' if row.scaled else 'without'} 1/√d_K: {_listed(numbers)}"


@about.register
def _(example: WorkedExample) -> str:
    checks = [check for trace in example.forms.values() for check in trace.checks or []]
    return _listed([*example.forms, *_verdict(checks)])


@about.register
def _(report: CommentReport) -> str:
    return report.summary


@about.register
def _(change: SourceDiff) -> str:
    return f"{shortened(change.name)}: {counted(change.changed_lines, 'changed line')}"


@about.register
def _(count: WeightsCount) -> str:
    attention = f"{count_text(count.n_attention) or 0} of attention"
    stored = bytes_text(count.n_bytes) if count.n_bytes is not None else ""
    return _listed([f"{count_text(count.n_parameter) or 0} parameters", attention, stored])


@about.register
def _(part: PartCount) -> str:
    stored = bytes_text(part.n_bytes) if part.n_bytes is not None else ""
    amount = f"{count_text(part.n_parameter) or 0} parameters"
    return f"{shortened(part.name)}: {_listed([amount, stored])}"


@about.register
def _(flops: Flops) -> str:
    parts = {"attention": flops.attention, "rest": flops.rest}
    return _listed([f"{name} {flops_text(n)}" for name, n in parts.items() if n is not None])


@about.register
def _(work: Work) -> str:
    token = f"one token {about(work.token)}" if work.token else ""
    moved = f"{bytes_text(work.bytes_moved)} moved" if work.bytes_moved is not None else ""
    return _listed([f"prefill {about(work.prefill)}", token, moved])


def _listed(parts: list[str]) -> str:
    return ", ".join(filter(None, parts))


def _few(names: list[str]) -> str:
    """List names; of many, the first and the number of the others."""
    if len(names) <= FEW + 1:
        return ", ".join(names)
    return f"{', '.join(names[:FEW])} and {len(names) - FEW} more"
