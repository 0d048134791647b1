"""A query that is named by its position, or as a token."""

import pytest

from attnscope import attention_maps
from attnscope.base.errors import OptionError
from attnscope.model.run.tokens import Token, query_position

BERT = [Token(text) for text in ("[CLS]", "the", "em", "##ploy", "##ee", "saw", "the", "Cat", "[SEP]")]
GPT = [Token(text) for text in ("The", " cat", " sat", " on", " the")]


@pytest.mark.parametrize(
    ("query", "tokens", "position"),
    [
        (None, BERT, None),
        (3, BERT, 3),
        ("3", BERT, 3),
        ("-1", BERT, -1),
        ("saw", BERT, 5),
        ("cat", BERT, 7),
        ("##ploy", BERT, 3),
        ("[SEP]", BERT, 8),
        (" cat", GPT, 1),
        ("cat", GPT, 1),
        ("the", [*GPT[:4], Token(" the", generated=True)], 4),
    ],
)
def test_a_query_is_a_position_or_a_token_that_occurs_once(query, tokens, position):
    assert query_position(query, tokens) == position


@pytest.mark.parametrize(
    ("query", "message", "hint"),
    [
        ("the", "'the' occurs 2 times among the queries.", "query=1 or 6"),
        ("employee", "'employee' is 3 tokens: em ##ploy ##ee.", "query=2, 3 or 4"),
        ("cats", "'cats' is not a token among the queries.", 'query="cat"'),
        (
            "xyz",
            "'xyz' is not a token among the queries.",
            "a position, counted from 0; top=1 lists the queries",
        ),
    ],
)
def test_other_words_are_refused_with_the_positions_of_what_is_there(query, message, hint):
    with pytest.raises(OptionError) as caught:
        query_position(query, BERT)
    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.parametrize("pool", [None, "max"])
def test_a_token_in_python_and_on_the_command_line(attnscope, pool):
    maps = attention_maps("minilm", "the cat sat", query="sat", pool=pool)
    assert maps.query == 3
    more = ["--pool", pool] if pool else []
    assert "query 3 sat" in attnscope("bert", "--text", "the cat sat", "--query", "sat", *more).out
