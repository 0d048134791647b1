import pytest

from attnscope.document.grid.sinks import sink_keys
from attnscope.model.files.checkpoint import find_checkpoint
from attnscope.model.run.load import load_tokenizer
from attnscope.model.run.tokenize import tokens_of


@pytest.mark.parametrize(
    ("special", "sinks"),
    [
        ([], []),
        ([False], [True]),
        ([False, False, False], [True, False, False]),
        ([True, False, True, False, True], [True, False, True, False, True]),
    ],
)
def test_the_first_key_and_special_ones_are_sinks(special, sinks):
    assert sink_keys(special) == sinks


def test_separators_are_sinks_and_what_stands_for_words_is_none():
    tokenizer = load_tokenizer(find_checkpoint("minilm"))
    ids = tokenizer("the [MASK] \U0001f9ff sat", "on it")["input_ids"]
    tokens = tokens_of(tokenizer, ids)
    assert [token.text.strip() for token in tokens] == [
        *("[CLS]", "the", "[MASK]", "[UNK]", "sat", "[SEP]", "on", "it", "[SEP]"),
    ]
    special = [token.special for token in tokens]
    assert sink_keys(special) == [True, *[False] * 4, True, False, False, True]
