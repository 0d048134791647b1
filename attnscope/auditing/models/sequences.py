"""Batch, packed and padding: what stands beside a text changes nothing in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch

from attnscope.auditing.measure.difference import Rows, RunDifference, difference, equality
from attnscope.auditing.models.probe import LayerMask, Probe, PropertyTest, verdict
from attnscope.auditing.models.subject import ModelRun
from attnscope.auditing.result import (
    BROKEN,
    HOLDS,
    NOT_APPLICABLE,
    UNDECIDED,
    Evidence,
    Influence,
    Property,
)


def batch(probe: Probe) -> Property:
    """Exchange the other sequence of a batch of two, and their order."""
    text = probe.ids[:, : probe.n // 2]
    first, second = (probe.texts.drawn(text.shape[1]) for _ in range(2))
    pairs = {"the other sequence": ((text, second), 0), "the order of sequences": ((first, text), 1)}

    def variants() -> Iterator[PropertyTest]:
        for changed, (pair, row) in pairs.items():
            found = _compared(probe, (text, first), pair, row)
            moves = f"exchanging {changed} moves position {found.position}"
            yield PropertyTest("", found, changed, moves)
            if found.status == "undecided":
                return

    equal = "exchanging the other sequence, or their order, moves nothing"
    return verdict(probe, "batch", "every model", variants(), lambda _: equal, needs_all=True)


def _compared(
    probe: Probe,
    before: tuple[torch.Tensor, torch.Tensor],
    after: tuple[torch.Tensor, torch.Tensor],
    row: int,
) -> RunDifference:
    """Compare the first sequence of a batch with itself in another row of the other batch."""

    def runs(exact: bool) -> tuple[Rows, Rows]:
        one = probe.once(
            ("batch", exact),
            lambda: probe.subject.run(exact=exact, **probe.inputs(torch.cat(before))),
        )
        other = probe.subject.run(exact=exact, **probe.inputs(torch.cat(after)))
        return one.rows(), other.rows(row=row)

    return difference(runs)


def packed(probe: Probe, requested: bool) -> Property:
    """Read two texts in one row, with positions that begin again, and each alone."""
    source, why_not = _support(probe)
    if source is None:
        return Property("packed", NOT_APPLICABLE, why_not, "")
    cut = probe.n // 2 + 1
    lengths = (cut, probe.n - cut)
    positions = torch.cat([probe.positions(0, length) for length in lengths], 1)

    def runs(exact: bool) -> tuple[Rows, Rows]:
        parts = [probe.ids[:, :cut], probe.ids[:, cut:]]
        alone = [
            probe.subject.run(
                exact=exact,
                **probe.inputs(part, position_ids=probe.positions(0, part.shape[1])),
            ).rows()
            for part in parts
        ]
        both = {stage: torch.cat([each[stage] for each in alone]) for stage in alone[0]}
        row = probe.subject.run(exact=exact, **probe.inputs(position_ids=positions)).rows()
        return {stage: both[stage] for stage in row}, row

    found = difference(runs)
    if found.status == "different" and not requested and not _uses_positions(probe):
        why = "its mask does not depend on position_ids: texts in a row attend to each other"
        return Property("packed", NOT_APPLICABLE, why, "")
    which = "the first" if found.position < cut else "the second"
    text = f"{which} of two texts in a row differs from the same text alone"

    def weights(evidence: Evidence) -> Evidence:
        return probe.with_weights(
            evidence,
            probe.inputs(position_ids=positions),
            f"with two texts, the second from position {cut} on",
            lambda mask: torch.block_diag(*(mask.expected_keys(length) for length in lengths)).bool(),
        )

    test = PropertyTest("", found, "the other text in the row", text, weights=weights)
    return verdict(
        probe, "packed", source, [test], lambda _: "two texts in a row are what each is alone"
    )


def _uses_positions(probe: Probe) -> bool:
    """Check whether the model passes its positions on to where transformers looks for packed texts."""
    from transformers import masking_utils

    search = masking_utils.find_packed_sequence_indices
    with patch.object(masking_utils, "find_packed_sequence_indices", side_effect=search) as spy:
        probe.subject.run(**probe.inputs(position_ids=probe.positions(0, probe.n)))
    return bool(spy.called)


def _support(probe: Probe) -> tuple[str | None, str]:
    """Find what says that a model supports packed texts; or None, and why not."""
    import sys

    subject = probe.subject
    if probe.source is not None or not probe.causal:
        return None, "positions that begin again mean a new text in causal models only"
    if not subject.takes("position_ids"):
        return None, "its forward takes no position_ids"
    model = subject.module.base_model
    names = vars(sys.modules[type(model).__module__])
    if "create_causal_mask" not in names:
        return None, f"{type(model).__name__} does not build its mask with create_causal_mask"
    kinds = getattr(subject.config.get_text_config(), "layer_types", None) or []
    others = sorted({kind for kind in kinds if "attention" not in kind or "linear" in kind})
    if others or any("mamba" in type(each).__name__.lower() for each in model.modules()):
        return None, f"its {' and '.join(others) or 'Mamba'} layers carry a state from text to text"
    return "create_causal_mask: positions that begin again mean a new text", ""


N_PAD = 5
"""The number of padding tokens, at least."""


def padding(probe: Probe) -> Property:
    """Change what the padding contains, which moves nothing; and compare with the text alone."""
    if not probe.subject.takes("attention_mask"):
        return Property("padding", NOT_APPLICABLE, "its forward has no attention_mask", "")
    sides, source = ["right"], "encoders are padded on the right"
    if probe.causal and probe.source is None:
        sides, source = ["left", "right"], "generation pads on the left, training on the right"
    amounts = []
    for side in sides:
        found = _alone(probe, side)
        if found.status == "different":
            return _broken(probe, side, found, source)
        if found.status == "undecided":
            why = f"padding on the {side}: {found.why}"
            return Property("padding", UNDECIDED, source, why)
        amounts.append(found.amount)
    text = f"{' and '.join(sides)}: real tokens are those without padding, {equality(max(amounts))}"
    return Property("padding", HOLDS, source, text)


def _broken(probe: Probe, side: str, found: RunDifference, source: str) -> Property:
    """Explain why padding moves real tokens: by what it contains, by the mask, or by the positions."""
    words = probe.texts.drawn(N_PAD)
    by_content = difference(
        lambda exact: (_padded(probe, side, None, exact), _padded(probe, side, words, exact))
    )
    changed = f"padding on the {side}"
    if by_content.status == "different":
        found, changed = by_content, f"what the padding on the {side} contains"
    evidence = _with_weights(probe, side, probe.evidence(found, changed))
    text = f"{changed} moves real token {found.position}"
    if by_content.is_equal:
        text += f", and what it contains does not: {_reason(probe, side, evidence)}"
    return Property("padding", BROKEN, source, text, evidence)


def _reason(probe: Probe, side: str, evidence: Evidence) -> str:
    """Return in words why padding moves real tokens, although what it contains does not."""
    inputs, real = _inputs(probe, side, None)
    influence = evidence.influence
    if influence is not None and influence.missing:
        query, key = (position - real.start for position in influence.missing[0])
        return f"{_culprit(influence, False)} hides real token {key} from real token {query}"
    if influence is not None:
        query, key = influence.wrong[0]
        return f"{_culprit(influence, True)} shows real token {query - real.start} padding at {key}"
    if not probe.subject.takes("position_ids"):
        return "the forward takes no position_ids, so that positions may be counted from the padding"
    other = inputs | {"position_ids": inputs["position_ids"].flip(-1)}
    first, second = (probe.subject.run(**each).rows(real) for each in (inputs, other))
    if all(torch.equal(first[stage], second[stage]) for stage in first):
        return "the positions are counted from the padding, and position_ids ignored"
    return "neither the keys that get weight nor ignored position_ids are the reason"


def _culprit(influence: Influence, visible: bool) -> str:
    """Name what shows all wrong pairs, or hides the missing ones: the mask or the kernel."""
    pairs = influence.wrong if visible else influence.missing
    mask = influence.received
    is_mask = mask is not None and all(mask[query][key] == visible for query, key in pairs)
    return "the mask" if is_mask else "the kernel"


def _with_weights(probe: Probe, side: str, evidence: Evidence) -> Evidence:
    """Add which keys have weight if a text is padded: real tokens should see real tokens only."""
    if probe.source is not None:  # the padding is in the encoder
        return evidence
    inputs, real = _inputs(probe, side, None)

    def expected(mask: LayerMask) -> torch.Tensor:
        keys = mask.visible.clone()  # of padding, nothing is expected
        keys[real] = False
        keys[real, real] = mask.expected_keys(real.stop - real.start)
        return keys

    padding = "up to position" if side == "left" else "from position"
    edge = real.start - 1 if side == "left" else real.stop
    return probe.with_weights(evidence, inputs, f"with padding {padding} {edge}", expected)


def _alone(probe: Probe, side: str) -> RunDifference:
    """Compare a padded text with the same alone."""

    def runs(exact: bool) -> tuple[Rows, Rows]:
        padded = _padded(probe, side, None, exact)
        alone = _padded(probe, "", None, exact)
        return {stage: alone[stage] for stage in padded}, padded

    return difference(runs)


def _padded(probe: Probe, side: str, pad: torch.Tensor | None, exact: bool) -> dict[str, torch.Tensor]:
    """Return the outputs of the real tokens of a short text, by stage.

    It is padded on a side in a batch with a longer text, or alone without a side; `pad` None: with the
    padding token.
    """

    def run() -> ModelRun:
        return probe.subject.run(exact=exact, **inputs)

    inputs, real = _inputs(probe, side, pad)
    rows = slice(None) if probe.source is not None else real
    return (probe.once(("padding", side, exact), run) if pad is None else run()).rows(rows)


def _inputs(probe: Probe, side: str, pad: torch.Tensor | None) -> tuple[dict[str, Any], slice]:
    """Return the arguments of the model for a text padded as for `_padded`, and where the text is."""
    text = (probe.ids if probe.source is None else probe.source)[:, : probe.n // 2]
    n, n_pad = text.shape[1], N_PAD if side else 0
    padding = torch.full((1, n_pad), probe.texts.pad) if pad is None else pad
    ids = torch.cat([padding, text] if side == "left" else [text, padding], 1)
    start = n_pad if side == "left" else 0
    mask = torch.zeros_like(ids)
    mask[:, start : start + n] = 1
    if side:
        longer = torch.cat([text, text[:, :1].expand(1, n_pad)], 1)
        ids, mask = torch.cat([ids, longer]), torch.cat([mask, torch.ones_like(longer)])
    real = slice(start, start + n)
    if probe.source is not None:
        inputs = probe.inputs(probe.ids.expand(len(ids), -1), attention_mask=mask)
        return inputs | {"input_ids": ids}, real
    inputs = probe.inputs(ids, attention_mask=mask)
    if probe.subject.takes("position_ids"):  # as `generate` passes them
        first = int(probe.positions(0, 1))
        inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0) + first
    return inputs, real
