"""Effects of heads are those that TransformerLens finds: `record_transformer_lens` wrote them down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import attnscope
from tests.model.effects.families import FAMILIES, build
from tests.sweeps import swept

RECORD = json.loads(Path(__file__).with_name("transformer_lens.json").read_text())

ARGUMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "zero": ("zero", {}),
    "mean": ("mean", {}),
    "direct": ("direct", {}),
    "blocked": ("blocked", {"block": "0-2>last"}),
    "patched": ("patched", {"corrupt": RECORD["corrupt"]}),
    "first order patched": ("first order", {"corrupt": RECORD["corrupt"]}),
}
"""For each column of the record, attnscope's, and its arguments."""

DIFFERENT = {
    ("gemma2", "direct"): "it leaves out the norm that follows the block",
    ("gemma3_text", "direct"): "it leaves out the norm that follows the block",
    ("granite", "direct"): "it leaves out the division of logits",
    ("deepseek_v3", "first order patched"): "it takes elements of z for heads",
}
"""Where TransformerLens finds other numbers, and why. The first three do not sum to the logit."""

CASES = [
    (name, column) for name, found in RECORD["families"].items() for column in found.get("columns", ())
]


def of_heads(name: str, column: str) -> tuple[list[float], list[float]]:
    """The effects of all heads: attnscope's and TransformerLens's; shares become differences."""
    found = RECORD["families"][name]
    own, arguments = ARGUMENTS[column]
    if FAMILIES[name].masked:
        arguments = {**arguments, "position": 3}
    asked = {key: RECORD[key] for key in ("ids", "answer", "against")}
    table = attnscope.effects(build(name), **asked, **arguments, columns=[own])
    assert table.baseline == pytest.approx(found["baseline"], abs=1e-5)
    layers = zip(found["layers"], found["columns"][column], strict=True)
    places = [(layer, head, theirs) for layer, row in layers for head, theirs in enumerate(row)]
    assert len(places) == len(table.rows)
    units = (1.0, 1.0)
    if "patched" in column:  # shares of what is between both texts
        units = (table.baseline - table.corrupted, found["baseline"] - found["corrupted"])
    return (
        [table[layer, head].values[own] * units[0] for layer, head, _ in places],
        [theirs * units[1] for *_, theirs in places],
    )


@pytest.mark.parametrize(
    ("family", "column"),
    swept(
        [case for case in CASES if case not in DIFFERENT],
        default=[("gpt2", column) for column in ARGUMENTS] + [("llama", "zero"), ("bert", "mean")],
    ),
)
def test_effects_are_those_of_transformer_lens(family, column):
    ours, theirs = of_heads(family, column)
    assert max(map(abs, theirs)) > 1e-3
    assert ours == pytest.approx(theirs, abs=1e-5)


@pytest.mark.sweep
@pytest.mark.parametrize(("family", "column"), DIFFERENT)
def test_where_it_finds_other_numbers_is_known(family, column):
    ours, theirs = of_heads(family, column)
    assert ours != pytest.approx(theirs, abs=1e-2)


@pytest.mark.sweep
def test_without_the_division_of_logits_it_is_the_same():
    ours, theirs = of_heads("granite", "direct")
    divisor = FAMILIES["granite"].config["logits_scaling"]
    assert ours == pytest.approx([each / divisor for each in theirs], abs=1e-5)
