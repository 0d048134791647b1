"""Direct effects are those of the residual stream's way to the logit, worked out by hand."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import cache

import pytest
import torch

import attnscope
from tests.model.effects.direct_by_hand import STREAMS, direct_by_hand
from tests.model.effects.oracles import Oracle, column, question_of
from tests.sweeps import swept

oracle = cache(Oracle)


def measured(family: str):
    """What the hand and attnscope find."""
    of, question = oracle(family), question_of(family)
    question = replace(question, read=question.read[:1])  # a decoder begins with the answer
    ids = list(question.ids)
    table = attnscope.effects(of.model, ids=ids, answer=17, against=23, columns=["direct"])
    return direct_by_hand(of, family, question), table, question


@pytest.mark.parametrize(
    "family", swept(STREAMS, default=["gpt2", "gemma2", "gpt_neox", "granite", "t5"])
)
def test_direct_effects_are_z_W_O_through_frozen_norms(family):
    by_hand, table, question = measured(family)
    of_heads = {(row.stack, row.layer, row.head): row.values["direct"] for row in table.rows}
    for head, effect in of_heads.items():
        assert effect == pytest.approx(by_hand.heads.get(head, 0.0), abs=1e-5)  # an encoder has no path
    assert {*by_hand.heads} <= {*of_heads}
    assert table.direct.parts == pytest.approx(by_hand.parts, abs=1e-5)
    assert table.direct.value == pytest.approx(by_hand.logit, abs=1e-5)
    total = sum(by_hand.heads.values()) + sum(by_hand.parts.values())
    assert total == pytest.approx(by_hand.logit, abs=1e-5)  # the hand accounts for all of it
    assert by_hand.logit == pytest.approx(oracle(family).uncapped(question), abs=1e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize("family", ["gpt2", "gemma2", "granite", "phi"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_numbers_are_rounded_and_not_refused(family, dtype):
    by_hand, *_ = measured(family)
    model, ids = deepcopy(oracle(family).model).to(dtype), list(question_of(family).ids)
    table = attnscope.effects(model, ids=ids, answer=17, against=23, columns=["direct"])
    # bfloat16 has 8 bits, and so have the weights.
    tolerance = 1e-5 if dtype == torch.float32 else 2**-8 * 10
    of_heads = {head: by_hand.heads.get(head, 0.0) for head in column(table, "direct")}
    assert column(table, "direct") == pytest.approx(of_heads, abs=tolerance)
    assert table.direct.value == pytest.approx(by_hand.logit, abs=tolerance)
