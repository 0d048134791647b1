"""Window, coverage and bidirectional: which keys attention gives weight to, layer by layer.

What the model's own kernels do is measured: see `attnscope.model.masks.visible`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from attnscope.auditing.models.probe import LayerMask, Probe
from attnscope.auditing.models.subject import OUTPUT
from attnscope.auditing.result import (
    BROKEN,
    HOLDS,
    NOT_APPLICABLE,
    UNDECIDED,
    Evidence,
    Influence,
    Property,
)
from attnscope.base.spelling import spelled


def window(probe: Probe) -> Property:
    """Look for keys with weight outside of the window or chunk, and for missing ones inside."""
    name = "window"
    if not probe.limits and (unread := probe.unread_window):
        return Property(name, UNDECIDED, unread, "its width is unknown")
    if not probe.limits:
        return Property(name, NOT_APPLICABLE, "no layer has a window or chunks", "")
    limited = [(each, mask) for each in probe.layer_masks if (mask := each.expected) and mask.limit]
    if not limited:
        return _by_influence(probe, name)
    source = "; ".join(dict.fromkeys(mask.source for _, mask in limited))
    too_wide = [mask.limit for _, mask in limited if mask.limit and mask.limit >= probe.n]
    for each, mask in limited:
        in_text = mask.without_limit().visible(probe.n)
        outside = each.visible & ~mask.visible(probe.n) & in_text
        if bool(outside.any()):
            return _wrong(probe, name, source, each, outside, "sees", "outside of its window")
        if mask.limit not in too_wide and (missing := _missing(each)) is not None:
            return _wrong(probe, name, source, each, missing, "does not see", "inside its window")
    if too_wide:
        why = (
            f"{probe.n} tokens do not reach the edge of {max(too_wide)}:"
            f" {spelled('length', max(too_wide) + 2)}"
        )
        return Property(name, UNDECIDED, source, why)
    text = f"{_layers(each for each, _ in limited)}: the keys with weight are exactly those inside"
    for each, mask in limited:
        if mask.least is not None:
            distance = _distance(each.visible)
            if distance is None:
                why = f"layer {each.layer}: the keys with weight are not those up to some distance"
                return Property(name, UNDECIDED, source, why)
            if f", up to {distance} away" not in text:
                text += f", up to {distance} away"
    return Property(name, HOLDS, source, text)


def coverage(probe: Probe) -> Property:
    """Look for keys that should have weight, and have none in any head and text."""
    name = "coverage"
    known = [each for each in probe.layer_masks if each.expected is not None]
    if probe.causal is None:
        return Property(name, UNDECIDED, probe.causal_source, "not tested")
    if not known:
        return _by_influence(probe, name)
    source = "every visible key should have weight"
    for each in known:
        if (missing := _missing(each)) is not None:
            if probe.selects(each):
                why = f"layer {each.layer} selects keys by their content"
                return Property(name, UNDECIDED, source, why)
            return _wrong(probe, name, source, each, missing, "does not see", "although it should")
    text = f"{_layers(known)}: each query gives weight to every key that it should see"
    return Property(name, HOLDS, source, text)


def bidirectional(probe: Probe) -> Property:
    """Look for queries that give no weight to later, or to earlier, keys."""
    name = "bidirectional"
    if probe.causal is None or probe.causal:
        why = probe.causal_source
        status = NOT_APPLICABLE if probe.causal else UNDECIDED
        return Property(name, status, why, "")
    if not probe.layer_masks:
        return _by_influence(probe, name)
    n = probe.n
    later = torch.ones(n, n, dtype=torch.bool).triu(1)
    for each in probe.layer_masks:
        for side, where in (("later", later), ("earlier", later.T)):
            if not bool((each.visible & where).any()):
                why = f"as all {side} keys"
                return _wrong(probe, name, probe.causal_source, each, where, "does not see", why)
    text = f"{_layers(probe.layer_masks)}: queries give weight to earlier and to later keys"
    return Property(name, HOLDS, probe.causal_source, text)


def as_stated(probe: Probe, source: str, visible: torch.Tensor) -> Property:
    """Look for keys with weight that are not expected in a layer, and for expected ones without."""
    name = "expect"
    if not probe.layer_masks:
        why = "which layer sees what is unknown: attention is not called through transformers' registry"
        return Property(name, UNDECIDED, source, why)
    for each in probe.layer_masks:
        for wrong, verb, why in (
            (each.visible & ~visible, "sees", "which is not expected"),
            (visible & ~each.visible, "does not see", "which is expected"),
        ):
            if bool(wrong.any()):
                return _wrong(probe, name, source, each, wrong, verb, why, visible)
    text = f"{_layers(probe.layer_masks)}: the keys with weight are exactly those expected"
    return Property(name, HOLDS, source, text)


def influences(probe: Probe) -> list[Influence]:
    """Collect the keys with weight, once for all layers in which they are the same."""
    groups: dict[tuple[bytes, ...], list[LayerMask]] = {}
    for each in probe.layer_masks:
        same = tuple(keys.numpy().tobytes() for keys in (each.visible, each.received))
        groups.setdefault(same, []).append(each)
    return [group[0].influence(_layers(group), probe.tokens) for group in groups.values()]


def _distance(visible: torch.Tensor) -> int | None:
    """Return the distance up to which all keys have weight, and no others, in both directions."""
    n = len(visible)
    apart = (torch.arange(n)[:, None] - torch.arange(n)).abs()
    distance = int(apart[visible].max()) if bool(visible.any()) else 0
    return distance if torch.equal(visible, apart <= distance) else None


def _missing(mask: LayerMask) -> torch.Tensor | None:
    """Return the pairs that should be visible and are not; None if there are none."""
    assert mask.expected is not None
    missing = mask.expected.required.visible(len(mask.visible)) & ~mask.visible
    return missing if bool(missing.any()) else None


def _wrong(
    probe: Probe,
    name: str,
    source: str,
    mask: LayerMask,
    wrong: torch.Tensor,
    verb: str,
    why: str,
    expected: torch.Tensor | None = None,
) -> Property:
    """Judge that a property is broken, and find the pair that is farthest from the diagonal."""
    pairs = wrong.nonzero().tolist()
    query, key = max(pairs, key=lambda pair: (pair[0] - pair[1] if verb == "sees" else 0, -pair[0]))
    if expected is None and mask.expected is not None:
        expected = mask.expected.visible(probe.n)
    influence = mask.influence(f"layer {mask.layer}", probe.tokens, expected)
    text = f"query {query} {verb} key {key} in layer {mask.layer}, {why}; {len(pairs)} such pairs"
    evidence = Evidence("nothing", query, 0.0, 0.0, mask.layer, mask.path, None, influence)
    return Property(name, BROKEN, source, text, evidence)


def _by_influence(probe: Probe, name: str) -> Property:
    """Decide by the model's outputs: changing a token moves all positions that it should."""
    kind = type(probe.subject.module).__name__
    source = f"{kind} does not call attention through transformers' registry: outputs were compared"
    n = probe.n
    if name != "bidirectional" and (unread := probe.unread_window):
        return Property(name, UNDECIDED, unread, "its width is unknown")
    if name == "window" or any(each is None or (each.limit or n) < n for each in probe.expected_masks):
        return Property(name, UNDECIDED, source, "which layer sees what is unknown")
    for position in (0, n // 2, n - 1):
        moves = torch.zeros(n, dtype=torch.bool)
        for _ in range(2):
            other = probe.texts.changed(probe.ids, slice(position, position + 1))
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
                return Property(name, UNDECIDED, source, text)
            evidence = Evidence(f"token {position}", still[0], 0.0, 0.0)
            return Property(name, BROKEN, source, f"{text}, nor any other", evidence)
    text = f"changing token 0, {n // 2} or {n - 1} moves every position that it should"
    return Property(name, HOLDS, source, text)


def _layers(masks: Iterable[LayerMask]) -> str:
    """Return the indices of layers in a few words."""
    indices = sorted({each.layer for each in masks})
    if len(indices) > 2 and indices == list(range(indices[0], indices[-1] + 1)):
        return f"layers {indices[0]}–{indices[-1]}"
    return f"layer{'s' * (len(indices) > 1)} {', '.join(map(str, indices))}"
