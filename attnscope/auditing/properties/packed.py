"""Packed documents: several texts in one row are what each is alone."""

from __future__ import annotations

from unittest.mock import patch

import torch

from attnscope.auditing.measure.difference import Rows, difference
from attnscope.auditing.models.probe import Probe
from attnscope.auditing.properties.variants import PropertyTest, verdict
from attnscope.auditing.result import NOT_APPLICABLE, Evidence, Property

NAME = "packed"


def packed(probe: Probe, requested: bool) -> Property:
    """Read two texts in one row, with positions that begin again, and each alone."""
    source, why_not = _support(probe)
    if source is None:
        return Property(NAME, NOT_APPLICABLE, why_not, "")
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
        return Property(NAME, NOT_APPLICABLE, why, "")
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
    return verdict(probe, NAME, source, [test], lambda _: "two texts in a row are what each is alone")


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
