"""An audit: which properties of attention hold, and for one that does not, where it breaks."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from attnscope.base.errors import no_such_part
from attnscope.base.process.files import cell_of, place_text
from attnscope.base.text import shortened
from attnscope.base.units import few
from attnscope.document.result import Part, Result, of_room

HOLDS, BROKEN, UNDECIDED, NOT_APPLICABLE = "holds", "broken", "undecided", "not applicable"
"""What an audit says of a property."""

MEASURED = "measured"
"""What it says of influence of which nothing says how it should be."""


@dataclass(frozen=True)
class Line:
    """Where in the source a leak begins.

    Attributes:
        file, line: the location.
        expression: the code there, on one line.
    """

    file: str
    line: int
    expression: str

    @property
    def place(self) -> str:
        """The file, without its folder, and the line: `model.py:7`; or the cell of a notebook."""
        return place_text(cell_of(self.file) or os.path.basename(self.file), self.line)


@dataclass(frozen=True, repr=False)
class Influence(Part):
    """How much each position of the input changes each position of the output.

    Attributes:
        of: what was measured, such as `layer 2`.
        measured: `n_Q n_K`, the largest change of an output, divided by the largest output.
        promised: `n_Q n_K`, whether a position should have influence; None if nothing says so.
        received: `n_Q n_K`, the mask that reached attention; None if none was seen.
        tokens: the token at each position; None if the text is random, or there is none.
    """

    of: str
    measured: list[list[float]]
    promised: list[list[bool]] | None = None
    received: list[list[bool]] | None = None
    tokens: list[str] | None = None

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        return f"{self.of}: {len(self.measured)} × {len(self.measured[0])} positions"

    @property
    def wrong(self) -> list[tuple[int, int]]:
        """The pairs `(query, key)` with influence that they should not have."""
        return self._pairs(lambda amount, visible: amount > 0 and not visible)

    @property
    def missing(self) -> list[tuple[int, int]]:
        """The pairs `(query, key)` without the influence that they should have."""
        return self._pairs(lambda amount, visible: amount == 0 and visible)

    def _pairs(self, differ: Callable[[float, bool], bool]) -> list[tuple[int, int]]:
        """Collect the pairs for which what is measured and what is promised differ."""
        if self.promised is None:
            return []
        return [
            (query, key)
            for query, (amounts, visible) in enumerate(zip(self.measured, self.promised, strict=True))
            for key in range(len(amounts))
            if differ(amounts[key], visible[key])
        ]


@dataclass(frozen=True, repr=False)
class Evidence(Part):
    """The measurement that shows that a property is broken.

    Attributes:
        changed: what was changed, such as `tokens from position 5 on`.
        position: the position of an output that changed and should not have.
        amount: how far it changed, divided by the largest output there.
        rounding: how far rounding alone changes it, likewise; 0 if it should be equal bit for bit.
        layer: the index of the first layer whose output changed; None if it is not in a layer.
        path: the name of that module in the model; empty for code.
        line: the line in the source whose correction removes it.
        influence: the influence of positions on positions there.
        no_line: why the line is not known, if there is a reason that helps.
        cause: what the correction of the line shows.
    """

    changed: str
    position: int
    amount: float
    rounding: float
    layer: int | None = None
    path: str = ""
    line: Line | None = None
    influence: Influence | None = None
    no_line: str = ""
    cause: str = ""

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        return f"position {self.position} moves by {self.amount:.2g}"


@dataclass(frozen=True, repr=False)
class Property(Part):
    """What an audit says of one property.

    Attributes:
        name: such as `causal`.
        status: `holds`, `broken`, `undecided`, `not applicable`; or `measured`, no verdict.
        source: what says that the property should hold, or why it need not.
        found: what was measured, in a sentence.
        evidence: the measurement, if it is broken.
        requested: whether an option asks for it.
    """

    name: str
    status: str
    source: str
    found: str
    evidence: Evidence | None = None
    requested: bool = False

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        return f"{self.name}: {self.status}"


@dataclass(repr=False)
class Audit(Result):
    """Which properties of attention hold in a model, or in code.

    Attributes:
        name: the model or the code.
        kind: its class or function.
        dtype: the dtype that it ran in.
        n_tokens: how many positions the input had.
        n_forward: how many times the model ran on so many positions; parts count as parts,
            and the rows of a batch once.
        properties: in the order of the table.
        tokens: the tokens of the input, if it is a text.
        notices: further sentences for the reader.
        influences: what was measured in the code, or in each kind of layer, whatever was promised.
        outputs: the outputs that the verdict is about, if code returns several.
        left_out: what else code returns, and why it is not audited.
    """

    schema = "audit"

    name: str
    kind: str
    dtype: str
    n_tokens: int
    n_forward: float
    properties: list[Property]
    tokens: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    influences: list[Influence] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def page(self) -> str:
        """Return a page that explains each picture under the pointer."""
        return of_room(Audit, "page")(self)

    @property
    def verdict(self) -> str:
        """What is broken, or else how many properties hold, or what was measured, in words."""
        measured = [each.found for each in self.properties if each.status == MEASURED]
        if measured and not self.broken:
            return measured[0]
        if self.broken:
            return f"{', '.join(each.name for each in self.broken)} broken"
        held = sum(each.status == HOLDS for each in self.properties)
        doubt = sum(each.status == UNDECIDED for each in self.properties)
        held_text = "1 property holds" if held == 1 else f"{held} properties hold"
        held_text += f" in {few(self.outputs)}" if self.outputs else ""
        return held_text + (f", {doubt} undecided" if doubt else "")

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        return f"{shortened(self.name)}: {self.verdict}"

    def __getitem__(self, name: str) -> Property:
        """Return a property by its name."""
        for each in self.properties:
            if each.name == name:
                return each
        raise no_such_part(name, [each.name for each in self.properties], "this audit")

    @property
    def broken(self) -> list[Property]:
        """The properties that do not hold."""
        return [each for each in self.properties if each.status == BROKEN]

    @property
    def undecided(self) -> list[Property]:
        """Those that could not be decided and that an option asks for, or all if none was decided."""
        none_decided = not any(each.status in (HOLDS, BROKEN) for each in self.properties)
        return [
            each
            for each in self.properties
            if each.status == UNDECIDED and (each.requested or none_decided)
        ]

    def to_json(self) -> str:
        """Return the JSON document, with each row of influence on one line."""
        from attnscope.document.json import compact_json

        return compact_json(self.to_dict())
