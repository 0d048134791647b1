"""Answers that real servers wrote, of the same weights in float32.

The files in `responses` are as llama-server of llama.cpp and the server of llama-cpp-python wrote them;
each names its server. Weights of `served` were written as GGUF in float32, and keys and values were
cached in float32.
"""

import json
from copy import deepcopy
from pathlib import Path

import pytest
import torch

import attnscope
from attnscope.base.errors import AttnscopeError
from tests.model.answers.replay.served import served
from tests.model.answers.writers import MESSAGES

FOLDER = Path(__file__).parent / "responses"
NOT_COMPARED = "are those after sampling, not the model's: they are not compared"


def replay(kind, name, **prompt):
    model, tokenizer = served(kind)
    return attnscope.answer(model, replay=FOLDER / kind / name, tokenizer=tokenizer, **prompt)


def response(kind, name):
    return json.loads((FOLDER / kind / name).read_text())["response"]


@pytest.mark.parametrize(
    ("kind", "name", "ids", "n_compared"),
    [
        ("merges", "completion.json", "exact", 7),  # of 11 tokens: é and 🙂 are six of them
        ("merges", "completion_stopped.json", "exact", 9),  # the word that stops it has none
        ("merges", "completions.json", "retokenised", 6),
        ("merges", "completions_without_ids.json", "pieces", 7),
        ("merges", "completions_characters_without_ids.json", "retokenised", 2),
        ("merges", "chat.json", "exact", 6),
        ("merges", "chat_without_ids.json", "pieces", 8),
        ("sentencepiece", "completion.json", "exact", 8),
        ("sentencepiece", "completions.json", "retokenised", 6),
    ],
)
def test_log_probabilities_of_a_server_with_the_same_weights_agree(kind, name, ids, n_compared):
    answer = replay(kind, name)
    recorded = answer.recorded
    assert recorded.ids == ids
    assert sum(each is not None for each in recorded.log_probabilities) == n_compared
    assert recorded.parts_at is None
    assert max(recorded.tolerances) < 1e-4


@pytest.mark.parametrize("kind", ["merges", "sentencepiece"])
def test_all_ids_of_a_server_are_taken(kind):
    assert replay(kind, "completion.json").ids == response(kind, "completion.json")["tokens"]


@pytest.mark.parametrize(
    ("kind", "name", "prompt"),
    [
        ("merges", "completion_stream.txt", {"text": "the cat sat ."}),
        ("merges", "completions.json", {}),
        ("merges", "completion_sampled.json", {}),
    ],
)
def test_ids_that_a_server_leaves_out_are_those_of_the_text(kind, name, prompt):
    """Each file is the same answer; its list has only the last token of é and of 🙂."""
    *expected, end = response(kind, "completion.json")["tokens"]
    assert end == served(kind)[1].eos_token_id
    assert replay(kind, name, **prompt).ids == expected


def test_a_stream_of_a_chat_is_joined():
    answer = replay("merges", "chat_stream.txt", messages=MESSAGES)
    whole = replay("merges", "chat.json")
    assert answer.ids == whole.ids[:-1]  # a stream leaves out the end of the text
    assert answer.recorded.log_probabilities == whole.recorded.log_probabilities[:-1]
    assert answer.recorded.parts_at is None
    answer = replay("sentencepiece", "chat_stream.txt", messages=MESSAGES)
    assert (answer.recorded.ids, answer.recorded.parts_at) == ("exact", None)
    assert None not in answer.recorded.log_probabilities


def test_the_text_of_a_server_is_tokenized_without_the_blank_of_a_beginning():
    answer = replay("sentencepiece", "completions.json")
    assert "".join(token.text for token in answer.written).endswith("🙂\ngtyh")
    tokens = response("sentencepiece", "completion.json")["tokens"]
    assert answer.ids[:10] == tokens[:10]
    assert answer.ids[10] != tokens[10]
    assert answer.recorded.drift == 10


def test_probabilities_after_sampling_are_not_compared():
    answer = replay("merges", "completion_sampled.json")
    assert answer.recorded.log_probabilities == [None] * len(answer.ids)
    assert any(NOT_COMPARED in each for each in answer.notices)


def test_settings_of_llama_cpp_are_no_causes_of_another_log_probability():
    assert replay("merges", "completion.json").recorded.causes == []
    assert replay("merges", "completions_without_ids.json").recorded.causes == ["temperature is 1.3"]


def test_another_prompt_than_the_server_read_is_noticed():
    answer = replay("merges", "chat.json", text="the mat")
    assert any(
        "the engine read a prompt of 29 tokens, and this one has 3." in each for each in answer.notices
    )
    assert answer.recorded.parts_at == 0
    assert answer.recorded.causes == ["the engine read a prompt of 29 tokens"]


def test_reasoning_is_replayed_with_the_tokens_around_it():
    answer = replay("merges", "chat_reasoning.json")
    message = response("merges", "chat_reasoning.json")["choices"][0]["message"]
    text = f"<think>\n{message['reasoning_content']}</think>\n\n{message['content']}<|eot_id|>"
    assert "".join(token.text for token in answer.written) == text
    assert (answer.recorded.ids, answer.recorded.parts_at) == ("exact", None)
    assert None not in answer.recorded.log_probabilities


def test_a_stream_that_leaves_out_tokens_around_reasoning_is_refused():
    with pytest.raises(
        AttnscopeError, match="has reasoning or calls of tools, which are not in its text"
    ):
        replay("merges", "chat_reasoning_stream.txt", messages=MESSAGES)


def test_other_weights_part():
    model, tokenizer = served("merges")
    other = deepcopy(model)
    other.lm_head.weight.data *= 1.001
    answer = attnscope.answer(other, replay=FOLDER / "merges" / "completions.json", tokenizer=tokenizer)
    assert answer.recorded.parts_at == 0
    assert "computed in 16 bits or fewer" in answer.recorded.causes[0]  # 0.001 is less than its rounding
    other.lm_head.weight.data *= 2
    answer = attnscope.answer(other, replay=FOLDER / "merges" / "completions.json", tokenizer=tokenizer)
    assert (answer.recorded.parts_at, answer.recorded.causes) == (0, [])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_here_agree_within_their_own_rounding(dtype):
    model, tokenizer = served("merges")
    narrow = deepcopy(model).to(dtype)
    answer = attnscope.answer(narrow, replay=FOLDER / "merges" / "chat.json", tokenizer=tokenizer)
    recorded = answer.recorded
    pairs = zip(recorded.log_probabilities, recorded.here, strict=True)
    assert max(abs(there - here) for there, here in pairs) > 1e-4  # more than float32 explains
    assert recorded.parts_at is None
