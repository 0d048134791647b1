"""Words are where transformers says they are, and a head that follows the sound is found."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, WhisperTokenizer
from transformers.models.whisper.tokenization_whisper import _collate_word_timestamps

from attnscope.base.errors import ModelError, OptionError
from attnscope.model.answers.audio.alignment import _words, align, followed, token_seconds
from attnscope.model.answers.audio.listen import FrameTimes, Heard, listen
from attnscope.model.answers.audio.recording import Sound
from attnscope.model.answers.prompt import Prompt
from attnscope.model.files.loaded import find_model
from attnscope.model.run import written_rows
from tests.model.answers.audio.speakers import (
    ENGLISH,
    FAMILIES,
    FRENCH,
    NO_TIMES,
    PLANTED,
    RATE,
    START,
    TRANSCRIBE,
    WIDTH,
    follower,
    sound,
    whisper,
)
from tests.sweeps import swept


def heard(model, extractor, seconds=1.3, n=12, seed=0):
    checkpoint = find_model(model, None, processor=extractor)
    return checkpoint, listen(checkpoint, model, (sound(seconds, seed), RATE), n)


@pytest.mark.parametrize("seconds", [0.65, 1.3, 2.0])
@pytest.mark.parametrize("seed", swept(range(5), default=[0, 1]))
def test_times_are_those_of_transformers(seed, seconds):
    model, extractor = whisper(seed)
    model.generation_config.alignment_heads = [[1, 0], [2, 3], [0, 1]]
    checkpoint, read = heard(model, extractor, seconds, seed=seed)
    alignment = align(checkpoint, model, read)
    inputs = extractor(
        sound(seconds, seed), sampling_rate=RATE, return_tensors="pt", return_attention_mask=True
    )
    theirs = model.generate(
        **inputs, max_new_tokens=12, return_timestamps=False, return_token_timestamps=True
    )
    assert read.prompt.answer == theirs["sequences"][0].tolist()
    np.testing.assert_allclose(alignment.seconds, theirs["token_timestamps"][0], atol=1e-6)
    assert alignment.seconds[-1] > 0
    assert (alignment.origin, alignment.used) == ("named", [(1, 0), (2, 3), (0, 1)])
    assert sum(each.named for each in alignment.heads) == 3
    assert len(alignment.heads) == 12


@pytest.mark.parametrize("at_once", swept([1, 2**22], default=[1]))
@pytest.mark.parametrize("family", FAMILIES)
def test_times_are_those_of_the_model_s_eager_maps(family, at_once, monkeypatch):
    """In other models transformers computes no times: its function is applied to the whole maps."""
    monkeypatch.setattr(written_rows, "AT_ONCE", at_once)  # one row at a time, or all
    model, extractor = FAMILIES[family](1)
    checkpoint, read = heard(model, extractor)
    chosen = [(0, 1), (1, 2)]
    alignment = align(checkpoint, model, read, chosen)
    model.set_attn_implementation("eager")
    inputs = dict(read.prompt.inputs)
    start, answer = inputs["decoder_input_ids"], torch.tensor([read.prompt.answer[:-1]])
    inputs["decoder_input_ids"] = torch.cat([start, answer], 1)
    with torch.no_grad():
        maps = model(**inputs, output_attentions=True, use_cache=False).cross_attentions
    weights = torch.stack([maps[layer][:, head] for layer, head in chosen], 1)
    n_start = start.shape[1]
    assert alignment.seconds == token_seconds(model, weights, n_start, read.times)
    assert (alignment.used, alignment.origin) == (chosen, "selected")
    for each in alignment.heads:
        rows = maps[each.layer][0, each.head, n_start:].numpy()
        assert (each.monotone, each.peaked) == pytest.approx(followed(rows, read.times), abs=1e-5)


def test_a_planted_head_is_found_and_tells_when_each_token_was_said():
    model, extractor = follower()
    checkpoint, read = heard(model, extractor, seconds=1.9, n=13)
    alignment = align(checkpoint, model, read)
    best, *others = alignment.heads
    assert (best.layer, best.head) == PLANTED
    assert best.monotone == 1
    assert all(each.score == 0 for each in others)
    assert (alignment.origin, alignment.used) == ("measured", [PLANTED])
    said = [WIDTH * 0.02 * token for token in range(12)]
    assert alignment.seconds == pytest.approx([*said, said[-1]])


def test_a_head_that_goes_backwards_or_stays_has_no_score():
    times = FrameTimes(0.02, 0.0, 100, 100)
    forwards = np.eye(100)[::10]
    assert followed(forwards, times) == pytest.approx((1, 1))
    assert followed(forwards[::-1], times) == pytest.approx((-1, 1))
    assert followed(np.eye(100)[[7] * 10], times) == (0, 1)
    assert followed(np.full((10, 100), 0.01), times)[1] == pytest.approx(0.06)
    assert followed(forwards[:3], times) == (0, 0)


def test_rank_correlation_is_that_of_scipy():
    from scipy.stats import spearmanr

    frames = np.random.default_rng(0).integers(0, 9, 20)
    monotone, _ = followed(np.eye(9)[frames], FrameTimes(0.02, 0.0, 9, 9))
    assert monotone == pytest.approx(spearmanr(np.arange(20), frames).statistic)


def test_the_decoder_begins_as_in_generate():
    model, extractor = whisper()
    _, read = heard(model, extractor)
    start = read.prompt.inputs["decoder_input_ids"][0].tolist()
    assert start in ([START, ENGLISH, NO_TIMES], [START, FRENCH, NO_TIMES])
    model.generation_config.language, model.generation_config.task = "fr", "transcribe"
    _, read = heard(model, extractor)
    start = read.prompt.inputs["decoder_input_ids"][0].tolist()
    assert start == [START, FRENCH, TRANSCRIBE, NO_TIMES]


def test_frames_and_padding_are_told_apart():
    _, read = heard(*whisper())
    assert [(each.name, each.spans) for each in read.prompt.segments] == [
        ("sound", ((0, 65),)),
        ("padding", ((65, 100),)),
    ]
    assert [token.text for token in read.prompt.tokens[:3]] == ["0.00 s", "0.02 s", "0.04 s"]


def test_a_recording_that_is_too_long_is_refused_or_cut():
    model, extractor = whisper()
    checkpoint = find_model(model, None, processor=extractor)
    long = (sound(2.6), RATE)
    with pytest.raises(OptionError, match=r"is 2\.6 s long, and .* reads 2 s at once"):
        listen(checkpoint, model, long, 5)
    read = listen(checkpoint, model, long, 5, truncate=True)
    assert read.prompt.notices == ["the recording of 2.6 s was cut to 2 s."]
    assert read.times.n_sound == 100


def test_models_that_do_not_hear_or_whose_heads_do_not_follow_are_refused():
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=9))
    checkpoint = find_model(model, None)
    with pytest.raises(ModelError, match="does not read recordings"):
        listen(checkpoint, model, (sound(1.0), RATE))
    model, extractor = whisper()
    checkpoint, read = heard(model, extractor, n=3)
    with pytest.raises(ModelError, match=r"no head of .* follows"):
        align(checkpoint, model, read)
    with pytest.raises(OptionError, match="has no head 9 in layer 1"):
        align(checkpoint, model, read, [(1, 9)])
    model, extractor = follower()
    checkpoint, read = heard(model, extractor, n=6)
    with pytest.raises(ModelError, match="same weights for all tokens"):
        align(checkpoint, model, read)


def test_tokens_are_joined_to_the_words_of_transformers():
    letters = [chr(i) for i in range(33, 127)] + ["Ġ"]
    merges = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("a", "t")]
    marks = "<|endoftext|> <|startoftranscript|> <|en|> <|notimestamps|>".split()
    entries = [*letters, *("".join(pair) for pair in merges), *marks]
    tokenizer = WhisperTokenizer(vocab={each: i for i, each in enumerate(entries)}, merges=merges)
    tokenizer.add_special_tokens({"additional_special_tokens": marks[1:]})
    ids = tokenizer(" the cat sat.", add_special_tokens=False)["input_ids"]
    start = tokenizer.convert_tokens_to_ids(marks[1:])
    seconds = [0.1 * i for i in range(len(ids) + 1)]
    prompt = Prompt(
        {"decoder_input_ids": torch.tensor([start])}, [], answer=[*ids, tokenizer.eos_token_id]
    )
    prompt.tokenizer = tokenizer
    times, recording = FrameTimes(0.02, 0.0, 1, 1), Sound("it", np.zeros(1), RATE)
    words = _words(Heard(prompt, times, recording), seconds)
    pairs = list(pairwise(seconds))
    theirs = _collate_word_timestamps(tokenizer, ids, pairs, "english", False)
    assert [word.text for word in words] == [" the", " cat", " sat."]
    assert [{"text": word.text, "timestamp": (word.first, word.end)} for word in words] == theirs
    assert words[1].tokens == (1, 4)
    prompt.tokenizer = None
    assert _words(Heard(prompt, times, recording), seconds)[0].text == f"<{ids[0]}>"
