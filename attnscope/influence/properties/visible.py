"""Window, coverage and bidirectional: which keys attention gives weight to, layer by layer.

The model's own kernels are asked: see `attnscope.models.masks.measured`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from attnscope.influence.models.probe import Probe, Seen
from attnscope.influence.models.subject import OUTPUT
from attnscope.results.audit import (
    BROKEN,
    HOLDS,
    NOT_APPLICABLE,
    UNDECIDED,
    Evidence,
    Influence,
    Property,
)


def window(probe: Probe, requested: bool) -> Property:
    """Look for keys with weight outside of the window or chunk, and for missing ones inside."""
    name = "window"
    if not probe.limits:
        return Property(name, NOT_APPLICABLE, "no layer has a window or chunks", "")
    limited = [each for each in probe.seen if each.promise is not None and each.promise.limit]
    if not limited:
        return _by_influence(probe, name, requested)
    source = "; ".join(dict.fromkeys(each.promise.source for each in limited if each.promise))
    short = [each for each in limited if each.promise and (each.promise.limit or 0) >= probe.n]
    for each in limited:
        assert each.promise is not None
        outside = (
            each.visible & ~each.promise.visible(probe.n) & each.promise.without_limit().visible(probe.n)
        )
        if bool(outside.any()):
            return _wrong(probe, name, source, each, outside, "sees", "outside of its window", requested)
        if each not in short and (missing := _missing(each)) is not None:
            return _wrong(
                probe, name, source, each, missing, "does not see", "inside its window", requested
            )
    if short:
        limit = max(each.promise.limit or 0 for each in short if each.promise)
        why = f"{probe.n} tokens do not reach the edge of {limit}: --length {limit + 2}"
        return Property(name, UNDECIDED, source, why, requested=requested)
    text = f"{_layers(limited)}: the keys with weight are exactly those inside"
    return Property(name, HOLDS, source, text, requested=requested)


def coverage(probe: Probe, requested: bool) -> Property:
    """Look for keys that should have weight, and have none in any head and text."""
    name = "coverage"
    known = [each for each in probe.seen if each.promise is not None]
    if probe.causal is None:
        return Property(name, UNDECIDED, probe.causal_source, "not tested", requested=requested)
    if not known:
        return _by_influence(probe, name, requested)
    source = "every visible key should have weight"
    for each in known:
        if (missing := _missing(each)) is not None:
            if probe.selects(each):
                why = f"layer {each.layer} selects keys by their content"
                return Property(name, UNDECIDED, source, why, requested=requested)
            return _wrong(
                probe, name, source, each, missing, "does not see", "although it should", requested
            )
    text = f"{_layers(known)}: each query gives weight to every key that it should see"
    return Property(name, HOLDS, source, text, requested=requested)


def bidirectional(probe: Probe, requested: bool) -> Property:
    """Look for queries that give no weight to later, or to earlier, keys."""
    name = "bidirectional"
    if probe.causal is None or probe.causal:
        why = probe.causal_source
        status = NOT_APPLICABLE if probe.causal else UNDECIDED
        return Property(name, status, why, "", requested=requested)
    if not probe.seen:
        return _by_influence(probe, name, requested)
    n = probe.n
    later = torch.ones(n, n, dtype=torch.bool).triu(1)
    for each in probe.seen:
        for side, where in (("later", later), ("earlier", later.T)):
            if not bool((each.visible & where).any()):
                return _wrong(
                    probe,
                    name,
                    probe.causal_source,
                    each,
                    where,
                    "does not see",
                    f"as all {side} keys",
                    requested,
                )
    text = f"{_layers(probe.seen)}: queries give weight to earlier and to later keys"
    return Property(name, HOLDS, probe.causal_source, text, requested=requested)


def influences(probe: Probe) -> list[Influence]:
    """Return which keys have weight, once for all layers in which they are the same."""
    groups: list[list[Seen]] = []
    for each in probe.seen:
        same = (group for group in groups if _equal(group[0], each))
        group = next(same, None)
        if group is None:
            groups.append([each])
        else:
            group.append(each)
    return [group[0].influence(_layers(group), probe.tokens) for group in groups]


def _equal(one: Seen, other: Seen) -> bool:
    """Return whether two modules see the same keys, and received the same mask."""
    return torch.equal(one.visible, other.visible) and torch.equal(one.received, other.received)


def _missing(seen: Seen) -> torch.Tensor | None:
    """Return the pairs that should be visible and are not; None if there are none."""
    assert seen.promise is not None
    missing = seen.promise.visible(len(seen.visible)) & ~seen.visible
    return missing if bool(missing.any()) else None


def _wrong(
    probe: Probe,
    name: str,
    source: str,
    seen: Seen,
    wrong: torch.Tensor,
    verb: str,
    why: str,
    requested: bool,
) -> Property:
    """Return that a property is broken, with the pair that is farthest from the diagonal."""
    pairs = wrong.nonzero().tolist()
    query, key = max(pairs, key=lambda pair: (pair[0] - pair[1] if verb == "sees" else 0, -pair[0]))
    promised = None if seen.promise is None else seen.promise.visible(probe.n)
    influence = seen.influence(f"layer {seen.layer}", probe.tokens, promised)
    text = f"query {query} {verb} key {key} in layer {seen.layer}, {why}; {len(pairs)} such pairs"
    evidence = Evidence("nothing", query, 0.0, 0.0, seen.layer, seen.path, None, influence)
    return Property(name, BROKEN, source, text, evidence, requested)


def _by_influence(probe: Probe, name: str, requested: bool) -> Property:
    """Decide by the model's outputs: changing a token moves all positions that it should."""
    kind = type(probe.subject.module).__name__
    source = f"{kind} does not call attention through transformers' registry: outputs were compared"
    n = probe.n
    if name == "window" or any(each is None or (each.limit or n) < n for each in probe.promises):
        return Property(name, UNDECIDED, source, "which layer sees what is unknown", requested=requested)
    for position in (0, n // 2, n - 1):
        moves = torch.zeros(n, dtype=torch.bool)
        for _ in range(2):
            other = probe.texts.changed(probe.ids, position)
            runs = [probe.base(True), probe.subject.run(exact=True, **probe.inputs(other))]
            before, after = (run.rows()[OUTPUT] for run in runs)
            moves |= (before != after).any(-1).cpu()
            if bool(moves[position if probe.causal else 0 :].all()):
                break
        else:
            others = [each for each in range(position if probe.causal else 0, n) if each != position]
            still = [each for each in others if not moves[each]]
            text = f"changing token {position} does not move position {still[0]}"
            if still != others:
                text += ": it is hidden, or its influence vanishes"
                return Property(name, UNDECIDED, source, text, requested=requested)
            evidence = Evidence(f"token {position}", still[0], 0.0, 0.0)
            return Property(name, BROKEN, source, f"{text}, nor any other", evidence, requested)
    text = f"changing token 0, {n // 2} or {n - 1} moves every position that it should"
    return Property(name, HOLDS, source, text, requested=requested)


def _layers(seen: Iterable[Seen]) -> str:
    """Return the indices of layers in a few words."""
    indices = sorted({each.layer for each in seen})
    if len(indices) > 2 and indices == list(range(indices[0], indices[-1] + 1)):
        return f"layers {indices[0]}–{indices[-1]}"
    return f"layer{'s' * (len(indices) > 1)} {', '.join(map(str, indices))}"
