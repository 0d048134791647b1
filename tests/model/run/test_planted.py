"""Heads that are planted come out on top: their weights are built by hand, to do one thing each."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from pathlib import Path
from statistics import mean

import pytest

from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.heads.batches import Reader
from attnscope.model.heads.measurer import HeadMeasurer
from attnscope.model.heads.metrics import METRICS
from attnscope.model.heads.result import HeadRow
from attnscope.model.run.load import load_config, load_model, load_tokenizer
from tests.model.run.planted import BERT, GPT, save_bert, save_gpt2

TEXTS = [
    "the cat sat on mat . because it was tired the cat sat on mat . because",
    "a dog ran . the cat sat on a dog ran .",
    "it was tired because it was on the mat .",
]
"""Words come again, in the same order; [CLS] and [SEP] do not."""

MODELS = {"gpt2": (save_gpt2, GPT), "bert": (save_bert, BERT)}
PLANTED = [
    (family, metric)
    for family, (_, of) in MODELS.items()
    for heads in of.values()
    for metric in heads
    if metric
]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[HeadRow]]:
    """What is measured of a planted model's heads."""
    folders: dict[str, Path] = {}

    def measure(family: str, **options: object) -> list[HeadRow]:
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp(family)
            MODELS[family][0](folders[family])
        checkpoint = Checkpoint(family, folders[family])
        model = load_model(checkpoint, load_config(checkpoint))
        reader = Reader(model, load_tokenizer(checkpoint))
        measurer = HeadMeasurer(checkpoint, model, list(METRICS), **options)
        texts = reader.read(TEXTS)
        measurer.probe(reader.batch(texts[:1]))
        [batch] = reader.batches(texts, 1000)
        assert measurer.why_eager is None
        return measurer.measure(batch).rows(list(METRICS), {"self": measurer.of_stack("self")})

    return measure


@pytest.mark.few(9)
@pytest.mark.parametrize("block_bytes", [1, 2**24])
@pytest.mark.parametrize(("family", "metric"), PLANTED)
def test_a_planted_head_comes_out_on_top(measured, family, metric, block_bytes):
    rows = measured(family, block_bytes=block_bytes)
    top, *others = sorted(rows, key=lambda row: row.values[metric], reverse=True)
    assert top.values[metric] > 0.95
    assert MODELS[family][1][top.stack, top.layer][top.head] == metric
    assert all(row.values[metric] < 0.5 for row in others)


@pytest.mark.parametrize(("family", "metric"), PLANTED)
def test_no_other_planted_metric_is_as_large_for_it(measured, family, metric):
    """So these metrics tell kinds of heads apart."""
    heads = MODELS[family][1]
    [row] = [row for row in measured(family) if heads[row.stack, row.layer][row.head] == metric]
    others = {name for of, name in PLANTED if of == family} - {metric}
    assert all(row.values[name] < 0.5 for name in others)


def test_heads_without_weights_look_at_all_keys_equally(measured):
    rows = [row for row in measured("gpt2") if GPT[row.stack, row.layer][row.head] is None]
    assert len(rows) == 3
    n_visible = [i + 1 for text in TEXTS for i in range(len(text.split()) + 2)]
    for row in rows:
        assert row.values["entropy_share"] == pytest.approx(1)
        for name, formula in EVEN.items():
            assert row.values[name] == pytest.approx(mean(map(formula, n_visible)))


EVEN = {
    "effective": lambda n: n,
    "largest": lambda n: 1 / n,
    "distance": lambda n: (n - 1) / 2,
    "entropy": log,
}
"""What one finds of a query that sees n keys, itself the last, and looks at all of them equally."""


@pytest.mark.parametrize("metric", [metric for family, metric in PLANTED if family == "gpt2"])
def test_the_command_ranks_a_planted_head_first(attnscope, tmp_path, metric):
    save_gpt2(tmp_path)
    r = attnscope("heads", tmp_path, "--text", TEXTS[0], "--sort", metric, "--format", "json")
    assert r.exit_status == 0
    top, *others = r.json["heads"]
    assert GPT[top["stack"], top["layer"]][top["head"]] == metric
    assert top[metric] > 0.95
    assert len(others) == 7
    assert all(row[metric] < 0.5 for row in others)
