"""Effects over many prompts: what their means and standard errors are, and what a prompt may be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import attnscope
from attnscope.base.errors import OptionError
from tests.model.effects.oracles import Oracle, column, question_of

TEXTS = [(5, 9, 3, 20, 31, 7, 44), (8, 30, 41, 6, 12), (44, 2, 7, 15, 27, 19)]
CORRUPT = [(5, 9, 14, 20, 31, 27, 44), (8, 30, 13, 6, 12), (44, 2, 7, 11, 27, 19)]


@pytest.fixture(scope="module")
def of():
    return Oracle("gpt2")


def test_prompts_may_be_token_ids_of_a_model_without_a_tokenizer(of):
    prompts = [{"ids": list(ids), "answer": 17, "against": [23]} for ids in TEXTS]
    table = attnscope.effects(of.model, prompts, columns=["zero"])
    for head, effect in column(table, "zero").items():
        each = [of.zero(question_of("gpt2", ids), head) for ids in TEXTS]
        assert effect == pytest.approx(np.mean(each), abs=1e-6)
        error = table[head[1:]].errors["zero"]
        assert error == pytest.approx(np.std(each, ddof=1) / 3**0.5, abs=1e-6)
    bare = attnscope.effects(of.model, [list(ids) for ids in TEXTS], columns=["zero"])
    assert bare.metric.startswith("loss")
    with pytest.raises(OptionError, match="prompt 2: ids has '-1', which is not a token id"):
        attnscope.effects(of.model, [[5, 9], [-1, 2]])


def test_patched_is_the_share_of_the_mean_difference(of):
    questions = [question_of("gpt2", ids) for ids in TEXTS]
    corrupted = [replace(each, ids=ids) for each, ids in zip(questions, CORRUPT, strict=True)]
    prompts = [
        {"ids": list(a.ids), "answer": 17, "against": 23, "corrupt": list(b.ids)}
        for a, b in zip(questions, corrupted, strict=True)
    ]
    table = attnscope.effects(of.model, prompts, columns=["patched"])
    assert table.metrics["patched"].startswith("share of the mean difference")
    pairs = list(zip(questions, corrupted, strict=True))
    spans = np.array([of.metric(a) - of.metric(b) for a, b in pairs])
    for head, share in column(table, "patched").items():
        restored = np.array([of.patched(a, b, head) for a, b in pairs]) * spans
        assert share == pytest.approx(restored.mean() / spans.mean(), abs=1e-5)
        jackknife = [np.delete(restored, i).mean() / np.delete(spans, i).mean() for i in range(3)]
        assert np.std(jackknife) > 0
        residuals = restored - share * spans
        error = table[head[1:]].errors["patched"]
        assert error == pytest.approx(residuals.std(ddof=1) / 3**0.5 / abs(spans.mean()), abs=1e-5)


def test_a_share_of_no_difference_is_undefined_and_said(of):
    """The first position, of which the metric is a prediction, is the same in both texts."""
    ids, corrupt = list(TEXTS[0]), list(CORRUPT[0])
    table = attnscope.effects(of.model, ids=ids, answer=17, position=1, corrupt=corrupt)
    assert table.baseline == table.corrupted
    assert {value for row in table.rows for value in row.values.values()} == {None}
    assert any(each.startswith("shares are undefined: the metric is") for each in table.notices)
    assert "undefined" in table.to_json()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"answer": [1, True]}, r"answer is \[1, true\], not"),
        ({"against": 17}, "prompt 2: answer and against are the same tokens"),
    ],
)
def test_a_wrong_prompt_is_named(of, more, message):
    prompt = {"ids": [5, 9, 3], "answer": 17, "against": 23}
    with pytest.raises(OptionError, match=message):
        attnscope.effects(of.model, [prompt, prompt | more], columns=["zero"])
