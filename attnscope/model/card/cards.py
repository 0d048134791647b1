"""Cards of several models, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnscope.base.spelling import spelled
from attnscope.base.text import shortened
from attnscope.base.units import MISSING, bytes_text, count_text, counted, few, flops_text, seconds_text
from attnscope.document.blocks import Block, Heading, Notices, Table
from attnscope.document.columns import Column
from attnscope.document.result import Result
from attnscope.document.styles import CYAN
from attnscope.model.card.result import Card


@dataclass(repr=False)
class Cards(Result):
    """Cards of several models, for the same context.

    Attributes:
        names: of the models.
        cards: of each model.
        context: the length of each sequence, in tokens.
        batch: the number of sequences.
    """

    schema = "cards"

    names: list[str]
    cards: list[Card]
    context: int
    batch: int

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        return f"{few([shortened(name) for name in self.names])} at {counted(self.context, 'token')}"

    @property
    def differs(self) -> bool:
        """Whether a formula of any model differs from what transformers has."""
        return any(card.differs for card in self.cards)

    @property
    def notices(self) -> list[str]:
        """Further sentences for the reader, each with the names of its models."""
        pairs = [*zip(self.names, self.cards, strict=True)]
        uncounted = [name for name, card in pairs if card.uncounted]
        found = [
            f"{name}: {notice}"
            for name, card in pairs
            for notice in card.notices
            if notice != card.uncounted
        ]
        if uncounted:
            names = ", ".join(uncounted)
            found.append(
                f"weights are not counted: {names} ({spelled('verify')} counts those of"
                " transformers' models)"
            )
        return found

    def document(self) -> list[Block]:
        """Build the blocks that are shown: a table with a row for each model, and a figure."""
        from attnscope.model.card.figure import plot

        sequences = f"{counted(self.batch, 'sequence')} of {counted(self.context, 'token')}"
        return [
            Heading(counted(len(self.cards), "model"), [sequences]),
            Table(_columns(self), second=OF_WORK),
            Notices(self.notices),
            plot(self),
        ]


OF_WORK = frozenset({"prefill_attention", "prefill_rest", "token_attention", "token_rest", "seconds"})
"""The keys of the columns about what is computed, not kept."""


def _columns(cards: Cards) -> list[Column]:
    each = cards.cards

    def words(title: str, key: str, texts: list[str], style: str = "", **more: Any) -> Column:
        return Column(title, key, [[(text, style)] for text in texts], list(texts), **more)

    def numbers(title: str, key: str, values: list[int | None], text: Callable[[int], str]) -> Column:
        cells = [[(MISSING if value is None else text(value), "")] for value in values]
        shown = cells if any(value is not None for value in values) else []
        return Column(title, key, shown, list(values), right=True)

    works, fits = [card.work for card in each], [card.fit for card in each]
    layers = []  # such as `28 sliding, 7 full`
    for card in each:
        kinds: Counter[str] = Counter()
        for kind in card.kinds:
            kinds[kind.kind] += len(kind.layers)
        layers.append(", ".join(f"{count} {kind}" for kind, count in kinds.items()))
    tokens = [work.token if work else None for work in works]
    times = [work.seconds if work else None for work in works]
    return [
        words("model", "name", cards.names, CYAN, essential=True, flexible=True),
        words("layers", "layers", layers, flexible=True),
        numbers("needed", "cache_bytes", [card.cache_bytes for card in each], bytes_text),
        numbers("a token", "bytes_per_token", [card.bytes_per_token for card in each], bytes_text),
        words("in", "cache_dtype", [card.cache_dtype for card in each]),
        numbers("parameters", "n_parameter",
                [card.weights.n_parameter if card.weights else None for card in each], _count),
        numbers("weights", "weights_bytes",
                [card.weights.n_bytes if card.weights else None for card in each], bytes_text),
        numbers("attention, prefill", "prefill_attention",
                [work.prefill.attention if work else None for work in works], flops_text),
        numbers("rest, prefill", "prefill_rest", [work.prefill.rest if work else None for work in works],
                flops_text),
        numbers("attention, token", "token_attention",
                [token.attention if token else None for token in tokens], flops_text),
        numbers("rest, token", "token_rest",
                [token.rest if token else None for token in tokens], flops_text),
        Column("time, token", "seconds",
               [[(MISSING if value is None else seconds_text(value), "")] for value in times]
               if any(times) else [], list(times), right=True),
        numbers("longest context", "longest_context", [fit.context if fit else None for fit in fits],
                lambda count: counted(count, "token")),
        numbers("largest batch", "largest_batch", [fit.batch if fit else None for fit in fits],
                lambda count: counted(count, "sequence")),
    ]  # fmt: skip


def _count(count: int) -> str:
    return count_text(count) or "0"
