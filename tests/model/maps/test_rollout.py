"""Attention rollout is what a loop in numpy computes from the maps of all heads."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import attnscope
from attnscope import attention_maps
from attnscope.base.errors import ModelError, OptionError
from tests.model.effects.families import FAMILIES, build, words
from tests.model.run.readers import save_seer

TEXT, TARGET = "w5 w9 w14 w20 w31 w27 w44", "w7 w11 w4 w30"
SENTENCE = "The cat sat on the mat."
FEW = ["gpt2", "bert", "t5", "mpnet"]
HYBRID = """
    lfm2 lfm2_moe jamba bamba granitemoehybrid zamba zamba2 recurrent_gemma nemotron_h qwen3_next
    qwen3_5_text minimax olmo_hybrid
""".split()
"""Families with layers that do not attend."""

UNKNOWN = "longformer big_bird yoso nystromformer convbert diffllama".split()
"""Families without maps among all tokens."""

NAMES = [name for name in FAMILIES if name.split()[0] not in (*HYBRID, *UNKNOWN)]
NAMES = [*FEW, *(name for name in NAMES[::4] if name not in FEW)]
"""A rollout is computed from maps, whose tests have every family."""


@cache
def model_of(name: str):
    return build(name).requires_grad_(False)


def collected(name: str, stack: str, **options):
    decodes = {"target": TARGET} if FAMILIES[name].decodes else {}
    named = None if stack == "self" else stack
    return attention_maps(model_of(name), TEXT, tokenizer=words(), stack=named, **decodes, **options)


def by_loop(maps) -> list[np.ndarray]:
    """R of every layer: products of sums, element by element of each matrix, in float64."""
    n_layer, n_head = maps.n_layer, maps.n_head
    n = len(maps.query_tokens)
    below, all_layers = np.eye(n), []
    for layer in range(n_layer):
        mixed = np.zeros((n, n))
        for head in range(n_head):
            mixed += maps[layer, head].attention.astype("float64") / n_head
        mixed = 0.5 * mixed + 0.5 * np.eye(n)
        product = np.zeros((n, n))
        for i in range(n):
            for j in range(n):
                product[i, j] = sum(mixed[i, k] * below[k, j] for k in range(n))
        below = product
        all_layers.append(product)
    return all_layers


@pytest.mark.few(3)
@pytest.mark.parametrize("name", NAMES)
def test_rollouts_are_products_over_layers(name):
    for stack in FAMILIES[name].stacks:
        if stack == "cross":
            continue
        heads = collected(name, stack, layers="all", heads="all")
        rollouts = collected(name, stack, layers="all", rollout=True)
        expected = by_loop(heads)
        assert [(each.layer, each.head) for each in rollouts] == [(i, 0) for i in range(len(expected))]
        for each, product in zip(rollouts, expected, strict=True):
            np.testing.assert_allclose(each.attention, product, rtol=1e-5, atol=1e-7)
            if "sinks" not in "".join(rollouts.notices):
                np.testing.assert_allclose(each.attention.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.sweep
def test_minilm_by_the_loop_and_the_last_layer_by_default():
    heads = attention_maps("minilm", SENTENCE, layers="all", heads="all")
    expected = by_loop(heads)
    last = attention_maps("minilm", SENTENCE, rollout=True)
    assert (last.one.layer, last.numbers) == (5, "rollout")
    np.testing.assert_allclose(last.one.attention, expected[5], rtol=1e-5)
    some = attention_maps("minilm", SENTENCE, rollout=True, layers=[1, 3])
    assert [each.layer for each in some] == [1, 3]
    np.testing.assert_allclose(some[3, 0].attention, expected[3], rtol=1e-5)


def test_heads_that_are_collected_in_parts_are_one_mean(monkeypatch):
    whole = attention_maps("minilm", SENTENCE, rollout=True).one.attention
    monkeypatch.setattr("attnscope.model.maps.capture.AT_ONCE", 5 * 9 * 9)
    np.testing.assert_allclose(
        attention_maps("minilm", SENTENCE, rollout=True).one.attention, whole, rtol=1e-5
    )


def test_generated_tokens_have_the_last_rows_of_the_whole_rollout():
    generated = collected("gpt2", "self", rollout=True, generate=3)
    ids = [token.text for token in generated.key_tokens]
    whole = attention_maps(model_of("gpt2"), " ".join(ids), tokenizer=words(), rollout=True)
    assert generated.one.attention.shape == (3, len(ids))
    np.testing.assert_allclose(generated.one.attention, whole.one.attention[-3:], rtol=1e-4, atol=1e-7)


def test_a_picture_has_one_too(tmp_path):
    from PIL import Image

    save_seer("vit", tmp_path / "vit")
    Image.new("RGB", (8, 8), "red").save(tmp_path / "red.png")
    given = {"image": tmp_path / "red.png"}
    heads = attention_maps(str(tmp_path / "vit"), **given, layers="all", heads="all")
    rollout = attention_maps(str(tmp_path / "vit"), **given, rollout=True)
    np.testing.assert_allclose(rollout.one.attention, by_loop(heads)[-1], rtol=1e-4, atol=1e-7)


def test_layers_without_attention_are_refused():
    with pytest.raises(ModelError, match=r"layer \d of .* has no attention, so that what passes"):
        collected("lfm2", "self", rollout=True)


def test_verify_compares_rollouts_of_eager_attention():
    maps = attention_maps("minilm", SENTENCE, rollout=True, layers="all", verify=True)
    assert [check.ok for check in maps.checks] == [True, True]
    assert maps.checks[0].name == "6 rollouts = those of the model's own eager attention"


@pytest.mark.few(1)
@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_a_saved_rollout_is_read_as_one(tmp_path, suffix):
    maps = attention_maps("minilm", SENTENCE, rollout=True, layers="all")
    maps.save(tmp_path / f"maps{suffix}")
    again = attnscope.load(tmp_path / f"maps{suffix}")
    assert (again.numbers, len(again)) == ("rollout", 6)
    np.testing.assert_allclose(again[4, 0].attention, maps[4, 0].attention, rtol=1e-5)


def test_views_name_layers_and_no_head(tmp_path):
    maps = attention_maps("minilm", SENTENCE, rollout=True)
    assert "layers 0 to 5" in maps.summary
    maps.save(tmp_path / "maps.md")
    text = (tmp_path / "maps.md").read_text(encoding="utf-8")
    assert "layers 0 to 5 of 6 · mean over 12 heads" in text
    assert "head 0" not in text
    page = attention_maps("minilm", SENTENCE, rollout=True, page=True)
    assert len(page.collected[0]) == 6
    assert "All layers" in page.page()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"weigh": "value"}, "multiplies weights whose rows sum to 1"),
        ({"heads": 2}, "takes the mean over all heads"),
        ({"steps": True}, "rollout multiplies several"),
        ({"pool": "max"}, "multiplies whole maps"),
    ],
)
def test_what_does_not_go_together_is_refused(options, error):
    with pytest.raises(OptionError, match=error):
        attention_maps("minilm", SENTENCE, rollout=True, **options)


def test_cross_attention_is_refused():
    with pytest.raises(OptionError, match="tokens of two sequences"):
        collected("t5", "cross", rollout=True)
    with pytest.raises(OptionError, match="has several stacks of layers"):
        collected("t5", "self", rollout=True)
