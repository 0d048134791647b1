"""Of code that returns several tensors, each that has positions is audited, and the others are named."""

from __future__ import annotations

import csv
import io
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import attnscope

Pair = namedtuple("Pair", "first second")


@dataclass
class Result:
    """What a module returns."""

    first: torch.Tensor
    second: Any


def causal(x):
    return x.cumsum(1)


def leaky(x):
    return x.mean(1, keepdim=True).expand_as(x)


CONTAINERS = {
    "dict": (lambda a, b: {"first": a, "second": b}, 'output["{}"]'),
    "named tuple": (Pair, "output.{}"),
    "dataclass": (Result, "output.{}"),
    "nested": (lambda a, b: Result(a, {"more": [b]}), None),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("is_first", [False, True])
def test_a_leak_into_any_output_is_found(kind, is_first):
    make, name = CONTAINERS[kind]

    def code(x):
        return make(leaky(x), causal(x)) if is_first else make(causal(x), leaky(x))

    audit = attnscope.audit(code, inputs={"x": "2,7,8"}, causal=True)
    expected = (name or {True: "output.first", False: 'output.second["more"][0]'}[is_first]).format(
        "first" if is_first else "second"
    )
    found = audit["causal"]
    assert found.status == "broken"
    assert found.found.startswith(f"in {expected}, changing position 6 moves position 0; 21 such pairs")
    assert found.evidence.influence.of.endswith(expected)
    assert len(audit.outputs) == 2
    assert audit["batch"].status == "holds"


@pytest.mark.parametrize("kind", CONTAINERS)
def test_what_holds_holds_in_every_output(kind):
    make, _ = CONTAINERS[kind]
    audit = attnscope.audit(lambda x: make(causal(x), x * 2), inputs={"x": "2,7,8"}, causal=True)
    assert audit["causal"].status == audit["coverage"].status == "holds"
    assert all(name in audit["causal"].found for name in audit.outputs)
    assert audit.verdict.startswith("3 properties hold in output")


def test_outputs_without_positions_are_named_in_every_format(tmp_path):
    class Cache:
        keys = torch.zeros(3)

    def code(x):
        return {"y": x.cumsum(1), "loss": x.mean(), "pooled": x.mean(1), "cache": Cache()}

    audit = attnscope.audit(code, inputs={"x": "2,7,8"}, causal=True)
    assert audit["causal"].status == "holds"
    assert audit.outputs == ['output["y"]']
    names = ['output["loss"]', 'output["pooled"]', 'output["cache"]']
    assert [each.split(" ")[0].rstrip(",") for each in audit.left_out] == names
    for suffix in ("md", "csv", "json", "html"):
        audit.save(tmp_path / f"audit.{suffix}")
        text = (tmp_path / f"audit.{suffix}").read_text(encoding="utf-8")
        text = text.replace("&#34;", '"').replace('\\"', '"').replace('""', '"')
        assert all(name in text for name in names), suffix
    loaded = attnscope.load(tmp_path / "audit.json")
    assert (loaded.outputs, loaded.left_out) == (audit.outputs, audit.left_out)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "audit.csv").read_text())))
    assert {row["outputs"] for row in rows} == {'output["y"]'}


class Attention(torch.nn.Module):
    """Causal attention that returns its scores before and after the mask, its weights and its keys."""

    def __init__(self, shift: int = 1, layers: int = 1, late: bool = False) -> None:
        super().__init__()
        self.shift, self.layers, self.late = shift, layers, late
        self.qkv = torch.nn.Linear(8, 24)

    def forward(self, x):
        states = []
        for _ in range(self.layers):
            q, k, v = self.qkv(x).chunk(3, -1)
            future = torch.ones(x.shape[1], x.shape[1]).triu(self.shift).bool()
            scores = q @ k.mT
            masked = scores.masked_fill(future, float("-inf"))
            weights = scores.softmax(-1).masked_fill(future, 0.0) if self.late else masked.softmax(-1)
            x = x + weights @ v
            states.append((scores, masked, weights, k, x))
        return x, states


@pytest.mark.few(1)
@pytest.mark.parametrize("layers", [1, 2])
def test_scores_weights_and_keys_of_causal_attention_are_no_leak(layers):
    audit = attnscope.audit(Attention(layers=layers), inputs={"x": "2,7,8"}, causal=True, coverage=True)
    assert not audit.broken
    assert not audit.undecided
    assert len(audit.outputs) == 1 + 5 * layers


def test_weights_that_leak_are_named_beside_the_output():
    audit = attnscope.audit(Attention(shift=2), inputs={"x": "2,7,8"}, causal=True)
    assert audit["causal"].status == "broken"
    assert audit["causal"].found.endswith("and in output[1][0][2], output[1][0][4]")


@pytest.mark.sweep
def test_a_window_reaches_as_far_as_the_layers_before_each_output():
    class Windowed(Attention):
        def forward(self, x):
            states = []
            for _ in range(2):
                near = (torch.arange(9)[: x.shape[1], None] - torch.arange(9)[: x.shape[1]]).abs() < 2
                x = x + (x @ x.mT).masked_fill(~near, float("-inf")).softmax(-1) @ x
                states.append(x)
            return states

    audit = attnscope.audit(Windowed(), inputs={"x": "2,9,8"}, window=2)
    assert audit["window"].status == "holds"
    assert attnscope.audit(Windowed(), inputs={"x": "2,9,8"}, window=1)["window"].status == "broken"


def test_the_first_output_with_positions_is_found_behind_one_without():
    def code(x):
        y = (x @ x.mT).softmax(-1) @ x
        return y, y.mean(1)

    audit = attnscope.audit(code, inputs={"x": "2,7,8"}, causal=True)
    assert audit["causal"].status == "broken"
    assert audit.left_out == ["output[1] (2×8), which has no axis of the 7 positions"]


def test_a_leak_by_way_of_numbers_that_are_not_finite_is_undecided_for_its_output_alone():
    def code(x):
        return {"y": x.cumsum(1), "z": x / 0}

    audit = attnscope.audit(code, inputs={"x": "2,7,8"}, causal=True)
    assert audit["causal"].status == "undecided"
    assert audit["causal"].found.startswith('in output["z"], the output is infinite')
