"""A property that is tested in several ways, such as with each kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from attnscope.auditing.measure.difference import RunDifference, equality
from attnscope.auditing.models.probe import Probe
from attnscope.auditing.result import BROKEN, HOLDS, UNDECIDED, Evidence, Property


@dataclass(frozen=True)
class PropertyTest:
    """One way to test a property."""

    name: str  #: such as the name of a kernel
    found: RunDifference
    changed: str  #: what was changed, in words
    difference: str  #: the sentence if something moved
    cause: slice | None = None  #: the positions that were changed, which must not move others
    #: adds to the evidence which keys have weight then; None: nothing is added
    weights: Callable[[Evidence], Evidence] | None = None


def verdict(
    probe: Probe,
    name: str,
    source: str,
    variants: Iterable[PropertyTest],
    agreement: Callable[[list[str]], str],
    *,
    needs_all: bool = False,
) -> Property:
    """Judge that a property is broken if it is in one way, and holds if it does in one, or in all.

    Each variant is computed when the one before it has not moved; `agreement` returns the sentence if
    nothing moved, for the names of those that could be decided.
    """
    done, left_out, amounts = [], [], []
    for each in variants:
        if each.found.status == "different":
            evidence = probe.evidence(each.found, each.changed, each.cause)
            if each.weights is not None:
                evidence = each.weights(evidence)
            return Property(name, BROKEN, source, each.difference, evidence)
        if each.found.status == "undecided":
            left_out.append(": ".join(filter(None, [each.name, each.found.why])))
        else:
            done.append(each.name)
            amounts.append(each.found.amount)
    if needs_all and left_out:
        return Property(name, UNDECIDED, source, left_out[0])
    if not done:
        return Property(name, UNDECIDED, source, "; ".join(left_out))
    text = f"{agreement(done)}, {equality(max(amounts))}"
    if left_out:
        text += f"; undecided: {'; '.join(left_out)}"
    return Property(name, HOLDS, source, text)
