"""Retrieval scores of heads are those of their definition, computed from whole eager maps."""

import json
from math import sqrt

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BloomConfig,
    BloomForCausalLM,
)

import attnscope
from attnscope import measure_heads
from attnscope.base.errors import FileError, ModelError, OptionError
from attnscope.model.heads.needles import _is_found
from tests.model.run.planted import save_gpt2
from tests.model.run.readers import WORDS, save_tokenizer
from tests.model.run.tiny import random_weights, tiny_config
from tests.sweeps import swept

TEXT = "the cat sat on a mat because it was tired . a dog ran on the mat . the cat ran"
NEEDLE = "a dog ran on the mat"
TRIALS = [
    {"text": TEXT, "needle": "the mat . the cat ran", "answer": "the mat . the cat ran the cat . mat"},
    {"text": TEXT, "needle": NEEDLE, "question": "it was", "answer": NEEDLE + " ."},
    {"text": TEXT, "needle": "because it was tired", "answer": "the cat was tired"},
    {"context": "the dog sat . " + TEXT, "needle": [0, 13], "answer": "the dog ran . the dog sat"},
]
FAMILIES = {
    "llama": {},
    "gpt2": {},
    "mistral": {"sliding_window": 9},
    "gemma2": {"sliding_window": 9, "attn_logit_softcapping": 2.0},
    "deepseek_v3": {"head_dim": 8, "num_key_value_heads": 4},
    "gpt_oss": {"sliding_window": 9},
    "t5": {"decoder_start_token_id": 0},
    "bart": {"decoder_start_token_id": 0},
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder, special=False)
    return AutoTokenizer.from_pretrained(folder)


def tiny(family):
    torch.manual_seed(0)
    config = tiny_config(family, **FAMILIES[family], vocab_size=len(WORDS), tie_word_embeddings=False)
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model = random_weights(kind.from_config(config))
    model.generation_config.eos_token_id = None
    return model


def ids_of(tokenizer, text):
    return tokenizer(text)["input_ids"]


def naive(model, tokenizer, trial, written):
    """The definition: at every written token, the largest weight of every head in a whole eager map."""
    text = trial.get("text") or trial["context"]
    prompt = ids_of(tokenizer, text + ("\n" + trial["question"] if "question" in trial else ""))
    start, end = trial["needle"] if isinstance(trial["needle"], list) else (
        text.index(trial["needle"]), text.index(trial["needle"]) + len(trial["needle"])
    )  # fmt: skip
    before, inside = len(ids_of(tokenizer, text[:start])), len(ids_of(tokenizer, text[start:end]))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        if model.config.is_encoder_decoder:
            begun = [model.config.decoder_start_token_id, *written[:-1]]
            maps = model(
                input_ids=torch.tensor([prompt]),
                decoder_input_ids=torch.tensor([begun]),
                output_attentions=True,
            ).cross_attentions
            rows = range(len(written))
        else:
            ids = torch.tensor([prompt + written[:-1]])
            maps = model(input_ids=ids, output_attentions=True).attentions
            rows = range(len(prompt) - 1, len(prompt) + len(written) - 1)
    scores = np.zeros((len(maps), maps[0].shape[1]))
    for layer, of_layer in enumerate(maps):
        for head in range(of_layer.shape[1]):
            for row, token in zip(rows, written, strict=True):
                key = int(of_layer[0, head, row].argmax())
                if before <= key < before + inside and prompt[key] == token:
                    scores[layer, head] += 1 / inside
    return scores


@pytest.mark.few(1)
@pytest.mark.parametrize("family", swept(FAMILIES, default=["llama", "gpt2", "mistral", "gemma2", "t5"]))
def test_scores_are_those_of_a_loop_over_whole_maps(tokenizer, family):
    model = tiny(family)
    table = measure_heads(model, tokenizer=tokenizer, needle=TRIALS)
    of_trials = np.stack(
        [naive(model, tokenizer, trial, ids_of(tokenizer, trial["answer"])) for trial in TRIALS]
    )
    assert np.count_nonzero(of_trials) > 3, "the reference has hits"
    np.testing.assert_allclose(table["retrieval"], of_trials.mean(0), atol=1e-12)
    errors = of_trials.std(0, ddof=1) / sqrt(len(TRIALS))
    for row in table:
        assert row.errors["retrieval"] == pytest.approx(errors[row.layer, row.head])
    assert list(table.layers) == ["cross" if model.config.is_encoder_decoder else "self"]
    assert table.sequences == len(TRIALS)
    assert table.notices == []


@pytest.mark.sweep
def test_what_the_model_itself_writes_is_scored(tokenizer):
    """One trial counts, since the needle is as short as a word that the model writes."""
    model = tiny("llama")
    ids = torch.tensor([ids_of(tokenizer, TEXT)])
    written = model.generate(ids, max_new_tokens=50, do_sample=False)[0, ids.shape[1] :].tolist()
    known = [WORDS[token] for token in written]
    word = next(word for word in known if word in TEXT.split())
    first = TEXT.split().index(word)
    start = len(" ".join(TEXT.split()[:first])) + (first > 0)
    trial = {"text": TEXT, "needle": [start, start + len(word)]}
    unwritten = next(word for word in TEXT.split() if TEXT.count(word) == 1 and word not in known)
    unfound = {"text": TEXT, "needle": unwritten}
    table = measure_heads(model, tokenizer=tokenizer, needle=[trial, unfound])
    np.testing.assert_allclose(table["retrieval"], naive(model, tokenizer, trial, written))
    assert table.notices == [
        "1 of 2 trials left out: the answer has no more than half of the needle's tokens."
    ]
    assert table.sequences == 1
    assert table[0, 0].errors == {"retrieval": None}


def test_a_planted_head_has_the_score_one(tmp_path):
    """The induction head looks at the token after the copy of the last one, which is to be written."""
    save_gpt2(tmp_path)
    save_tokenizer(tmp_path, special=False)
    trial = {"text": "the cat sat on mat . a dog ran", "needle": "on mat . a", "question": "because sat"}
    table = measure_heads(tmp_path, needle=[{**trial, "answer": "on mat . a"}])
    assert table[1, 0].values["retrieval"] == 1
    assert all(row.values["retrieval"] == 0 for row in table if (row.layer, row.head) != (1, 0))


def test_a_token_that_is_copied_twice_counts_twice(tmp_path):
    save_gpt2(tmp_path)
    save_tokenizer(tmp_path, special=False)
    trial = {"text": "the cat sat on mat", "needle": "sat on", "question": "because cat"}
    table = measure_heads(tmp_path, needle=[{**trial, "answer": "sat on the cat sat on"}])
    # after `on`, the first copy of it is followed by `mat`, outside; after the second `sat`, there are two
    assert table[1, 0].values["retrieval"] >= 1


def test_tokens_beside_the_needle_are_not_in_it(tmp_path):
    """The needle is one token between two others without a space."""
    save_gpt2(tmp_path)
    save_tokenizer(tmp_path, special=False)
    trial = {"text": "the cat sat.on a mat", "needle": ".", "question": "because sat", "answer": "."}
    assert measure_heads(tmp_path, needle=[trial])[1, 0].values["retrieval"] == 1
    by_characters = {**trial, "needle": [11, 12]}
    assert measure_heads(tmp_path, needle=[by_characters])[1, 0].values["retrieval"] == 1


def test_a_needle_is_found_if_more_than_half_of_its_tokens_are_written():
    assert not _is_found([1, 2], [1, 9])
    assert _is_found([1, 2, 3], [2, 9, 1])
    assert not _is_found([1, 1, 1, 2, 3], [1, 2]), "a token counts as often as it is written"
    assert _is_found([1, 1, 1, 2, 3], [1, 2, 1])


@pytest.mark.sweep
def test_selected_layers_and_heads_alone_are_scored(tokenizer):
    model = tiny("llama")
    table = measure_heads(model, tokenizer=tokenizer, needle=TRIALS, layers=[1, 3], heads=[0, 2])
    assert [(row.layer, row.head) for row in table] == [(1, 0), (1, 2), (3, 0), (3, 2)]
    whole = measure_heads(model, tokenizer=tokenizer, needle=TRIALS)
    assert [row.values for row in table] == [whole[row.layer, row.head].values for row in table]


def test_a_model_stays_as_it_is(tokenizer):
    model = tiny("gpt2")
    before = (model.config.to_dict(), model.training, dict(model._forward_hooks))
    measure_heads(model, tokenizer=tokenizer, needle=TRIALS)
    assert (model.config.to_dict(), model.training, dict(model._forward_hooks)) == before


def test_trials_that_are_too_long_are_left_out(tokenizer):
    model = tiny("gpt2")
    long = {"text": "the cat sat . " * 40 + "a dog ran", "needle": "a dog ran", "answer": "ran"}
    table = measure_heads(model, tokenizer=tokenizer, needle=[long, TRIALS[0]])
    assert table.notices == ["1 of 2 trials left out: longer than the 128 tokens that the model takes."]
    with pytest.raises(OptionError, match="no trial counts: 1 of 1 trial left out"):
        measure_heads(model, tokenizer=tokenizer, needle=[long])


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{", "line 2 of .* is not JSON"),
        ("[1]", r"line 2 of .* is \[1\], not an object"),
        ('{"needle": "a"}', "has neither of the fields text and context"),
        ('{"text": "a", "context": "a", "needle": "a"}', "has both of the fields"),
        ('{"text": "a cat", "needle": "dog"}', "has no needle 'dog' in its text"),
        ('{"text": "a cat a", "needle": "a"}', "has the needle 'a' more than once"),
        ('{"text": "a cat", "needle": [2, 9]}', r"needle \[2, 9\], but its text has characters 0 to 5"),
        ('{"text": "a cat"}', "has no needle: a part of its text"),
        ('{"text": "a cat", "needle": "cat", "query": "x"}', "has a field 'query', which is none of"),
        ('{"text": "a cat", "needle": "cat", "answer": ""}', "has an empty answer"),
        ('{"text": 7, "needle": "cat"}', "text is 7, not a text"),
    ],
)
def test_a_line_that_is_no_trial_is_refused(tmp_path, line, error):
    file = tmp_path / "needles.jsonl"
    file.write_text(json.dumps(TRIALS[0]) + "\n" + line + "\n")
    with pytest.raises(FileError, match=error):
        measure_heads("minilm", needle=file)


def test_other_metrics_and_options_of_texts_are_refused(tokenizer):
    model = tiny("llama")
    options = {"tokenizer": tokenizer, "needle": TRIALS}
    with pytest.raises(OptionError, match="there is no metric 'entropy'"):
        measure_heads(model, metrics="entropy", **options)
    with pytest.raises(OptionError, match="without_sink does not go with needle"):
        measure_heads(model, without_sink=True, **options)
    with pytest.raises(OptionError, match="texts and needle cannot be combined"):
        measure_heads(model, "a cat", **options)
    with pytest.raises(OptionError, match=r"stack=\"decoder\" of .* does not read the needle"):
        measure_heads(model, stack="decoder", **options)
    with pytest.raises(OptionError, match="generate needs a text with a needle"):
        measure_heads(model, "a cat", tokenizer=tokenizer, generate=5)
    with pytest.raises(ModelError, match="does not generate text"):
        measure_heads("minilm", needle=TRIALS)
    with pytest.raises(OptionError, match="no metric 'retrieval'") as caught:
        measure_heads("minilm", "a cat", sort="retrieval")
    assert caught.value.hint == "needle=FILE, for which it is measured"


def test_a_model_whose_attention_is_not_observed_is_refused(tokenizer):
    config = BloomConfig(vocab_size=len(WORDS), hidden_size=24, n_layer=2, n_head=3)
    model = BloomForCausalLM(config).eval()
    with pytest.raises(ModelError, match="does not call attention through transformers' registry"):
        measure_heads(model, tokenizer=tokenizer, needle=TRIALS)


def test_the_table_is_saved_and_loaded(tokenizer, tmp_path):
    table = measure_heads(tiny("gpt2"), tokenizer=tokenizer, needle=TRIALS, sort="retrieval", top=3)
    table.save(tmp_path / "heads.json")
    loaded = attnscope.load(tmp_path / "heads.json")
    top = sorted((row.values["retrieval"] for row in table), reverse=True)[:3]
    assert [row.values["retrieval"] for row in loaded] == top
    assert list(table.to_pandas().columns) == ["layer", "head", "retrieval", "retrieval_error"]
