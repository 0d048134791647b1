"""Segments that the user defines: marks, regular expressions, ranges."""

import re

import pytest

from attnscope.base.errors import OptionError
from attnscope.model.answers.segments.of_text import find_stretches, read_definitions

TEXT = "Docs:\n[1] a cat\n\n[2] a dog \n\nQ: who, and who?"


def found(segments, *texts):
    texts = list(texts or [TEXT])
    parts = find_stretches(read_definitions(segments), texts, "the text")
    return {part.name: texts[part.nth][part.first : part.end] for part in parts}


def test_a_part_ends_at_the_next_mark_and_the_last_one_at_a_blank_line():
    assert found("doc=[1],[2]") == {"doc 1": "[1] a cat\n\n", "doc 2": "[2] a dog "}
    assert found("doc=[2]") == {"doc": "[2] a dog "}
    assert found("q=Q:") == {"q": "Q: who, and who?"}


def test_each_match_of_a_regular_expression_is_a_part_or_its_first_group():
    assert found("who=/who/") == {"who 1": "who", "who 2": "who"}
    assert found("q=/q: (.*)/i; x=/a [;c]at/") == {"q": "who, and who?", "x": "a cat"}
    assert found(r"x=/a\/b/", "1 a/b") == {"x": "a/b"}
    assert found({"who": re.compile("w.o,")}) == {"who": "who,"}


def test_ranges_are_counted_from_0_without_their_ends():
    assert found("a=0-4, 6-9;b=10-11") == {"a 1": "Docs", "a 2": "[1]", "b": "a"}
    assert found({"a": [(0, 4)], "b": "a dog"}) == {"a": "Docs", "b": "a dog"}


@pytest.mark.parametrize(
    ("segments", "says"),
    [
        ("", "segments is empty"),
        ({"a": [(0.9, 3.9)]}, "segments: a is"),
        ({"a": re.compile(b"t")}, "segments: a is"),
        ({"picture 1": "a cat"}, "the name 'picture 1', which other segments have"),
        ("docs", "'docs' has no definition"),
        ("=[1]", "has a segment without a name"),
        ("a=[1];a=[2]", "has the name 'a' twice"),
        ("answer=[1]", "has the name 'answer', which other segments have"),
        ("a=[1],,[2]", "a has an empty mark"),
        ("a=/x", "regular expression of a does not end in a /"),
        ("a=/(/", "is not a regular expression: "),
        ("a=/x/q", "has the flags 'q'"),
        ("a=/zebra/", "a=/zebra/ matches nothing in the text"),
        ("a=/z*/", "matches nothing but empty texts in the text"),
        ("a=[3]", r"a: '\[3\]' does not occur in the text"),
        ("a=who", "'who' occurs 2 times in the text, at characters 32, 41; a mark occurs once"),
        ("a=5-5", "a has the range 5-5, which has no characters"),
        ("a=0-100", "a has the range 0-100, but the text has 45 characters"),
        ("a=0-10;b=/Docs/", r"(a \(characters 0-10\) and b|b .* and a) .*overlap in the text"),
        ({"a": []}, "a has no range"),
        (3, "segments is 3"),
    ],
)
def test_mistakes_are_one_line(segments, says):
    with pytest.raises(OptionError, match=says):
        found(segments)
