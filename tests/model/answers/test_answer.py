"""`attnscope.answer`: rows of texts, chats and pictures, beside the weights of one whole eager pass."""

import json

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    BloomConfig,
    BloomForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.model.answers.heat import segment_shares
from attnscope.model.answers.segments.of_pictures import read_pictures_and_text
from attnscope.model.files.loaded import find_model
from attnscope.model.run import written_rows
from tests.model.answers.families import NAMES, VIDEO_NAMES, loaded, picture
from tests.model.answers.writers import MESSAGES, whole_pass, writer
from tests.sweeps import swept

TEXT = "the cat sat . [1] the dog ran [2] the mat"
LLAMA, TOKENIZER = writer()


def ask(text=TEXT, **options):
    options = {"generate": 5, "tokenizer": TOKENIZER, **options}
    return attnscope.answer(LLAMA, text, **options)


def prompt_of(text=TEXT):
    return dict(TOKENIZER(text, return_tensors="pt"))


def rows_by_hand(model, inputs, answer):
    """The rows of an answer as a whole eager pass has them, `n_layer n_head n_row n_K`."""
    weights, _ = whole_pass(model, inputs, answer.ids)
    reads = answer.queries[0] == answer.first
    assert answer.first == inputs["input_ids"].shape[1]
    assert answer.queries == [answer.first + i - (not reads) for i in range(len(answer.ids))]
    return weights[:, :, answer.queries].numpy()


def assert_equal(answer, rows):
    """Whether weights, sums and layers of an answer are those of whole rows, pooled by hand."""
    rows = rows[answer.layers][:, answer.heads]
    pooled = rows.max((0, 1)) if answer.pool == "max" else rows.mean((0, 1))
    np.testing.assert_allclose(answer.weights, pooled, atol=1e-6)
    for column, segment in enumerate(answer.segments):
        whole = rows[..., segment.positions].sum(-1)
        np.testing.assert_allclose(answer.sums[..., column], whole, atol=1e-6)
    keys = sorted(position for segment in answer.segments for position in segment.positions)
    assert keys == [*range(len(answer.tokens))]
    if answer.of_layers is not None:
        pooled = rows.max(1) if answer.pool == "max" else rows.mean(1)
        np.testing.assert_allclose(answer.of_layers, pooled, atol=1e-6)


KINDS = [(name, ("writing", "reading", "segments")[i % 3]) for i, name in enumerate(NAMES)]
"""Every family with one kind of rows, and every kind with many families."""


@pytest.mark.parametrize(
    ("name", "rows"),
    swept([*KINDS, ("gemma3", "segments")], [KINDS[0], KINDS[5], ("gemma3", "segments")]),
)
def test_rows_over_pictures_are_those_of_a_whole_eager_pass(name, rows):
    model, processor = loaded(name)
    images = [picture(50, 37), picture(64, 32, seed=1)]
    answer = attnscope.answer(
        model, "what is?", image=images, processor=processor, generate=5, rows=rows, page=True
    )
    checkpoint = find_model(model, processor=processor)
    prompt = read_pictures_and_text(checkpoint, model.config, images, "what is?", None)
    assert [token.text for token in answer.tokens[: answer.first]] == [t.text for t in prompt.tokens]
    assert [each.name for each in answer.pictures] == ["picture 1", "picture 2"]
    assert {"picture 1", "picture 2", "answer"} <= {each.name for each in answer.segments}
    assert_equal(answer, rows_by_hand(model, prompt.inputs, answer))
    if rows == "segments":
        assert_rows_of_segments(answer, model, prompt.inputs)
    for each in answer.pictures:
        [segment] = [part for part in answer.segments if part.name == each.name]
        assert {patch.position for patch in each.patches} <= set(segment.positions)


@pytest.mark.videos
@pytest.mark.parametrize("name", VIDEO_NAMES)
def test_rows_over_a_video_are_those_of_a_whole_eager_pass(name):
    model, processor = loaded(name)
    frames = [picture(48, 40, seed=i) for i in range(4)]
    answer = attnscope.answer(
        model, "what is?", video=[frames], processor=processor, generate=5, page=True
    )
    checkpoint = find_model(model, processor=processor)
    prompt = read_pictures_and_text(checkpoint, model.config, [], "what is?", None, videos=[frames])
    assert "video 1" in [each.name for each in answer.segments]
    assert_equal(answer, rows_by_hand(model, prompt.inputs, answer))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rows": "reading"},
        {"pool": "max", "page": True},
        {"layers": [1], "heads": 2},
        {"layers": "0,2", "pool": "max", "rows": "reading", "page": True},
        {"segments": "docs=[1],[2]", "by": "segment"},
        {"segments": {"cat": "the cat", "dog": [(18, 25)]}, "heads": [0, 3], "page": True},
    ],
    ids=str,
)
def test_rows_of_a_text_are_those_of_a_whole_eager_pass(options):
    answer = ask(**options)
    rows = rows_by_hand(LLAMA, prompt_of(), answer)
    assert_equal(answer, rows)
    assert (answer.of_layers is not None) == ("page" in options)
    assert answer.by_segment == ("by" in options)


def assert_rows_of_segments(answer, model, inputs):
    """Whether the rows of segments are means of rows of one whole eager pass."""
    weights = whole_pass(model, inputs, answer.ids)[0].numpy()[answer.layers][:, answer.heads]
    assert answer.segment_rows.shape == (*weights.shape[:2], *[len(answer.segments)] * 2)
    for i, of_queries in enumerate(answer.segments):
        for j, of_keys in enumerate(answer.segments):
            part = weights[:, :, of_queries.positions][..., of_keys.positions]
            np.testing.assert_allclose(answer.segment_rows[:, :, i, j], part.sum(3).mean(2), atol=1e-6)
    pooled = answer.segment_rows.mean((0, 1))
    np.testing.assert_allclose(segment_shares(answer), pooled, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{"segments": "docs=[1],[2]"}, {"layers": "0,2", "heads": [1, 3], "page": True}], ids=str
)
def test_rows_of_segments_are_means_of_their_tokens_own_rows(options, monkeypatch):
    answer = ask(rows="segments", **options)
    assert answer.by_segment
    assert_rows_of_segments(answer, LLAMA, prompt_of())
    assert_equal(answer, rows_by_hand(LLAMA, prompt_of(), answer))
    assert answer.queries[0] == answer.first
    monkeypatch.setattr(
        written_rows, "AT_ONCE", 7 * 2 * 4 * len(answer.tokens)
    )  # seven rows of four heads
    blocks = ask(rows="segments", **options)
    np.testing.assert_allclose(blocks.segment_rows, answer.segment_rows, atol=1e-6)
    np.testing.assert_allclose(blocks.weights, answer.weights, atol=1e-6)


def test_rows_of_segments_come_from_eager_attention_where_the_registry_is_not_called():
    torch.manual_seed(0)
    config = BloomConfig(vocab_size=len(TOKENIZER), hidden_size=16, n_layer=2, n_head=2)
    bloom = BloomForCausalLM(config).eval()
    answer = attnscope.answer(bloom, TEXT, tokenizer=TOKENIZER, generate=3, rows="segments")
    assert_rows_of_segments(answer, bloom, prompt_of())
    assert any("eager attention" in notice for notice in answer.notices)


def test_the_first_token_may_be_a_segment_of_its_own():
    chat = {"text": None, "messages": MESSAGES, "by": "segment"}
    answer, plain = (ask(**chat, without_sink=each) for each in (True, False))
    assert [each.name for each in answer.segments] == ["sink", *(each.name for each in plain.segments)]
    assert answer.segments[0].positions == [0]
    assert answer.segments[1].positions == plain.segments[0].positions[1:]
    np.testing.assert_allclose(answer.sums[..., :2].sum(-1), plain.sums[..., 0], atol=1e-6)
    alone = ask(without_sink=True)  # the tokenizer's own first token has nothing left
    assert [each.name for each in alone.segments] == ["sink", "text", "answer"]


def test_maxima_of_segments_are_shares_of_their_sum():
    answer = ask(rows="segments", pool="max", segments="docs=[1],[2]")
    largest = answer.segment_rows.max((0, 1))
    np.testing.assert_allclose(
        segment_shares(answer), largest / largest.sum(1, keepdims=True), atol=1e-6
    )


def test_an_encoder_has_no_rows_of_segments_beside_the_answer():
    config = T5Config(vocab_size=len(TOKENIZER), d_model=16, d_kv=8, d_ff=8, num_layers=1, num_heads=2)
    config.decoder_start_token_id = 0
    model = T5ForConditionalGeneration(config)
    with pytest.raises(AttnscopeError, match="reads the prompt with its encoder"):
        attnscope.answer(model, TEXT, tokenizer=TOKENIZER, rows="segments")
    with pytest.warns(UserWarning, match="without_sink has no effect"):
        attnscope.answer(model, TEXT, tokenizer=TOKENIZER, generate=1, without_sink=True)


def test_tokens_and_log_probabilities_are_those_of_plain_generation():
    answer = ask()
    plain = LLAMA.generate(**prompt_of(), max_new_tokens=5, do_sample=False)[0, answer.first :].tolist()
    assert answer.ids == plain
    _, log_probabilities = whole_pass(LLAMA, prompt_of(), plain)
    known = log_probabilities[answer.first - 1 : -1][range(5), plain]
    np.testing.assert_allclose(answer.log_probabilities, known, atol=1e-4)


def test_a_chat_has_its_roles_as_segments():
    answer = ask(None, messages=MESSAGES, by="segment")
    names = [each.name for each in answer.segments]
    assert {"system", "user", "answer"} <= set(names)
    ids = TOKENIZER.apply_chat_template(
        MESSAGES, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    assert_equal(answer, rows_by_hand(LLAMA, dict(ids), answer))
    said = [*range(answer.first)]
    [user] = [each for each in answer.segments if each.name == "user"]
    words = TOKENIZER.decode([ids["input_ids"][0, i] for i in said if i in user.positions])
    assert words.strip() == MESSAGES[1]["content"]


def test_the_row_of_a_token_is_found_by_position_and_by_text():
    answer = ask()
    assert answer.query is None
    assert ask(query=answer.first + 2).query == 2
    texts = [token.text for token in answer.written]
    assert texts.count(texts[3]) == 1
    assert ask(query=texts[3]).query == 3


@pytest.mark.parametrize("rows", ["writing", "segments"])
def test_verify_compares_with_eager_attention(rows):
    [check] = ask(verify=True, rows=rows).checks
    assert check.ok
    assert check.max_abs_diff < 1e-6
    plain = ask()
    assert (plain.checks, plain.segment_rows, plain.sinks) == (None, None, [0])


def test_the_loaded_model_and_the_random_state_are_unchanged():
    before = json.dumps(LLAMA.config.to_dict(), sort_keys=True, default=str)
    settings = LLAMA.generation_config.to_dict()
    hooks = [(each._forward_hooks.copy(), each._forward_pre_hooks.copy()) for each in LLAMA.modules()]
    kind, LLAMA.config.use_cache = LLAMA.config._attn_implementation, False
    training = LLAMA.training
    state = torch.get_rng_state()
    try:
        ask(verify=True, page=True)
        assert LLAMA.config.use_cache is False
    finally:
        LLAMA.config.use_cache = True
    assert torch.equal(torch.get_rng_state(), state)
    assert json.dumps(LLAMA.config.to_dict(), sort_keys=True, default=str) == before
    assert LLAMA.generation_config.to_dict() == settings
    assert (LLAMA.config._attn_implementation, LLAMA.training) == (kind, training)
    for (after, pre), each in zip(hooks, LLAMA.modules(), strict=True):
        assert dict(after) == dict(each._forward_hooks)
        assert dict(pre) == dict(each._forward_pre_hooks)


def test_a_model_in_training_mode_answers_as_ever():
    expected = ask()
    LLAMA.train()
    try:
        np.testing.assert_array_equal(ask().weights, expected.weights)
        assert LLAMA.training
    finally:
        LLAMA.eval()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": None}, "there is no prompt."),
        ({"messages": MESSAGES}, "text and messages cannot be combined"),
        ({"generate": 0}, "generate is 0, but takes numbers from 1."),
        ({"grid": "2x2"}, "grid is that of a picture, and there is none."),
        ({"fps": 2}, "fps is that of a video, and there is none."),
        ({"fps": 0, "video": "a.gif"}, "fps is 0, but must be more than 0."),
        ({"fps": 2, "text": None, "messages": MESSAGES}, "and the messages have none."),
        ({"text": None, "messages": MESSAGES, "truncate": True}, "truncate does not go with messages"),
        ({"device": "meta"}, 'device="meta" computes no values'),
        ({"device": "toaster"}, "toaster"),
        ({"by": "word"}, "by is 'word'"),
        ({"rows": "sideways"}, "sideways"),
        ({"pool": "median"}, "median"),
        ({"layers": 3}, "layer 3"),
        ({"heads": [4]}, "head 4"),
        ({"choice": -1}, "choice is -1, but takes numbers from 0."),
        ({"stack": "cross"}, r'stack="cross" of \w+ does not write'),
        ({"query": 2, "rows": "segments"}, 'query is a token, and rows="segments" shows segments'),
        ({"query": 2}, "there is no token 2 in the answer"),
        ({"query": "zebra"}, "'zebra' is not a token among the queries"),
        ({"generate": 300}, "tokens and 300 more make"),
        ({"segments": "docs=zebra"}, "zebra"),
        ({"image": "nowhere.png"}, "does not read pictures beside a text"),
        ({"tokenizer": None}, "was given without a tokenizer"),
        ({"text": ""}, "text is empty"),
    ],
    ids=str,
)
def test_a_mistake_gets_one_line(options, message):
    with pytest.raises(AttnscopeError, match=message) as error:
        ask(**{"text": TEXT, **options})
    assert "\n" not in error.value.message


def test_a_model_that_does_not_write_is_refused():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    bert = BertModel(BertConfig(vocab_size=len(TOKENIZER), **sizes)).eval()
    with pytest.raises(AttnscopeError, match="BertModel, which does not generate text"):
        attnscope.answer(bert, TEXT, tokenizer=TOKENIZER)
    with pytest.raises(AttnscopeError, match="does not read pictures beside a text"):
        attnscope.answer(bert, TEXT, image=picture(8, 8), tokenizer=TOKENIZER)
