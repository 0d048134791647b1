"""Cards of several models, side by side."""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.results.card import Card
from attnscope.results.common import Result


@dataclass(repr=False)
class Cards(Result):
    """Cards of several models, for the same context.

    Attributes:
        names: of the models.
        cards: of each model.
        context: the length of each sequence, in tokens.
        batch: the number of sequences.
    """

    names: list[str]
    cards: list[Card]
    context: int
    batch: int

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
