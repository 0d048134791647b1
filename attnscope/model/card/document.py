"""The document of a card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attnscope.base.spelling import spelled
from attnscope.base.units import (
    MISSING,
    bytes_text,
    count_text,
    counted,
    flops_text,
    numbers_text,
    percent,
    seconds_text,
)
from attnscope.document.blocks import Block, Findings, Heading, Notices, Sentence, Strip, Table
from attnscope.document.columns import Column
from attnscope.document.styles import CYAN, GOOD, WRONG
from attnscope.model.card.figure import plot
from attnscope.model.card.result import BY_OPTION, Card, LayerKind, PartCount, WeightsCount, Work

MARKS = {
    "full": "█",
    "sliding": "▒",
    "chunked": "▚",
    "latent": "▓",
    "sparse": "▞",
    "linear": "─",
    "state space": "~",
    "convolution": "∿",
    "compressed": "▪",
    "compressed sparse": "▫",
    "shared": "·",
    "none": " ",
}
"""The mark of each kind of layer in the strip."""


def document(card: Card) -> list[Block]:
    """Return the strip of layers, their anatomy, the cache, the weights, the work, and what fits."""
    blocks: list[Block] = [_heading(card)]
    if (marks := _strip(card)) is not None:
        blocks.append(marks)
    blocks += [Table(_columns(card)), Sentence(_cache_sentence(card), "bold", apart=True)]
    if (line := _draft_sentence(card)) is not None:
        blocks.append(Sentence(line))
    blocks += [Table(_curve_columns(card)), Table(_reserve_columns(card))]
    if card.unreserved:
        missing = "; ".join(f"{engine}: {why}" for engine, why in card.unreserved.items())
        blocks.append(Sentence(f"no row for {missing}", "dim", joint="; "))
    if card.weights is not None:
        blocks += [Table(_weight_columns(card.weights)), Sentence(_dtypes_sentence(card.weights), "dim")]
    if card.work is not None:
        blocks += [Table(_work_columns(card, card.work))]
        blocks += [Sentence(line, "dim") for line in _work_sentences(card.work)]
    blocks += [Table(_check_columns(card)), Table(_parameter_check_columns(card))]
    blocks += [Sentence(line, apart=i == 0) for i, line in enumerate(_fit_sentences(card))]
    return [*blocks, Findings(card.findings), Notices(card.notices), plot(card)]


def _heading(card: Card) -> Heading:
    parts = [card.model_type, card.source]
    if card.longest is not None:
        parts.append(f"made for {counted(card.longest, 'token')}")
    if card.dtype is not None:
        parts.append(card.dtype)
    sizes = f"{counted(card.n_layer, 'layer')}, d_feat {card.d_feat:,}"
    return Heading(f"{card.name}: {sizes}", [" · ".join(parts)])


def _strip(card: Card) -> Strip | None:
    """Return a mark for each layer, in model order, and what the marks mean; None if all are alike."""
    own = [each for each in card.kinds if each.kind != "cross"]
    names = list(dict.fromkeys(each.kind for each in own))
    if len(names) < 2:
        return None
    marks = {name: MARKS.get(name, MARKS.get(name.split(" + ")[0], "?")) for name in names}
    if len(set(marks.values())) < len(marks):
        marks = {name: chr(ord("A") + i) for i, name in enumerate(names)}
    cells = {index: marks[each.kind] for each in own for index in each.layers}
    legend = ", ".join(f"{mark} {name}" for name, mark in marks.items())
    return Strip("".join(cells[index] for index in range(card.n_layer)), legend)


def _column(
    title: str, key: str, rows: Sequence[Any], text: Callable[[Any], str] = str, **more: Any
) -> Column:
    """Return a column of one attribute of the rows, whose name is the key."""
    values = [getattr(each, key) for each in rows]
    style = CYAN if key == "kind" else ""
    cells = [[(MISSING if value is None else text(value), style)] for value in values]
    return Column(title, key, cells, values, **more)


def _text_column(title: str, key: str, texts: Sequence[str], raw: Sequence[Any], **more: Any) -> Column:
    """Return a column whose texts are given, since they do not follow from the values alone."""
    return Column(title, key, [[(text, "")] for text in texts], list(raw), **more)


_with_commas = "{:,}".format


def _columns(card: Card) -> list[Column]:
    """Return a row for each kind of layers."""
    kinds = card.kinds
    layers = [numbers_text(each.layers) for each in kinds]
    plain = [text.replace("–", "-").replace(" ", "") for text in layers]
    extras = [", ".join(each.extras) or MISSING for each in kinds]
    found = [
        _text_column("layers", "layers", layers, plain, essential=True, flexible=True),
        Column("n_layer", "n_layer", [], [len(each.layers) for each in kinds]),
        _column("kind", "kind", kinds),
        _column("a token", "bytes_per_token", kinds, bytes_text, right=True),
        _column("needed", "cache_bytes", kinds, bytes_text, right=True),
        *(
            _column(name, name, kinds, _with_commas, right=True)
            for name in ("n_head", "n_kv_head", "d_K", "d_V", "window")
        ),
        _text_column("rope", "rope_theta", list(map(_rope, kinds)), [each.rope_theta for each in kinds]),
        Column("rope_scaling", "rope_scaling", [], [each.rope_scaling for each in kinds]),
        _text_column(
            "also", "extras", extras, ["; ".join(each.extras) for each in kinds], flexible=True
        ),
    ]
    empty = {"n_head", "n_kv_head", "d_K", "d_V", "window", "rope_theta", "extras"}
    for each in found:
        if each.key in empty and set(each.texts()) == {MISSING}:
            each.cells = []  # for programs alone
    return found


def _rope(kind: LayerKind) -> str:
    if kind.rope_theta is None:
        return MISSING
    scaling = f", {kind.rope_scaling}" if kind.rope_scaling else ""
    return f"{kind.rope_theta:,.10g}{scaling}"


def _cache_sentence(card: Card) -> str:
    """Write the sentence about what keys and values need."""
    if not card.bytes_per_token and not card.cache_bytes:
        return "it keeps no keys and values for later tokens"
    source = f", {counted(card.n_source, 'token')} of the encoder" if card.n_source else ""
    where = f"{counted(card.batch, 'sequence')} of {counted(card.context, 'token')}{source}"
    known = ("config.json", "assumed", BY_OPTION)  # by the heading, by a notice, by the user
    dtype_from = (
        "" if card.cache_dtype_from in known else f" ({card.cache_dtype_from}; {spelled('dtype')})"
    )
    if card.n_device > 1:
        where += f", on each of {card.n_device} devices"
    return (
        f"keys and values in {card.cache_dtype}{dtype_from}: {bytes_text(card.bytes_per_token)} a token,"
        f" {bytes_text(card.cache_bytes)} needed for {where}"
    )


def _draft_sentence(card: Card) -> str | None:
    """Write the sentence about what draft layers take beside the rest; None: there are none."""
    draft = card.draft
    if draft is None:
        return None
    kind = "" if draft.kind is None else f"{draft.kind} "
    parts = [f"draft: {counted(draft.n_layer, kind + 'layer')} ({draft.field})"]
    if draft.bytes_per_token is None or draft.cache_bytes is None:
        parts.append("whose keys and values are not known here")
    else:
        cache = f"{bytes_text(draft.bytes_per_token)} a token, {bytes_text(draft.cache_bytes)} more"
        parts.append(f"{cache} where an engine drafts")
    if draft.n_parameter is not None:
        n_bytes = "" if draft.n_bytes is None else f" in {bytes_text(draft.n_bytes)}"
        parts.append(f"{count_text(draft.n_parameter)} parameters{n_bytes}")
    elif card.weights is not None:
        parts.append("parameters not counted")
    return ", ".join(parts)


BAR = 32
"""The width of the longest bar of the curve."""


def _curve_columns(card: Card) -> list[Column]:
    """Return a row for each length: what the keys and values need, with a bar."""
    points = card.curve
    largest = max((each.n_bytes for each in points), default=0)
    bars = ["█" * max(1, round(BAR * each.n_bytes / largest)) if each.n_bytes else "" for each in points]
    return [
        _column("tokens", "n_tokens", points, _with_commas, right=True, essential=True),
        _column("needed", "n_bytes", points, bytes_text, right=True),
        Column("", "bar", [[(bar, CYAN)] for bar in bars], []),
    ]


def _reserve_columns(card: Card) -> list[Column]:
    """Return a row for each engine."""
    rows = card.reserved
    return [
        _column("engine", "engine", rows, essential=True),
        _column("reserves", "n_bytes", rows, bytes_text, right=True),
        _column("rule", "rule", rows, flexible=True),
    ]


def _weight_columns(weights: WeightsCount) -> list[Column]:
    """Return a row for each part of the weights."""
    parts = [*weights.attention, *weights.rest, PartCount("all", weights.n_parameter, weights.n_bytes)]
    names = [f"attention {each.name}" for each in weights.attention]
    names += [*(f"rest {each.name}" for each in weights.rest), "all"]
    return [
        _text_column("weights", "part", names, names, essential=True),
        _column("parameters", "n_parameter", parts, lambda n: count_text(n) or "0", right=True),
        _column("stored", "n_bytes", parts, bytes_text, right=True),
    ]


def _dtypes_sentence(weights: WeightsCount) -> str:
    """Write the sentence about how the weights are stored."""
    stored = [each for each in weights.dtypes if each.n_parameter]
    if weights.source == "headers":
        return f"stored as {stored[0].name}" if len(stored) == 1 else f"stored: {_shares(weights)}"
    in_transformers = weights.source == "transformers"
    by = "in transformers' model of this config.json" if in_transformers else "by config.json"
    if weights.n_bytes is None:
        return f"counted {by}, which does not say how they are stored"
    if len(weights.dtypes) == 1:
        return f"counted {by}, in {weights.dtypes[0].name}"
    return f"counted {by}; stored: {_shares(weights)}"


def _shares(weights: WeightsCount) -> str:
    """List the shares of the parameters that are stored in each way."""
    total = max(weights.n_parameter, 1)
    stored = [each for each in weights.dtypes if each.n_parameter]
    return ", ".join(f"{percent(each.n_parameter / total)} as {each.name}" for each in stored)


def _work_columns(card: Card, work: Work) -> list[Column]:
    """Return a row for the FLOPs of the prefill and of one more token."""
    each = "of each sequence" if card.batch > 1 else ""
    rows = [(f"prefill of {counted(card.context, 'token')} {each}", work.prefill)]
    if work.token is not None:
        rows.append((f"one more token {each}", work.token))
    names = [name.strip() for name, _ in rows]

    flops = [each for _, each in rows]
    return [
        _text_column("FLOPs", "step", names, names, essential=True),
        _column("attention", "attention", flops, flops_text, right=True),
        _column("rest", "rest", flops, flops_text, right=True),
    ]


def _work_sentences(work: Work) -> list[str]:
    """Write the sentences about what dominates, what is moved, and how large attention maps are."""
    lines = []
    if work.dominates_from is not None:
        length = counted(work.dominates_from, "token")
        lines.append(f"for one more token, attention takes more than the rest from {length} on")
    if work.bytes_moved is not None:
        moved = f"one more token moves {bytes_text(work.bytes_moved)}"
        if work.intensity is not None:
            moved += f", {work.intensity:.3g} FLOP a byte"
        if work.limit is not None and work.seconds is not None:
            moved += f", bound by {work.limit}: at least {seconds_text(work.seconds)}"
        lines.append(moved)
    if work.maps_bytes is not None and work.block_bytes is not None:
        rows = "1 query" if work.block == 1 else f"{work.block} queries"
        block = f"{bytes_text(work.block_bytes)} for {rows} of a layer"
        lines.append(f"attention maps: {bytes_text(work.maps_bytes)} whole, {block}")
    return lines


def _check_columns(card: Card) -> list[Column]:
    """Return a row for each comparison with transformers' own cache; empty: there is none."""
    rows = card.checks or []
    if not rows:
        return []
    return [
        _column(f"in a small model, {rows[0].dtype}", "kind", rows, essential=True),
        _column("tokens", "n_tokens", rows, _with_commas, right=True),
        _column("formula", "formula", rows, "{:,} B".format, right=True),
        _column("transformers' cache", "held", rows, "{:,} B".format, right=True),
        _verdicts([each.ok for each in rows]),
    ]


def _parameter_check_columns(card: Card) -> list[Column]:
    """Return a row for each comparison with transformers' parameters; empty: there is none."""
    rows = card.parameter_checks or []
    if not rows:
        return []
    return [
        _column("parameters of", "part", rows, essential=True),
        _column("by config.json", "formula", rows, _with_commas, right=True),
        _column("transformers' model", "built", rows, _with_commas, right=True),
        _verdicts([each.ok for each in rows]),
    ]


def _verdicts(equal: Sequence[bool]) -> Column:
    cells = [("✓ equal", GOOD) if each else ("✗ different", WRONG) for each in equal]
    return Column("", "ok", [[cell] for cell in cells], list(equal))


def _fit_sentences(card: Card) -> list[str]:
    """Write the sentences about what fits into the memory."""
    fit = card.fit
    if fit is None:
        return []
    free = fit.memory - fit.weights
    sizes = f"{bytes_text(fit.memory)}, of which the weights take {bytes_text(fit.weights)}"
    if fit.cache_only:
        sizes = f"{bytes_text(fit.memory)} of keys and values"
    if free < 0:
        return [f"in {sizes}: the weights do not fit"]
    if fit.context == 0 and fit.batch == 0:
        return [f"in {sizes}: too little for {counted(card.batch, 'sequence')} of 1 token"]
    longest = "any context" if fit.context is None else f"at most {counted(fit.context, 'token')}"
    sequences = f"at most {counted(fit.batch, 'sequence')}" if fit.batch else "no sequence"
    return [
        f"in {sizes}, fit:",
        f"  {counted(card.batch, 'sequence')} of {longest if fit.context != 0 else 'no length'}",
        f"  {sequences} of {counted(card.context, 'token')}",
    ]
