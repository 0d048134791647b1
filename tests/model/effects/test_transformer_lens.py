"""Effects of heads are those that TransformerLens finds: `record_transformer_lens` wrote them down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import attnscope
from tests.model.effects.families import FAMILIES, build
from tests.sweeps import swept

RECORD = json.loads(Path(__file__).with_name("transformer_lens.json").read_text())

OWN = {"first order patched": "first order"}
"""attnscope's names of columns that the record calls otherwise."""

DIFFERENT = {
    ("gemma2", "direct"): "it leaves out the norm that follows the block",
    ("gemma3_text", "direct"): "it leaves out the norm that follows the block",
    ("granite", "direct"): "it leaves out the division of logits",
    ("deepseek_v3", "first order patched"): "it takes elements of z for heads",
}
"""Where TransformerLens finds other numbers, and why. The first three do not sum to the logit."""

RECORDED = [name for name, found in RECORD["families"].items() if found.get("columns")]


@pytest.mark.parametrize("family", swept(RECORDED, default=["gpt2", "llama", "bert"]))
def test_effects_are_those_of_transformer_lens(family):
    found, asked = RECORD["families"][family], {key: RECORD[key] for key in ("ids", "answer", "against")}
    if FAMILIES[family].masked:
        asked["position"] = 3
    if "blocked" in found["columns"]:
        asked["block"] = "0-2>last"
    if any("patched" in name for name in found["columns"]):
        asked["corrupt"] = RECORD["corrupt"]
    columns = [OWN.get(name, name) for name in found["columns"]]
    table = attnscope.effects(build(family), **asked, columns=columns)
    assert table.baseline == pytest.approx(found["baseline"], abs=1e-5)
    layers = {layer: i for i, layer in enumerate(found["layers"])}
    assert len(table.rows) == sum(map(len, next(iter(found["columns"].values()))))
    for name, of_layers in found["columns"].items():
        theirs = [of_layers[layers[row.layer]][row.head] for row in table.rows]
        ours = [row.values[OWN.get(name, name)] for row in table.rows]
        if "patched" in name:  # shares of what is between both texts
            ours = [each * (table.baseline - table.corrupted) for each in ours]
            theirs = [each * (found["baseline"] - found["corrupted"]) for each in theirs]
        assert max(map(abs, theirs)) > 1e-3
        if (family, name) in DIFFERENT:
            assert ours != pytest.approx(theirs, abs=1e-2)
        else:
            assert ours == pytest.approx(theirs, abs=1e-5), name
        if (family, name) == ("granite", "direct"):
            divisor = FAMILIES["granite"].config["logits_scaling"]
            assert ours == pytest.approx([each / divisor for each in theirs], abs=1e-5)
