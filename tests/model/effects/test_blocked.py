"""A blocked head does not read the blocked keys: by hand, their scores are −∞ before the softmax."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import cycle
from typing import Any

import pytest
import torch

import attnscope
from tests.model.effects.families import build
from tests.model.effects.oracles import Head, Oracle, Question, asked, column
from tests.sweeps import swept

Blocks = list[tuple[list[int], list[int]]]
"""Of each block, the keys and the queries."""


class Softmaxes:
    """The softmaxes of a model's eager attention, of which one is changed in one head.

    A softmax of scores, `1 n_head n_Q n_K`, belongs to the layer whose W_O is the next that runs. A
    learned sink is one more key at the end.
    """

    def __init__(self, of: Oracle, question: Question) -> None:
        self.of, self.question, self.layers = of, question, []
        of.model.set_attn_implementation("eager")
        pending = 0

        def seen(scores: torch.Tensor) -> torch.Tensor:
            nonlocal pending
            pending += 1
            return scores

        def projected(stack: str, layer: int, x: torch.Tensor) -> None:
            nonlocal pending
            assert pending == 1
            self.layers.append((stack, layer))
            pending = 0

        with torch.no_grad(), softmax_of(seen):
            of.logits(question, projected)

    def metric(self, heads: list[Head], blocks: Blocks) -> float:
        """The metric when some heads are blocked."""
        calls = iter(self.layers)

        def blocked(scores: torch.Tensor) -> torch.Tensor:
            place, scores = next(calls), scores.clone()
            for stack, layer, head in heads:
                if (stack, layer) == place:
                    for keys, queries in blocks:
                        scores[:, head, torch.tensor(queries)[:, None], torch.tensor(keys)] = -torch.inf
            return scores

        with torch.no_grad(), softmax_of(blocked):
            return float(self.question.of(self.of.logits(self.question)))


@contextmanager
def softmax_of(change: Any) -> Iterator[None]:
    """Let a function change scores of four axes before their softmax."""
    original = torch.nn.functional.softmax

    def softmax(scores: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        scores = change(scores) if scores.dim() == 4 else scores
        return original(scores, *arguments, **options)

    torch.nn.functional.softmax = softmax
    try:
        yield
    finally:
        torch.nn.functional.softmax = original


softmaxes = cache(lambda family: Softmaxes(Oracle(family), asked(family)[0]))


BLOCKS = {
    "0-2>last": [([0, 1, 2], [6])],
    "1>3-6": [([1], [3, 4, 5, 6])],
    "0>2;3-4>5,6": [([0], [2]), ([3, 4], [5, 6])],
}
BLOCKED = [  # families with each of these in turn
    *zip("gpt2 llama gemma2 opt phi afmoe jamba albert".split(), cycle(BLOCKS), strict=False),
    *zip(
        "gpt_oss bert deepseek_v3 qwen3_next modernbert falcon_h1 mixtral".split(),
        cycle(BLOCKS),
        strict=False,
    ),
]


@pytest.mark.parametrize(
    ("family", "block"), swept(BLOCKED, default=[*BLOCKED[:1], *BLOCKED[2:3], *BLOCKED[8:10]])
)
def test_blocked_heads_do_not_read_these_keys(family, block):
    of, arguments, blocks = softmaxes(family), asked(family)[1], BLOCKS[block]
    table = attnscope.effects(of.of.model, **arguments, block=block)
    clean = of.metric([], blocks)
    assert table.baseline == pytest.approx(clean, abs=1e-5)
    heads = of.of.heads()
    expected = {head: of.metric([head], blocks) - clean for head in heads}
    assert max(map(abs, expected.values())) > 1e-3
    assert column(table, "blocked") == pytest.approx(expected, abs=1e-5)
    assert table.blocked == pytest.approx(of.metric(heads, blocks) - clean, abs=1e-5)


@pytest.mark.parametrize(
    ("family", "stack", "block", "blocks"),
    [
        ("t5", "encoder", "0-2>4", [([0, 1, 2], [4])]),
        ("t5", "decoder", "0-1>last", [([0, 1], [3])]),
        ("bart", "cross", "4-6>1-3", [([4, 5, 6], [1, 2, 3])]),
    ],
)
def test_each_stack_has_its_own_keys_and_queries(family, stack, block, blocks):
    of, arguments = softmaxes(family), asked(family)[1]
    table = attnscope.effects(of.of.model, **arguments, stack=stack, block=block)
    clean = of.metric([], blocks)
    heads = [head for head in of.of.heads() if head[0] == stack]
    expected = {head: of.metric([head], blocks) - clean for head in heads}
    assert column(table, "blocked") == pytest.approx(expected, abs=1e-5)
    assert table.blocked == pytest.approx(of.metric(heads, blocks) - clean, abs=1e-5)


@pytest.mark.parametrize(
    ("block", "notice"),
    [
        (
            "4>2",
            "no query reads the blocked keys anyway: the model's own mask hides key 4 from query 2.",
        ),
        (
            "1-4>2;0>5",
            "2 of the 5 blocked pairs of a query and a key are hidden anyway: the model's own mask hides"
            " key 3 from query 2.",
        ),
        ("0-1>2;0>5", None),
    ],
)
def test_keys_that_the_model_hides_anyway_are_said(block, notice):
    table = attnscope.effects(build("gpt2"), ids=[3, 4, 5, 6, 7, 8], answer=5, block=block)
    said = [each for each in table.notices if "anyway" in each]
    assert said == ([] if notice is None else [notice])
    nothing = all(abs(row.values["blocked"]) < 1e-9 for row in table.rows)
    assert nothing == (block == "4>2")
