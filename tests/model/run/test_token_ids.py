"""Tokens and ids in place of a text: read as they are."""

import pytest

from attnscope.base.errors import OptionError
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.run.load import TOKENIZER, load_config
from attnscope.model.run.read_inputs import find_tokens, parse_ids, read_ids
from tests.model.run.readers import save_reader


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    save_reader("bert", folder, max_position_embeddings=6)
    return Checkpoint("small", folder)


def test_tokens_are_read_as_they_are(small):
    reading = read_ids(small, load_config(small), None, "[CLS] cat [UNK] cat")
    assert [token.text for token in reading.source] == ["[CLS]", "cat", "[UNK]", "cat"]
    assert [token.special for token in reading.source] == [True, False, False, False]
    assert reading.inputs["input_ids"].tolist() == [[2, 6, 1, 6]]
    assert reading.notices == [
        "1 of 3 tokens in tokens (33%) is [UNK]: not in the model's vocabulary.",
        "tokens is used as is, without the [SEP] that the tokenizer adds to a text.",
    ]


def test_a_token_beside_the_vocabulary_is_refused_with_the_one_that_is_in_it(small):
    with pytest.raises(OptionError, match="'Cat' is not in the vocabulary of small") as raised:
        find_tokens(small, "the Cat")
    assert raised.value.hint == "cat, which is"
    with pytest.raises(OptionError, match="tokens is empty"):
        find_tokens(small, "  ")


@pytest.mark.parametrize("text", ["", "1,x", "-1", "1.5", "²", "1;2"])
def test_what_is_no_id_is_refused(text):
    with pytest.raises(OptionError, match="ids"):
        parse_ids(text)


def test_an_id_beyond_the_vocabulary_is_refused(small):
    with pytest.raises(OptionError, match="there is no token 99: small has"):
        read_ids(small, load_config(small), [2, 99])


def test_ids_are_cut_only_where_they_may_be(small):
    config = load_config(small)
    with pytest.raises(OptionError, match="ids is 8 tokens long, but the model takes at most 6"):
        read_ids(small, config, [5] * 8)
    reading = read_ids(small, config, [5] * 8, truncate=True)
    assert len(reading.source) == 6
    assert "ids was truncated from 8 tokens to 6." in reading.notices


def test_a_model_without_a_tokenizer_reads_ids(tmp_path, attnscope):
    save_reader("bert", tmp_path)
    for name in TOKENIZER:
        (tmp_path / name).unlink(missing_ok=True)
    record = attnscope("model", tmp_path, "--ids", "5,6,7", "--format", "json").json
    assert record["query_tokens"] == ["<5>", "<6>", "<7>"]
    assert any("no tokenizer" in notice for notice in record["notices"])
