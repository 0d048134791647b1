"""A card as CSV and Markdown."""

from __future__ import annotations

from attnscope.render import cards as side_by_side
from attnscope.render.card import (
    cache_line,
    check_columns,
    columns,
    curve_columns,
    dtypes_line,
    fit_lines,
    heading,
    parameter_check_columns,
    reserve_columns,
    strip,
    weight_columns,
    work_columns,
    work_lines,
)
from attnscope.render.records.tables import csv_table, markdown, markdown_table
from attnscope.results.card import Card
from attnscope.results.cards import Cards


def csv_text(card: Card | Cards) -> str:
    """Return a line for each kind of layers, or for each of several models, in plain numbers."""
    return csv_table(columns(card) if isinstance(card, Card) else side_by_side.columns(card))


def markdown_text(card: Card | Cards, *, wide: bool = False) -> str:
    """Return the tables of a card, with the strip of layers above; or that of several models."""
    if isinstance(card, Cards):
        table = markdown_table(side_by_side.columns(card), wide)
        return markdown(side_by_side.heading(card), table, *card.notices)
    marks = strip(card)
    parts = ["\n".join(["```", *marks, "```"])] if marks else []
    parts += [markdown_table(columns(card), wide), cache_line(card)]
    if card.curve:
        parts.append(markdown_table(curve_columns(card), wide))
    if card.reserved:
        parts.append(markdown_table(reserve_columns(card), wide))
    if card.weights is not None:
        parts += [markdown_table(weight_columns(card), wide), dtypes_line(card) or ""]
    if card.work is not None:
        parts += [markdown_table(work_columns(card), wide), *work_lines(card)]
    if card.checks:
        parts.append(markdown_table(check_columns(card), wide))
    if card.parameter_checks:
        parts.append(markdown_table(parameter_check_columns(card), wide))
    findings = (f"- {finding.message}" for finding in card.findings)
    return markdown(heading(card), *parts, *fit_lines(card), *findings, *card.notices)
