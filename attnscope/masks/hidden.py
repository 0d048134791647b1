"""Which keys an attention of code hides: those whose scores a mask lowers until no weight is left.

A weight may also be 0 because a score is very low, or small because of a bias. So scores are compared
with what they were before the mask, and keys that are only nearly hidden count as visible.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch

from attnscope.attention.mask_rules import HIDES
from attnscope.base.units import counted, numbers_text
from attnscope.observe.operators.anatomy import Anatomy
from attnscope.observe.operators.chain import MASKS, way_between
from attnscope.observe.operators.follow import followed, values_at
from attnscope.observe.operators.tape import Value

ZEROING = {"mul", "tril", "triu"}
"""Functions that set scores to 0 where code takes them for a mask."""

UNDERFLOW = -80.0
"""A score this far below the largest of its row may get a weight of 0 without a mask."""


class UndecidedError(Exception):
    """It is not known which keys are visible; the message says why."""


@dataclass
class VisibleKeys:
    """Which keys the queries of an attention see."""

    visible: torch.Tensor  #: True where a query sees a key, `lead n_Q n_K`
    #: what else is to be said of it, each part of a sentence
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Steps:
    """The scores of an attention, `lead n_Q n_K`, and what a mask does to them."""

    raw: torch.Tensor  #: the product Q·Kᵀ
    scores: torch.Tensor  #: before the mask, with the scale
    masked: torch.Tensor  #: what the softmax receives
    replaced: torch.Tensor  #: where a mask replaces the score, whatever the score is
    lowered: torch.Tensor  #: where a mask adds one negative number, and nothing elsewhere


def visible_keys(anatomy: Anatomy) -> VisibleKeys:
    """Find which keys the queries of an attention see.

    Raises:
        UndecidedError: the scores are not finite without a mask, or too low to tell, or a tensor on the
            way cannot be followed.
    """
    steps = _steps(anatomy)
    weights = anatomy.roles["attention"].tensor
    if steps.masked.isnan().any() or steps.raw.isnan().any():
        raise UndecidedError("its scores are NaN")
    is_low = steps.masked <= HIDES
    removed = (steps.masked == -torch.inf) & steps.raw.isfinite()
    hidden = removed | (is_low & (steps.raw > HIDES) & (steps.scores > HIDES))
    if (is_low & ~hidden).any():
        lowest = float(steps.raw.min())
        raise UndecidedError(f"its scores are as low as {lowest:.3g} before any mask")
    gap = steps.scores - steps.scores.masked_fill(hidden, -torch.inf).amax(-1, keepdim=True)
    is_zero = (weights == 0) & ~hidden & ~(gap < UNDERFLOW)
    hidden = hidden | (is_zero & (steps.replaced | steps.lowered))
    keyless = hidden.all(-1)
    if (weights.isnan().any(-1) & ~keyless).any():
        raise UndecidedError("its weights are NaN")
    keys = VisibleKeys(~hidden)
    if (hidden & (weights > 0) & ~keyless[..., None]).any():
        raise UndecidedError("keys whose scores are masked keep weights")
    _note_almost_hidden(keys, steps, weights, is_zero & ~hidden)
    _hide_after_softmax(keys, anatomy)
    _note_keyless(keys, anatomy, keyless)
    return keys


def _steps(anatomy: Anatomy) -> Steps:
    """Return the scores of an attention, and what a mask does to them."""
    scores = anatomy.roles.get("scores")
    if scores is None or "attention" not in anatomy.roles:
        raise UndecidedError("its scores cannot be followed to its weights")
    end = anatomy.roles.get("scores_masked", scores)
    masked = end.tensor
    nowhere = torch.zeros_like(masked, dtype=torch.bool)
    if anatomy.raw is None:  # a fused kernel
        return Steps(scores.tensor, scores.tensor, masked, nowhere, _is_lowered(masked - scores.tensor))
    product = anatomy.raw
    places = followed(anatomy.tape, product)
    assert scores.elements is not None
    at = places[scores.value].reshape(-1)[scores.elements].long()

    flat = product.tensor.reshape(-1)

    def arranged(value: Value) -> torch.Tensor:
        found = values_at(value.tensor, places[value], len(flat))
        if found is None:
            raise UndecidedError("its scores cannot be followed to its weights")
        return found[at]

    way = way_between(product, end.value, places)
    replaced, lowered = nowhere, nowhere
    for before, value in pairwise(way):
        if value.name in MASKS:
            replaced = replaced | (arranged(value) != arranged(before))
        elif value.name in ZEROING:
            replaced = replaced | ((arranged(value) == 0) & (arranged(before) != 0))
        elif value.name in ("add", "sub"):
            lowered = lowered | _is_lowered(arranged(value) - arranged(before))
    raw, plain = flat[at], scores.tensor
    if product.name == "baddbmm" and product.call is not None:  # adds a mask to the product
        addend = product.call.args[0]
        [alone] = product.call.run(
            lambda value: torch.zeros_like(value.tensor) if value is addend else value.tensor
        )
        added, raw = raw - alone.reshape(-1)[at], alone.reshape(-1)[at]
        lowered = lowered | _is_lowered(added)
        plain = raw if scores.value is product else plain
    return Steps(raw, plain, masked, replaced, lowered)


def _is_lowered(difference: torch.Tensor) -> torch.Tensor:
    """Mark where one negative number is added, with 0 elsewhere; if several are, mark nothing."""
    finite = difference.nan_to_num(0.0, neginf=0.0, posinf=0.0)
    changed = finite.abs() > 1e-3
    values = finite[changed]
    if not len(values) or values.max() >= 0 or changed.all():
        return torch.zeros_like(changed)
    is_one = bool(values.max() - values.min() <= 1e-3 * values.abs().max())
    return changed if is_one else torch.zeros_like(changed)


def _note_almost_hidden(
    keys: VisibleKeys, steps: Steps, weights: torch.Tensor, is_zero: torch.Tensor
) -> None:
    """Note pairs that count as visible although a mask lowers their scores."""
    kept = (steps.replaced | steps.lowered) & keys.visible & (weights > 0)
    if kept.any():
        lowest, largest = float(steps.masked[kept].min()) + 0.0, float(weights[kept].max())
        keys.notes.append(
            f"a mask leaves {counted(int(kept.sum()), 'score')} at {lowest:.4g} or more, and so weights"
            f" of up to {largest:.1g}: these keys count as visible"
        )
    if is_zero.any():
        lowest = float(steps.masked[is_zero].min())
        keys.notes.append(
            f"{counted(int(is_zero.sum()), 'weight')} are 0 by a bias that is finite (scores as low as"
            f" {lowest:.4g}), not by a mask: these keys count as visible"
        )


def _hide_after_softmax(keys: VisibleKeys, anatomy: Anatomy) -> None:
    """Hide keys whose weights become 0 between the softmax and the product with V."""
    attention, used = anatomy.roles["attention"], anatomy.roles.get("attention_drop")
    if anatomy.raw is None:
        return
    if used is None:
        if attention.value not in anatomy.roles["x_raw"].value.parents:
            raise UndecidedError("its weights cannot be followed to the product with V")
        return
    dropped = (used.tensor == 0) & (attention.tensor != 0) & keys.visible
    if not dropped.any():
        return
    if any("dropout" in each.name for each in anatomy.way("attention", "attention_drop")[1:]):
        keys.notes.append("its weights also pass a dropout that is active, which this mask leaves out")
        return
    keys.visible = keys.visible & ~dropped


def _note_keyless(keys: VisibleKeys, anatomy: Anatomy, keyless: torch.Tensor) -> None:
    """Note queries that see no key, unless their output is 0."""
    if not keyless.any():
        return
    queries = keyless.any(0).nonzero().flatten().tolist()
    one = len(queries) == 1
    subject = f"query {numbers_text(queries)} sees" if one else f"queries {numbers_text(queries)} see"
    out = anatomy.roles["x_raw"].tensor[keyless]
    if out.isnan().any():
        what = ": the output there is NaN"
    elif (out != 0).any():
        what = ", and keys that are hidden get all the weight there"
    else:
        return
    where = "" if bool(keyless[:, queries].all()) else ", in some sequences or heads"
    keys.notes.append(f"{subject} no key{where}{what}")
