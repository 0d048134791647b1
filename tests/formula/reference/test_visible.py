"""Masks as their words say, compared with a loop over queries and keys."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.attention.mask_rules import KINDS
from attnscope.formula.reference.visible import WORD, as_its_words_say

number = st.integers(0, 7)
words = st.one_of(
    st.just("causal"),
    st.builds("window:{}".format, number),
    st.builds("window:{},{}".format, number, number),
    st.builds("window:{},".format, number),
    st.builds("window:,{}".format, number),
    st.builds("chunk:{}".format, st.integers(1, 7)),
    st.builds("prefix:{}".format, number),
    st.builds("lengths:{},{}".format, number, number),
)


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_knows_every_rule(kind):
    """A word that it does not know would pass for a file, whose values it takes from the run."""
    assert WORD.fullmatch(kind if KINDS[kind] == kind else f"{kind}:3")


def sees(word, q, k, batch):
    """Return whether a query at position q sees the key at position k, as docs/learn/variants/masks.md says."""
    numbers = [int(each) for each in re.findall(r"\d+", word)]
    kind, _, rest = word.partition(":")
    if kind == "window":
        left, right = rest.split(",") if "," in rest else (rest, rest)
        return (not left or k >= q - int(left)) and (not right or k <= q + int(right))
    return {
        "causal": lambda: k <= q,
        "chunk": lambda: q // numbers[0] == k // numbers[0],
        "prefix": lambda: k < numbers[0] or k <= q,
        "lengths": lambda: k < numbers[batch],
    }[kind]()


@given(
    texts=st.lists(words, min_size=1, max_size=3),
    first=st.integers(-3, 6),
    query=st.none() | st.integers(0, 3),
    batch=st.integers(0, 1),
    style=st.sampled_from(["bool", "additive"]),
)
def test_a_key_is_seen_if_every_word_lets_it_be_seen(texts, first, query, batch, style):
    run = SimpleNamespace(
        option=lambda name, default=None: {"mask": texts}.get(name, default),
        query=query,
        first_query=lambda batch: first,
    )
    queries = slice(0, 1) if query is not None else slice(2, 5)
    ran = np.zeros((1, 6), dtype=bool if style == "bool" else float)
    expected = [
        [all(sees(word, first + (query or 0) + i, k, batch) for word in texts) for k in range(6)]
        for i in range(queries.start, queries.stop)
    ]
    mask = as_its_words_say(run, ran, batch, queries)
    assert np.array_equal(mask if style == "bool" else mask == 0, expected)
    assert style == "bool" or set(np.unique(mask)) <= {0.0, -np.inf}


@pytest.mark.few(1)
@pytest.mark.parametrize("style", ["bool", "additive"])
@pytest.mark.parametrize("diagonal", [-1, 1])
def test_a_mask_that_is_not_what_its_words_say_fails(run_sdpa, style, diagonal):
    def failed(allowed, texts):
        mask = allowed if style == "bool" else torch.zeros(3, 5).double().masked_fill(~allowed, -1e9)
        return run_sdpa(mask=mask, claims={"mask": texts, "align": "bottom-right"}).failed()

    right = torch.ones(3, 5).tril(2).bool()
    wrong = torch.ones(3, 5).tril(2 + diagonal).bool()
    assert failed(right, ["causal"]) == set()
    assert failed(wrong, ["causal"]) == {"naive"}
    assert failed(wrong, ["mask.npy"]) == set()
    assert failed(wrong, ["mask.npy", "causal"]) == ({"naive"} if diagonal > 0 else set())
