"""`--without-sink` of `attnscope model` and `bert`, through the entry point."""

import csv
import io

import numpy as np
import pytest

from tests.model.run.readers import WORDS, save_reader

TEXT = ["--layer", 2, "--head", 3, "--text", "The cat sat on the mat.", "--pair", "It was tired."]
SINKS = [0, 8, 13]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    save_reader("llama", folder, max_position_embeddings=700)
    return folder


def test_strongest_keys_are_no_sinks_and_their_weights_stay(attnscope):
    record = attnscope("bert", *TEXT, "--top", 4, "--without-sink", "-f", "json").json
    assert record["without_sink"] == SINKS
    attention = np.array(record["attention"])
    assert np.allclose(attention.sum(axis=1), 1, atol=1e-5)
    kept = [key for key in range(14) if key not in SINKS]
    for weights, ranked in zip(attention, record["strongest"], strict=True):
        wanted = sorted(kept, key=lambda key: -weights[key])[:4]
        assert [each["key"] for each in ranked] == wanted
        assert [each["attention"] for each in ranked] == pytest.approx(weights[wanted].tolist())
    assert attnscope("bert", *TEXT, "--top", 4, "-f", "json").json["without_sink"] is None


@pytest.mark.sweep
def test_the_heading_names_what_is_left_out(attnscope):
    named = "without the sink: 0 [CLS], 8 [SEP], 13 [SEP]"
    for more in (["--top", 2], [], ["--query", 3], ["-f", "markdown"]):
        assert named in attnscope("bert", *TEXT, "--without-sink", *more).out.splitlines()
        assert named not in attnscope("bert", *TEXT, *more).out


def test_a_text_without_special_tokens_has_its_first_token_for_a_sink(attnscope, llama):
    r = attnscope("model", llama, "--ids", "5,6,7", "--without-sink", "--top", 9)
    assert r.out.splitlines()[2] == "without the sink: 0 the"
    assert "#2" in r.out
    assert "#3" not in r.out


def test_a_text_of_nothing_but_sinks_has_no_strongest_keys(attnscope, llama):
    command = ["model", llama, "--ids", "5", "--without-sink", "-f", "json", "--top", 2]
    for more in ([], ["--pool", "max"]):
        assert attnscope(*command, *more).json["strongest"] == [[]]


@pytest.mark.sweep
def test_strongest_keys_of_a_pooled_map_are_no_sinks(attnscope, llama, tmp_path):
    path = tmp_path / "long.txt"
    path.write_text(" ".join(np.random.default_rng(0).choice(WORDS[5:], 299)), encoding="utf-8")
    command = ["model", llama, "--file", path, "--layer", 1, "--head", 2, "--top", 3, "--without-sink"]
    whole, pooled = (attnscope(*command, *more, "-f", "json").json for more in ([], ["--pool", "max"]))
    assert whole["without_sink"] == pooled["without_sink"] != []
    for ours, theirs in zip(pooled["strongest"], whole["strongest"], strict=True):
        assert [each["attention"] for each in ours] == pytest.approx(
            [each["attention"] for each in theirs], abs=1e-6
        )
        assert not {each["key"] for each in ours} & set(whole["without_sink"])
    weights = attnscope(*command[:-3], "--pool", "max", "-f", "json").json["attention"]
    assert weights == pooled["attention"], "cells are what they are"


def test_csv_of_all_weights_says_that_nothing_is_left_out(attnscope):
    r = attnscope("bert", *TEXT, "--without-sink", "-f", "csv")
    assert "--without-sink has no effect on csv without --top: it holds all weights" in r.err
    assert len(r.out.splitlines()) == 1 + 14 * 14
    r = attnscope("bert", *TEXT, "--without-sink", "-f", "csv", "--top", 2)
    assert r.err == ""
    lines = list(csv.DictReader(io.StringIO(r.out)))
    assert not {int(line[f"key_{rank}"]) for line in lines for rank in (1, 2)} & set(SINKS)


def test_a_page_begins_without_the_sink(attnscope, tmp_path):
    attnscope("bert", *TEXT, "--without-sink", "--page", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '"sink":false' in text
    assert f'"sinks":{SINKS}'.replace(" ", "") in text


def test_without_a_text_it_has_no_effect_and_that_is_told(attnscope):
    r = attnscope("bert", "--without-sink")
    assert r.exit_status == 0
    assert "--without-sink" in r.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--text", "a", "--steps", "--without-sink"],
            "--steps shows whole tensors, and --without-sink",
        ),
    ],
)
def test_mistakes_are_told_in_a_line(attnscope, options, message):
    r = attnscope("bert", *options)
    assert (r.exit_status, r.out) == (2, "")
    assert message in r.err.splitlines()[0]
