"""Cards of several models, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscope.document.result import Result
from attnscope.model_card.result import Card
from attnscope.text import shortened
from attnscope.units import counted, few

if TYPE_CHECKING:
    from attnscope.document.blocks import Block


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
                f"weights are not counted: {names} (--verify counts those of transformers' models)"
            )
        return found

    def document(self) -> list[Block]:
        """Return what is shown of the cards, as blocks."""
        from attnscope.model_card.cards_document import document

        return document(self)
