"""Maps that are weighed by values are those of TransformerLens's values, weights and W_O."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import attnscope
from attnscope.base.errors import ModelError
from tests.model.effects.families import build
from tests.sweeps import swept

TESTS = Path(__file__).parents[2]
RECORD = json.loads((TESTS / "model" / "effects" / "transformer_lens.json").read_text())
BEHIND = ["qwen3_next", "qwen3_5_text", "afmoe", "bitnet"]
"""Families in which a gate or a norm stands before W_O, which TransformerLens leaves out."""

RECORDED = [name for name, found in RECORD["families"].items() if found.get("weighed")]


def weighed(family: str) -> attnscope.AttentionMaps:
    return attnscope.attention_maps(
        build(family), ids=RECORD["ids"], layers="all", heads="all", weigh="value"
    )


@pytest.mark.parametrize(
    "family",
    swept([name for name in RECORDED if name not in BEHIND], default=["gpt2", "llama", "deepseek_v3"]),
)
def test_weighed_maps_are_those_of_transformer_lens(family):
    found = RECORD["families"][family]
    maps = {(each.layer, each.head): each.attention for each in weighed(family)}
    for layer, heads in zip(found["layers"], found["weighed"], strict=True):
        for head, row in enumerate(heads):
            assert list(maps[layer, head][-1]) == pytest.approx(row, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("family", swept(BEHIND, default=["bitnet"]))
def test_where_a_gate_or_a_norm_stands_before_w_o_they_are_refused(family):
    with pytest.raises(ModelError, match="a gate or a norm stands"):
        weighed(family)
