"""Causal: what follows a position does not change it."""

from __future__ import annotations

from attnscope.influence.measure.batch_norms import batch_norms_of, batch_statistics
from attnscope.influence.measure.moved import Moved, Rows, moved
from attnscope.influence.models.probe import Probe
from attnscope.results.audit import BROKEN, HOLDS, NOT_APPLICABLE, UNDECIDED, Property

NAME = "causal"


def causal(probe: Probe, requested: bool) -> Property:
    """Change all tokens from a position on: nothing before it may move."""
    source = probe.causal_source
    if probe.causal is None:
        return Property(NAME, UNDECIDED, source, "not tested: --causal tests it")
    if not probe.causal:
        return Property(NAME, NOT_APPLICABLE, source, "")
    result = _tested(probe, requested)
    if result.status == HOLDS and batch_norms_of(probe.subject.module):
        norms = [*batch_norms_of(probe.subject.module), *batch_norms_of(probe.subject.exact)]
        with batch_statistics(norms):
            training = _tested(probe.in_training(), requested)
        if training.status == BROKEN:
            return Property(
                NAME, BROKEN, source, f"in training, {training.found}", training.evidence, requested
            )
    return result


def _tested(probe: Probe, requested: bool) -> Property:
    source = probe.causal_source
    largest, doubt = 0.0, ""
    for cut in cuts(probe):
        found = _change_from(probe, cut)
        if found.status == "moved":
            changed = f"tokens from position {cut} on"
            text = f"changing {changed} moves position {found.position}"
            evidence = probe.evidence(found, changed, slice(cut, None))
            return Property(NAME, BROKEN, source, text, evidence, requested)
        if found.status == "undecided":
            doubt = doubt or f"changing tokens from position {cut} on: {found.why}"
        largest = max(largest, found.amount)
    if doubt:
        return Property(NAME, UNDECIDED, source, doubt, requested=requested)
    text = f"changing tokens from {_list(cuts(probe))} on moves none before, {equality(largest)}"
    return Property(NAME, HOLDS, source, text, requested=requested)


def cuts(probe: Probe) -> list[int]:
    """Return the positions from which tokens are changed: some, and those around the edges of chunks."""
    n = probe.n
    if probe.thorough:
        return list(range(1, n))
    found = {1, n // 4, n // 2, n - 1}
    for limit in probe.limits:
        found |= {limit, limit + 1}
    return sorted(each for each in found if 0 < each < n)


def _change_from(probe: Probe, cut: int) -> Moved:
    """Return what moves before a position if the tokens from there on are changed."""
    other = probe.texts.changed(probe.ids, slice(cut, None))

    def runs(exact: bool) -> tuple[Rows, Rows]:
        changed = probe.subject.run(exact=exact, **probe.inputs(other))
        return probe.base(exact).rows(slice(0, cut)), changed.rows(slice(0, cut))

    return moved(runs)


def equality(amount: float) -> str:
    """Return how equal two runs are, in words."""
    return "bit for bit" if amount == 0 else f"up to rounding ({amount:.1g})"


def _list(numbers: list[int]) -> str:
    if len(numbers) > 6:
        return f"each of {len(numbers)} positions"
    return f"position {', '.join(map(str, numbers))}"
